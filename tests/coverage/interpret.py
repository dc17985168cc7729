"""Run cases in JAX's interpreter of Mosaic kernels and compare them with their references.

Usage: interpret.py OUTPUT [NAME...]. OUTPUT gets JSON: case -> "" where the numbers agree, else
what is wrong. Each case is run once, except where there is nothing that compiles.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import declared
import exported
import jax
import jax.numpy as jnp
import numpy as np
from covering import CASES

from pallasc.compiler.lowering.diagnose import failed_line
from pallasc.compiler.lowering.entry import import_entry, import_function, static_value
from pallasc.compiler.lowering.jax_versions import jax_mesh, on_one_device
from pallasc.specs.arrays import DTYPES, ArraySpec
from pallasc.specs.spec import Variant

_INTERPRETER = "jax._src.pallas.mosaic_gpu.interpret"
_RAISED = re.compile(r"^[\w.]+(?:Error|Exception)\b", re.MULTILINE)
_MOST_DEVICES = 2


def main(output: str, *names: str) -> None:
    """Interpret the cases and write what came out."""
    jax.config.update("jax_num_cpu_devices", _MOST_DEVICES)
    version = exported.version()
    first: dict[str, Variant] = {}
    for variant in declared.variants(names):
        if CASES[variant.name].is_interpreted(version):
            first.setdefault(variant.name, variant)
    results = {name: interpret(variant) for name, variant in first.items()}
    Path(output).write_text(json.dumps(results))


def interpret(variant: Variant) -> str:
    """Return what is wrong with the numbers of a variant, "" if nothing is."""
    function = import_function(variant.entry, variant.base_dir)
    static = {k: static_value(v, variant.base_dir) for k, v in variant.static.items()}
    given = arrays(variant.args, np.random.default_rng(0))
    for name, change in CASES[variant.name].given.items():
        given[name] = change(given[name])
    on_device = jax.tree.map(jnp.asarray, given)
    with _interpreter() as races:
        try:
            result = _on_its_devices(lambda tree: call(function, tree, static), variant)(on_device)
            jax.block_until_ready(result)
        except Exception as error:  # whatever the interpreter says is the result
            return _message(error)
        if races():
            return "the interpreter found a race"
    if variant.reference is None:
        return "it runs, and there is no reference to compare it with"
    return difference(result, _expected(variant, given, static), variant)


@contextmanager
def _interpreter() -> Iterator[Callable[[], bool]]:
    """Have kernels interpreted, and leave JAX as it was; yields what tells whether there is a race.

    A kernel may turn on checks, for itself alone.
    """
    params = importlib.import_module(f"{_INTERPRETER}.params")
    interpreter = importlib.import_module(f"{_INTERPRETER}.interpret_pallas_call")
    checks = jax.config.jax_pallas_enable_debug_checks
    try:
        with params.force_gpu_interpret_mode(params.InterpretGPUParams(detect_races=True)):
            yield lambda: interpreter.get_races().races_found
    finally:
        interpreter.reset_gpu_interpret_mode_state()
        jax.config.update("jax_pallas_enable_debug_checks", checks)


def _on_its_devices(function: Callable[[Any], Any], variant: Variant) -> Callable[[Any], Any]:
    """Return the function as it is run on the devices of a variant's mesh, if it has one."""
    if not variant.mesh:
        return function
    return on_one_device(function, jax_mesh(variant.mesh, jax.devices()))


def _message(error: Exception) -> str:
    """Return what was raised; behind a callback that ends stacks in text."""
    text = str(error)
    raised = [*_RAISED.finditer(text)] if "CpuCallback error" in text else []
    if raised:
        return text[raised[-1].start() :].strip()
    return f"{type(error).__name__}: {text or failed_line(error)}"


def call(function: Any, given: Any, static: Mapping[str, Any]) -> Any:
    """Call a function with arrays by name or by position."""
    if isinstance(given, Mapping):
        return function(**given, **static)
    return function(*given, **static)


def _expected(variant: Variant, given: Any, static: Mapping[str, Any]) -> Any:
    return call(import_entry(str(variant.reference), variant.base_dir), given, static)


def difference(result: Any, expected: Any, variant: Variant) -> str:
    """Return how results differ from what is expected, "" if they are near enough."""
    own, wanted = jax.tree.leaves(result), jax.tree.leaves(expected)
    if [np.shape(leaf) for leaf in own] != [np.shape(leaf) for leaf in wanted]:
        return f"shapes {[np.shape(o) for o in own]} instead of {[np.shape(w) for w in wanted]}"
    tolerance = variant.tolerance
    near = {"rtol": 1e-5, "atol": 1e-5}
    if tolerance is not None:
        near = {"rtol": tolerance.rtol, "atol": tolerance.atol}
    for number, (left, right) in enumerate(zip(own, wanted, strict=True)):
        left, right = np.asarray(left, np.float64), np.asarray(right, np.float64)
        if not np.allclose(left, right, **near):
            return f"result {number} differs by {np.abs(left - right).max()}"
    return ""


def arrays(tree: Any, random: np.random.Generator) -> Any:
    """Return random arrays of the declared types."""
    if isinstance(tree, ArraySpec):
        dtype = jnp.dtype(DTYPES[tree.dtype].jax_name)
        if jnp.issubdtype(dtype, jnp.floating):
            return random.standard_normal(tree.shape).astype(dtype)
        return random.integers(0, 2 if dtype.kind == "b" else 8, tree.shape).astype(dtype)
    if isinstance(tree, Mapping):
        return {key: arrays(item, random) for key, item in tree.items()}
    if isinstance(tree, list | tuple):
        return [arrays(item, random) for item in tree]
    return tree


if __name__ == "__main__":
    main(*sys.argv[1:])
