"""Run cases in JAX's interpreter of Mosaic kernels and compare them with their references.

Usage: interpret.py OUTPUT [NAME...]. OUTPUT gets JSON: case -> "" where the numbers agree, else
what is wrong. Only cases whose spec names a reference are run, each once.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import declared
import jax
import jax.numpy as jnp
import numpy as np

from pallasc.compiler.entry import import_entry, import_function, static_value
from pallasc.specs.arrays import ArraySpec
from pallasc.specs.dtypes import DTYPES
from pallasc.specs.spec import Variant

_INTERPRETER = "jax._src.pallas.mosaic_gpu.interpret"


def main(output: str, *names: str) -> None:
    """Interpret the cases and write what came out."""
    first: dict[str, Variant] = {}
    for variant in declared.variants(names):
        if variant.reference is not None:
            first.setdefault(variant.name, variant)
    results = {name: interpret(variant) for name, variant in first.items()}
    Path(output).write_text(json.dumps(results))


def interpret(variant: Variant) -> str:
    """Return what is wrong with the numbers of a variant, "" if nothing is."""
    params = importlib.import_module(f"{_INTERPRETER}.params")
    interpreter = importlib.import_module(f"{_INTERPRETER}.interpret_pallas_call")
    function = import_function(variant.entry, variant.base_dir)
    static = {k: static_value(v, variant.base_dir) for k, v in variant.static.items()}
    given = _arrays(variant.args, np.random.default_rng(0))
    try:
        with params.force_gpu_interpret_mode(params.InterpretGPUParams(detect_races=True)):
            result = _call(function, jax.tree.map(jnp.asarray, given), static)
        if interpreter.get_races().races_found:
            return "the interpreter found a race"
    except Exception as error:  # whatever the interpreter says is the result
        return _message(error)
    finally:
        interpreter.reset_gpu_interpret_mode_state()
    return _difference(result, _expected(variant, given, static), variant)


def _message(error: Exception) -> str:
    """Return what was raised; behind a callback that is the last line of a stack in text."""
    if "CpuCallback error" in str(error):
        return str(error).strip().splitlines()[-1]
    return f"{type(error).__name__}: {error}"


def _call(function: Any, given: Any, static: Mapping[str, Any]) -> Any:
    if isinstance(given, Mapping):
        return function(**given, **static)
    return function(*given, **static)


def _expected(variant: Variant, given: Any, static: Mapping[str, Any]) -> Any:
    return _call(import_entry(str(variant.reference), variant.base_dir), given, static)


def _difference(result: Any, expected: Any, variant: Variant) -> str:
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


def _arrays(tree: Any, random: np.random.Generator) -> Any:
    if isinstance(tree, ArraySpec):
        dtype = jnp.dtype(DTYPES[tree.dtype].jax_name)
        if jnp.issubdtype(dtype, jnp.floating):
            return random.standard_normal(tree.shape).astype(dtype)
        return random.integers(0, 2 if dtype.kind == "b" else 8, tree.shape).astype(dtype)
    if isinstance(tree, Mapping):
        return {key: _arrays(item, random) for key, item in tree.items()}
    if isinstance(tree, list | tuple):
        return [_arrays(item, random) for item in tree]
    return tree


if __name__ == "__main__":
    main(*sys.argv[1:])
