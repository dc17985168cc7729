"""The cost of a table at launch, on the stand-in driver; run by `tune.py`.

Two kernels are launched in turn. One has three variants of each of 64 shapes, of which a row
chooses one. The other has only the chosen variants, without a table. Goals: the first launch of a
shape takes at most 300 ns longer with the table, as the median over shapes, and no later launch
searches the table.

Without a table, a call considers only the variants for its arrays. Goal: with 600 variants, the
first launch of a shape takes at most 1.5 times as long as with 10.

The very first launch of a kernel, which indexes all rows, is left out. Cubins are loaded and the
chosen artifacts are read beforehand, as this is the same for both kernels. Kernels come from
`tests/runtime/`; the driver is a stand-in that returns at once. Times are processor times, so that
other programs on the machine do not count.
"""

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest import mock

from harness import PYTHON, ROOT, Figure, say

TESTS = ROOT / "tests" / "runtime"
KERNELS = 10
VARIANTS = 3
GPU = "Stand-in H100"
FIRST = "lookup: first launch of a shape"


def figures(_: argparse.Namespace, place: Path) -> Sequence[Figure]:
    """Return the figures of a process that finds the stand-in driver."""
    sys.path.append(str(TESTS))
    import standin

    if standin.compiler() is None:
        say("lookup: no C compiler (cc or gcc), so there is no stand-in driver")
        return []
    environment = standin.environment(log=False, raw_speed=True)
    environment["PYTHONPATH"] = f"{TESTS}:{ROOT / 'bench'}"
    command = [*PYTHON, __file__, place]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return [Figure(**row) for row in json.loads(done.stdout)]


def items(sizes: Sequence[int]) -> tuple[list[Any], list[Any]]:
    """Return all variants with a table, and the variants that its rows choose without a table."""
    from tuned_bundles import item, row

    everything, chosen = [], []
    for m in sizes:
        own = [item(m, 1 + tile, is_default=tile == 1) for tile in range(VARIANTS)]
        taken = own[m % VARIANTS]
        rows = (row(m, device=GPU),)
        own[m % VARIANTS] = replace(taken, tuning=replace(taken.tuning, rows=rows))
        everything += own
        chosen.append(replace(taken, tuning=None))
    return everything, chosen


def first_launches(files: Sequence[Path], arrays: Mapping[int, Any]) -> tuple[Any, int]:
    """Launch each shape with each file's kernel in turn; then again with the first file's kernel.

    Returns:
        The nanoseconds of first launches, one list per file, and how many of the later launches
        searched the table.
    """
    from pallasc.runtime.matching.tuned import Selector
    from pallasc.runtime.opening import open_bundle

    rows: list[list[int]] = []
    kept = []  # keeps kernels and their cubins loaded
    for number in range(KERNELS + 1):
        opened = [open_bundle(file)["add"] for file in files]
        kept.append(opened)
        for own in (own for kernel in opened for own in kernel.variants):
            m, tile = own.params["m"], own.params["tile"]
            if m in arrays and tile == 1 + m % VARIANTS:
                _ = own.artifact.plan, own.signature
        gc.collect()
        gc.disable()
        own_rows = [launches(opened, m % 2, *arrays[m]) for m in arrays]
        gc.enable()
        rows += own_rows[1:] if number else []  # the first kernels load the cubins
    with mock.patch.object(Selector, "select", autospec=True, side_effect=Selector.select) as asked:
        for *given, out in arrays.values():
            opened[0].into(*given, out=out)
    return list(zip(*rows, strict=True)), asked.call_count


def launches(kernels: Sequence[Any], first: int, a: Any, b: Any, out: Any) -> list[int]:
    """Launch two kernels, starting with number `first`; return the nanoseconds of each launch."""
    took = [0, 0]
    for side in (first, 1 - first):
        began = time.thread_time_ns()
        kernels[side].into(a, b, out=out)
        took[side] = time.thread_time_ns() - began
    return took


def measure(place: Path) -> Iterator[Figure]:
    """Measure in this process, which finds the stand-in driver."""
    import made

    from pallasc.specs.bundle.writer import build_bundle

    framework = made.install()
    arrays = {m: [framework.tensor(f"f32[{m}, 64]") for _ in range(3)] for m in range(8, 72)}
    tuned, chosen = items(range(8, 72))
    contents = {"tuned": tuned, "chosen": chosen}
    contents |= {str(count): items(range(8, 8 + count))[1] for count in (10, 600)}
    for name, own in contents.items():
        (place / name).write_bytes(build_bundle(own, level=1))
    (table, without), asked = first_launches([place / "tuned", place / "chosen"], arrays)
    more = statistics.median(a - b for a, b in zip(table, without, strict=True))
    yield Figure(f"{FIRST}, with a table more than without", more, "ns", 300)
    yield Figure(f"{FIRST}, without a table", statistics.median(without), "ns")
    yield Figure("lookup: later launches that look into the table, of 64", asked, goal=0)
    few = {m: arrays[m] for m in range(8, 18)}
    (ten, many), _ = first_launches([place / "10", place / "600"], few)
    times = statistics.median(many) / statistics.median(ten)
    yield Figure(f"{FIRST}, 600 variants without a table / 10", times, goal=1.5)


if __name__ == "__main__":
    json.dump([asdict(figure) for figure in measure(Path(sys.argv[1]))], sys.stdout)
