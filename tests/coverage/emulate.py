"""Execute the PTX of cases and compare the numbers with their references.

Usage: emulate.py OUTPUT STORE ARCHITECTURE [NAME...]. OUTPUT gets JSON: case -> "" where the
numbers agree, else what is wrong. Cases that do not compile are left out.

Each device gets arrays of its own. What a case's results begin with, and what it is to fetch, is
declared beside it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import declared
import interpret
import jax
import numpy as np
from covering import CASES, Case

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.compiler.builds.report import VariantResult
from pallasc.compiler.lowering.entry import import_entry, static_value
from pallasc.compiler.toolchain.setup import prepare
from pallasc.compiler.workers.pool import find_ptx
from pallasc.emulator.machine.machine import Machine, Policy
from pallasc.emulator.program import PlanRun
from pallasc.errors import CheckError, PallascError, UnsupportedError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.signature import Arguments
from pallasc.specs.spec import Variant

_MOST_S = 1800
"""Of what hangs: no machine is so busy."""


def main(output: str, store: str, architecture: str, *names: str) -> None:
    """Emulate the cases and write what came out."""
    chosen = [v for v in declared.variants(names) if v.target.arch == architecture]
    report = build(chosen, store=Store(Path(store)), options=Options(timeout_s=3600))
    results: dict[str, str] = {}
    for name, said in emulations(report.results, Path(store)):
        results[name] = said
        print(f"{name}: {said}", flush=True)
    Path(output).write_text(json.dumps(results, indent=1))


def emulations(
    results: Iterable[VariantResult], store: Path, *, jobs: int = 1
) -> Iterator[tuple[str, str]]:
    """Emulate what was compiled; yield names and what came out, "" where the numbers agree.

    The PTX of XLA's kernels is had by compiling once more.
    """
    compiled = [(r.variant, r.artifact) for r in results if r.artifact is not None]
    with prepare() as setup:
        texts = find_ptx(compiled, setup, Store(store), jobs=jobs)
    for (variant, artifact), ptx in zip(compiled, texts, strict=True):
        if isinstance(ptx, PallascError):
            yield variant.id, f"{type(ptx).__name__}: {ptx}"
        else:
            yield variant.id, emulate(variant, artifact, ptx)


def emulate(variant: Variant, artifact: Artifact, ptx: Mapping[str, str]) -> str:
    """Return what is wrong with the numbers of a variant, "" if nothing is.

    What begins with "UnsupportedError" is what the emulator does not know; what begins with
    "undefined", what nobody can know.
    """
    case = CASES[variant.name]
    plan = artifact.plan
    given = arrays(variant, case, max(plan.device_count, 1))
    machine = Machine(Policy(seconds=_MOST_S))
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


def arrays(variant: Variant, case: Case, devices: int) -> list[Any]:
    """Return what the kernel is given on each device."""
    random = np.random.default_rng(0)
    found = [interpret.arrays(variant.args, random) for _ in range(devices)]
    for one in found:
        for name, change in case.given.items():
            one[name] = change(one[name])
    return found


def _leaves(artifact: Artifact, given: Any) -> Sequence[Any]:
    arrays, named = ((), given) if isinstance(given, Mapping) else (given, {})
    return Arguments("the case", artifact.plan, (), others=()).bind(arrays, named)[0]


def _difference(found: list[list[Any]], variant: Variant, case: Case, given: list[Any]) -> str:
    """Return how results differ from what was to come out, "" if they do not."""
    if not set(range(len(found[0]))) - set(case.undefined):
        return f"undefined: {next(iter(case.undefined.values()))}"
    if case.gives is None and variant.reference is None:
        return "it runs, and there is no reference to compare it with"
    static = {k: static_value(v, variant.base_dir) for k, v in variant.static.items()}
    reference = case.gives or import_entry(str(variant.reference), variant.base_dir)
    devices = len(given)
    of_all = jax.tree.map(lambda *leaves: np.stack(leaves), *given) if devices > 1 else given[0]
    results = jax.tree.leaves(interpret.call(reference, of_all, static))
    expected = [[r[d] for r in results] for d in range(devices)] if devices > 1 else [results]
    for own, wanted in zip(found, expected, strict=True):
        for number in case.undefined:
            own[number] = wanted[number]
        if wrong := interpret.difference(own, wanted, variant):
            return wrong
    return ""


if __name__ == "__main__":
    main(*sys.argv[1:])
