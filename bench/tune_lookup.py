"""What a table costs at launch, on the stand-in driver: with rows, and the same bundle without.

Goals: the first launch of a shape takes at most 300 ns longer, as the median over shapes, each
timed with and without a table in turn; and no later launch asks the table at all. Kernels with one,
few and many shapes are measured, since without a table all variants are looked through.

Kernels come from `tests/runtime/`; the driver is a stand-in that answers at once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import Figure

TESTS = Path(__file__).resolve().parents[1] / "tests" / "runtime"

ROUNDS = 5
_MOST_NS = 300
_SHAPES = {"one": (256, 1), "few": (64, 4), "many": (1, 256)}
"""Kernels, and shapes of each."""
_LATER = 2_000


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add how often everything is repeated."""
    parser.add_argument("--lookup-rounds", type=int, default=ROUNDS, metavar="N")


def figures(options: argparse.Namespace) -> Sequence[Figure]:
    """Return the figures of processes of their own, one a round."""
    sys.path.append(str(TESTS))
    import standin

    if standin.compiler() is None:
        print("lookup: no C compiler (cc or gcc), so there is no stand-in driver", file=sys.stderr)
        return []
    rounds = [_round(standin) for _ in range(options.lookup_rounds)]
    found = []
    for name, (_, shapes) in _SHAPES.items():
        what = f"lookup, kernels with {shapes} shape{'s' * (shapes > 1)}"
        more = statistics.median(ns for round_ in rounds for ns in round_[name]["more_ns"])
        without = statistics.median(ns for round_ in rounds for ns in round_[name]["without_ns"])
        asked = max(round_[name]["asked"] for round_ in rounds)
        found += [
            Figure(f"{what}: first launch, with a table more than without", more, "ns", _MOST_NS),
            Figure(f"{what}: first launch, without a table", without, "ns"),
            Figure(f"{what}: later launches that ask the table, of {_LATER}", asked, "", 0),
        ]
    return found


def _round(standin: Any) -> dict[str, Any]:
    environment = standin.environment(log=False, raw_speed=True)
    command = [sys.executable, "-P", __file__]
    own = {**environment, "PYTHONPATH": f"{TESTS}:{Path(__file__).parent}"}
    done = subprocess.run(command, env=own, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _measure(kernels: int, shapes: int) -> dict[str, Any]:
    """Return nanoseconds of first launches, and how often later ones asked for rows."""
    import made
    from tuned_bundles import item, row

    from pallasc.runtime.matching.tuned import Selector
    from pallasc.runtime.opening import open_bundle
    from pallasc.specs.bundle.writer import build_bundle

    framework = made.install()
    sizes = range(8, 8 + shapes)
    items = [item(m, 1, row(m), is_default=True) for m in sizes]
    found: dict[str, Any] = {"more_ns": [], "without_ns": [], "asked": 0}
    with tempfile.TemporaryDirectory(prefix="pallasc-bench-") as name:
        files = [Path(name) / "with.pallasc", Path(name) / "without.pallasc"]
        files[0].write_bytes(build_bundle(items, level=1))
        files[1].write_bytes(build_bundle([replace(own, tuning=None) for own in items], level=1))
        arrays = {m: [framework.tensor(f"f32[{m}, 64]") for _ in range(3)] for m in sizes}
        open_bundle(files[1])["add"].into(*arrays[8][:2], out=arrays[8][2])
        for number in range(kernels):
            opened = [open_bundle(file)["add"] for file in files]
            for kernel in opened:  # read before, as it is the same on both sides
                _ = kernel.types, kernel.arguments, kernel.selector.is_tuned
                for own in kernel.variants:
                    _ = own.artifact.plan, own.signature
            for m in sizes:
                pair = [0, 0]
                for side in ((0, 1), (1, 0))[(m + number) % 2]:
                    began = time.perf_counter_ns()
                    opened[side].into(*arrays[m][:2], out=arrays[m][2])
                    pair[side] = time.perf_counter_ns() - began
                found["more_ns"].append(pair[0] - pair[1])
                found["without_ns"].append(pair[1])
        select, asked = Selector.select, []
        Selector.select = lambda self, *rest: (asked.append(1), select(self, *rest))[1]  # type: ignore[method-assign, assignment, func-returns-value]
        for number in range(_LATER):
            m = sizes[number % shapes]
            opened[0].into(*arrays[m][:2], out=arrays[m][2])
        Selector.select = select  # type: ignore[method-assign]
        found["asked"] = len(asked)
    return found


if __name__ == "__main__":
    json.dump({name: _measure(*shape) for name, shape in _SHAPES.items()}, sys.stdout)
