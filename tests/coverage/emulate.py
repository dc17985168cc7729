"""Execution of the PTX of cases, and comparison of the numbers with the expected results.

Each device gets its own random arrays.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from covering import CASES, Case

from pallasc.cache.store import Store
from pallasc.compiler.builds.report import VariantResult
from pallasc.compiler.toolchain.setup import prepare
from pallasc.compiler.workers.pool import find_ptx
from pallasc.emulator.machine.machine import Machine
from pallasc.emulator.program import PlanRun
from pallasc.errors import CheckError, PallascError, UnsupportedError
from pallasc.specs.arrays import DTYPES, ArraySpec
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.signature import Arguments
from pallasc.specs.spec import Variant

_MOST_S = 1800
"""Limit for a kernel that hangs; no machine is so busy."""


def emulations(
    results: Iterable[VariantResult], store: Path, *, jobs: int = 1
) -> Iterator[tuple[str, str]]:
    """Emulate the compiled variants; yield names and messages, "" where the numbers agree.

    Another compilation gives the PTX of XLA's kernels.
    """
    compiled = [(r.variant, r.artifact) for r in results if r.artifact is not None]
    with prepare() as setup:
        texts = find_ptx(compiled, setup, Store(store), jobs=jobs)
    for (variant, artifact), ptx in zip(compiled, texts, strict=True):
        if isinstance(ptx, PallascError):
            yield variant.id, f"{type(ptx).__name__}: {ptx}"
        else:
            yield variant.id, _emulate(variant, artifact, ptx)


def _emulate(variant: Variant, artifact: Artifact, ptx: Mapping[str, str]) -> str:
    """Return what is wrong with the numbers of a variant, "" if nothing is.

    The message of a feature that the emulator lacks begins with "UnsupportedError", and the message
    of an unpredictable result with "undefined".
    """
    case = CASES[variant.name]
    given = _given(variant, case, max(artifact.plan.device_count, 1))
    machine = Machine(deadline=time.monotonic() + _MOST_S)
    run = PlanRun(artifact, machine, ptx, **({"poison": 0} if case.zeroed else {}))
    try:
        found = run.run([_leaves(artifact, one) for one in given])
    except (UnsupportedError, CheckError) as error:
        return f"{type(error).__name__}: {error}"
    wrong = _difference(found, variant, case, given)
    if not wrong and case.fetches is not None:
        most = max(machine.fetched.values(), default=0)
        if most != case.fetches:
            wrong = f"each block fetches {most} bytes, and {case.fetches} are to be fetched"
    return wrong


def _given(variant: Variant, case: Case, devices: int) -> list[dict[str, Any]]:
    """Return random arrays for each device."""
    random = np.random.default_rng(0)
    found = []
    for _ in range(devices):
        arrays = {name: _random(spec, random) for name, spec in variant.args.items()}
        found.append(arrays | {name: make(arrays[name]) for name, make in case.given.items()})
    return found


def _random(spec: ArraySpec, random: np.random.Generator) -> Any:
    dtype = jnp.dtype(DTYPES[spec.dtype].jax_name)
    if jnp.issubdtype(dtype, jnp.floating):
        return random.standard_normal(spec.shape).astype(dtype)
    return random.integers(0, 2 if dtype.kind == "b" else 8, spec.shape).astype(dtype)


def _leaves(artifact: Artifact, given: Mapping[str, Any]) -> Sequence[Any]:
    return Arguments("the case", artifact.plan, (), others=()).bind((), given)[0]


def _difference(found: list[list[Any]], variant: Variant, case: Case, given: list[Any]) -> str:
    """Return how results differ from the expected results, "" if they do not."""
    if not set(range(len(found[0]))) - set(case.undefined):
        return f"undefined: {next(iter(case.undefined.values()))}"
    if case.expected is None:
        return "it runs, and there is no reference to compare it with"
    devices = len(given)
    of_all = jax.tree.map(lambda *leaves: np.stack(leaves), *given) if devices > 1 else given[0]
    results = jax.tree.leaves(case.expected(**of_all))
    expected = [[r[d] for r in results] for d in range(devices)] if devices > 1 else [results]
    near = variant.tolerance
    rtol, atol = (near.rtol, near.atol) if near else (1e-5, 1e-5)
    for own, wanted in zip(found, expected, strict=True):
        if [np.shape(leaf) for leaf in own] != [np.shape(leaf) for leaf in wanted]:
            return f"shapes {[np.shape(o) for o in own]}, not {[np.shape(w) for w in wanted]}"
        for number in set(range(len(own))) - set(case.undefined):
            left, right = np.asarray(own[number], float), np.asarray(wanted[number], float)
            if not np.allclose(left, right, rtol=rtol, atol=atol):
                return f"result {number} differs by {np.abs(left - right).max()}"
    return ""
