"""Execute the PTX of cases and compare the numbers with their references.

Usage: emulate.py OUTPUT STORE ARCHITECTURE [NAME...]. OUTPUT gets JSON: case -> "" where the
numbers agree, else what is wrong. Cases that do not compile are left out.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import declared
import interpret
import jax
import numpy as np

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.compiler.lowering.entry import static_value
from pallasc.emulator.machine.machine import Machine, Policy
from pallasc.emulator.run_plan import PlanRun
from pallasc.errors import PallascError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.spec import Variant

_MOST_S = 60


def main(output: str, store: str, architecture: str, *names: str) -> None:
    """Emulate the cases and write what came out."""
    chosen = [v for v in declared.variants(names) if v.target.arch == architecture]
    report = build(chosen, store=Store(Path(store)), options=Options(timeout_s=300))
    results: dict[str, str] = {}
    for result in report.results:
        if result.artifact is not None:
            started = time.monotonic()
            results[result.variant.id] = emulate(result.variant, result.artifact)
            took = time.monotonic() - started
            print(f"{took:6.2f} s  {result.variant.id}: {results[result.variant.id]}", flush=True)
    Path(output).write_text(json.dumps(results, indent=1))


def emulate(variant: Variant, artifact: Artifact) -> str:
    """Return what is wrong with the numbers of a variant, "" if nothing is."""
    static = {k: static_value(v, variant.base_dir) for k, v in variant.static.items()}
    given = interpret._arrays(variant.args, np.random.default_rng(0))
    leaves = _in_order(artifact.plan.input_tree, given)
    devices = max(artifact.plan.device_count, 1)
    run = PlanRun(artifact, Machine(Policy(seconds=_MOST_S)))
    try:
        found = run.run([leaves] * devices)
    except PallascError as error:
        where = getattr(error, "instruction", None)
        return f"{type(error).__name__}: {error}" + (f" at {where.text}" if where else "")
    except Exception as error:
        return f"CRASH {type(error).__name__}: {error}"
    if variant.reference is None:
        return "it runs, and there is no reference to compare it with"
    expected = interpret._expected(variant, given, static)
    return next(filter(None, (_difference(f, expected, variant) for f in found)), "")


def _in_order(tree: Any, given: Any) -> list[np.ndarray]:
    """Return the arrays in the order of a plan's inputs."""
    found: dict[int, np.ndarray] = {}

    def place(node: Any, value: Any) -> None:
        if isinstance(node, int):
            found[node] = np.asarray(value)
        elif isinstance(node, dict):
            for key, child in node.items():
                place(child, value[key])
        elif node is not None:
            for child, item in zip(node, value, strict=True):
                place(child, item)

    place(tree, given)
    return [found[number] for number in sorted(found)]


def _difference(found: list[Any], expected: Any, variant: Variant) -> str:
    wanted = jax.tree.leaves(expected)
    return interpret._difference(found, wanted, variant)


if __name__ == "__main__":
    main(*sys.argv[1:])
