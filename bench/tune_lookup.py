"""The cost of a table at launch, on the stand-in driver.

Two bundles are launched in turn. One has one, two or three variants of each shape, of which a row
chooses one. The other has only the chosen variants, without a table. Goals: the first launch of a
shape takes at most 300 ns longer with the table, as the median over shapes, and no later launch
looks into the table. The very first launch of a kernel is left out: it indexes all rows, and its
cost for each variant of the kernel is a separate figure.

Kernels without a table also look only at variants for the arrays of a call. Goal: with 600
variants, the first launch of a shape takes at most 1.5 times as long as with 10.

Cubins are loaded and the chosen artifacts are read before, because this is the same on both sides.
Kernels come from `tests/runtime/`; the driver is a stand-in that answers at once. Times are
processor time, so that other programs of the machine do not count.
"""

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import PYTHON, ROOT, Figure, say

TESTS = ROOT / "tests" / "runtime"

_MOST_NS = 300
_SHAPES = {"8": (40, 8), "64": (5, 64)}
"""For each figure: the number of kernels, and of shapes of each kernel."""
_VARIANTS = (1, 2, 3)
_LATER = 2_000
_GPU = "Stand-in H100"
_WITHOUT = (10, 100, 600)
_KERNELS = 10
_MOST_TIMES = 1.5


def figures(options: argparse.Namespace, _: Path) -> Sequence[Figure]:
    """Return the figures of new processes, one a round."""
    sys.path.append(str(TESTS))
    import standin

    if standin.compiler() is None:
        say("lookup: no C compiler (cc or gcc), so there is no stand-in driver")
        return []
    environment = standin.environment(log=False, raw_speed=True)
    environment["PYTHONPATH"] = f"{TESTS}:{ROOT / 'bench'}"
    rounds = []
    for _ in range(options.lookup_rounds):
        command = [*PYTHON, __file__]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        rounds.append(json.loads(done.stdout))
    names = [f"{shapes} {variants}" for shapes in _SHAPES for variants in _VARIANTS]
    found = [one for name in names for one in _figures(name, [own[name] for own in rounds])]
    return [*found, *_without_table([own["without"] for own in rounds])]


def _figures(name: str, rounds: Sequence[Any]) -> Iterator[Figure]:
    """Return the figures of kernels with some number of shapes, and variants of each."""
    shapes, variants = map(int, name.split())
    what = f"lookup, {shapes} shapes, variants of each: {variants}"
    more, without, once = (
        statistics.median(ns for own in rounds for ns in own[name])
        for name in ("more_ns", "without_ns", "once_ns")
    )
    each, asked = once / (shapes * variants), max(own["asked"] for own in rounds)
    yield Figure(f"{what}: first launch, with a table more than without", more, "ns", _MOST_NS)
    yield Figure(f"{what}: first launch, without a table", without, "ns")
    yield Figure(f"{what}: very first launch, with a table more, per variant", each, "ns")
    yield Figure(f"{what}: later launches that ask the table, of {_LATER}", asked, "", 0)


def _without_table(rounds: Sequence[dict[str, float]]) -> Iterator[Figure]:
    """Return the figures of kernels without a table, by their number of variants."""
    what = "lookup, without a table: first launch of a shape"
    for count in _WITHOUT:
        found = statistics.median(own[str(count)] for own in rounds)
        yield Figure(f"{what}, {count} variants", found, "ns")
    few, many = (str(count) for count in (_WITHOUT[0], _WITHOUT[-1]))
    times = statistics.median(own[many] / own[few] for own in rounds)
    yield Figure(f"{what}, {many} variants / {few}", times, goal=_MOST_TIMES)


def _measure(kernels: int, shapes: int, variants: int) -> dict[str, Any]:
    """Return nanoseconds of first launches, and how often later launches looked into the table."""
    import made

    from pallasc.runtime.opening import open_bundle

    framework = made.install()
    sizes = range(8, 8 + shapes)
    arrays = {m: [framework.tensor(f"f32[{m}, 64]") for _ in range(3)] for m in sizes}
    found: dict[str, Any] = {"more_ns": [], "without_ns": [], "once_ns": []}
    with tempfile.TemporaryDirectory(prefix="pallasc-bench-") as name:
        files = _bundles(Path(name), sizes, variants)
        loaded = open_bundle(files[0])["add"]  # keeps the cubins loaded
        for m in sizes:
            assert loaded.choice(*arrays[m][:2]).how == "row"
            loaded.into(*arrays[m][:2], out=arrays[m][2])
        gc.disable()
        for number in range(kernels):
            opened = [open_bundle(file)["add"] for file in files]
            for own in (own for kernel in opened for own in kernel.variants):
                if own.params["tile"] == 1 + own.params["m"] % variants:
                    _ = own.artifact.plan, own.signature
            for m in sizes:
                pair = [0, 0]
                for side in ((0, 1), (1, 0))[(m + number) % 2]:
                    began = time.thread_time_ns()
                    opened[side].into(*arrays[m][:2], out=arrays[m][2])
                    pair[side] = time.thread_time_ns() - began
                if m == sizes[0]:
                    found["once_ns"].append(pair[0] - pair[1])
                else:
                    found["more_ns"].append(pair[0] - pair[1])
                    found["without_ns"].append(pair[1])
            gc.collect()
        gc.enable()
        found["asked"] = _asked(opened[0], arrays)
    return found


def _measure_without(count: int) -> float:
    """Return nanoseconds of the first launch of a shape, for a kernel with `count` variants."""
    import made
    from tuned_bundles import item

    from pallasc.runtime.opening import open_bundle
    from pallasc.specs.bundle.writer import build_bundle

    framework = made.install()
    items = [replace(item(m, 1), tuning=None) for m in range(8, 8 + count)]
    sizes = range(8, 8 + count, count // 10)
    arrays = {m: [framework.tensor(f"f32[{m}, 64]") for _ in range(3)] for m in sizes}
    found = []
    with tempfile.TemporaryDirectory(prefix="pallasc-bench-") as name:
        file = Path(name) / "without.pallasc"
        file.write_bytes(build_bundle(items, level=1))
        gc.disable()
        for number in range(_KERNELS + 1):
            opened = open_bundle(file)["add"]
            for own in opened.variants:
                if own.params["m"] in arrays:
                    _ = own.artifact.plan, own.signature
            for m in sizes:
                began = time.thread_time_ns()
                opened.into(*arrays[m][:2], out=arrays[m][2])
                if number and m != sizes[0]:  # cubins are loaded, and the index is made
                    found.append(time.thread_time_ns() - began)
            gc.collect()
        gc.enable()
    return statistics.median(found)


def _bundles(folder: Path, sizes: Sequence[int], variants: int) -> list[Path]:
    """Write a bundle with a table, and one of the variants that its rows choose without one."""
    from tuned_bundles import item, row

    from pallasc.specs.bundle.writer import build_bundle

    items, chosen = [], []
    for m in sizes:
        own = [item(m, 1 + tile, is_default=tile == 1) for tile in range(variants)]
        taken = m % variants
        own[taken] = replace(
            own[taken], tuning=replace(own[taken].tuning, rows=(row(m, device=_GPU),))
        )
        items += own
        chosen.append(replace(own[taken], tuning=None))
    files = [folder / "with.pallasc", folder / "without.pallasc"]
    files[0].write_bytes(build_bundle(items, level=1))
    files[1].write_bytes(build_bundle(chosen, level=1))
    return files


def _asked(kernel: Any, arrays: dict[int, Any]) -> int:
    """Return the number of later launches that look into the table."""
    from pallasc.runtime.matching.tuned import Selector

    select, asked = Selector.select, []
    Selector.select = lambda self, *rest: (asked.append(1), select(self, *rest))[1]  # type: ignore[method-assign, assignment, func-returns-value]
    sizes = list(arrays)
    for number in range(_LATER):
        m = sizes[number % len(sizes)]
        kernel.into(*arrays[m][:2], out=arrays[m][2])
    Selector.select = select  # type: ignore[method-assign]
    return len(asked)


if __name__ == "__main__":
    found = {
        f"{name} {variants}": _measure(*shape, variants)
        for name, shape in _SHAPES.items()
        for variants in _VARIANTS
    }
    found["without"] = {str(count): _measure_without(count) for count in _WITHOUT}
    json.dump(found, sys.stdout)
