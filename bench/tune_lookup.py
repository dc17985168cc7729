"""The cost of a table at launch, on the stand-in driver; run by `tune.py`.

A tuned kernel has three variants of each of 64 shapes, of which a row chooses one. Its rivals have
no table: one has only the chosen variants, one has 10 variants, and one has 600. Goals:

* the first launch of a shape takes at most 1.1 times as long with the table
* the first launch of a shape takes at most 1.1 times as long with 600 variants as with 10
* later launches do not look into the table, and take at most 1.05 times as long as with 10 variants

Each ratio is the median of many short rounds in which both kernels are launched, in changing order,
and times are processor time. So programs that run at the same time hardly change the ratios.

The very first launch of a kernel, which indexes its variants, is left out. Cubins are loaded and
the chosen artifacts are read before, because this is the same on both sides. Kernels come from
`tests/runtime/`; the driver is a stand-in that answers at once.
"""

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

from harness import PYTHON, ROOT, Figure, say
from msgspec.structs import replace

TESTS = ROOT / "tests" / "runtime"
FIRST_ROUNDS = 320
LATER_ROUNDS = 500
VARIANTS = 3
GPU = "Stand-in H100"

Pairs = list[tuple[int, int]]
"""Nanoseconds of two kernels, round by round."""


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
    """Return all variants, with a table, and those that its rows choose, without one."""
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


def first_launches(files: Sequence[Path], arrays: Mapping[int, Any]) -> Pairs:
    """Launch the kernels of two files with each shape for the first time, in several rounds."""
    from pallasc.runtime.opening import open_bundle

    pairs: Pairs = []
    kept = []  # and with them the cubins
    for number in range(FIRST_ROUNDS // len(arrays) + 1):
        opened = [open_bundle(file)["add"] for file in files]
        kept.append(opened)
        for own in (own for kernel in opened for own in kernel.variants):
            m, tile = own.params["m"], own.params["tile"]
            if m in arrays and tile == 1 + m % VARIANTS:
                _ = own.artifact.plan, own.signature
        gc.collect()
        gc.disable()
        own_pairs = [launches(opened, m % 2, [arrays[m]]) for m in arrays]
        gc.enable()
        pairs += own_pairs[1:] if number else []  # the first kernels load the cubins
    return pairs


def later_launches(files: Sequence[Path], arrays: Mapping[int, Any]) -> tuple[Pairs, int]:
    """Launch the kernels of two files with each shape, again and again.

    Returns:
        The times, and how many of the later launches looked into a table.
    """
    from pallasc.runtime.matching.tuned import Selector
    from pallasc.runtime.opening import open_bundle

    kernels = [open_bundle(file)["add"] for file in files]
    calls = [*arrays.values()]
    launches(kernels, 0, calls)
    with mock.patch.object(Selector, "select", autospec=True, side_effect=Selector.select) as asked:
        launches(kernels, 0, calls)
    return [launches(kernels, n % 2, calls * 10) for n in range(LATER_ROUNDS)], asked.call_count


def launches(kernels: Sequence[Any], first: int, calls: Sequence[Any]) -> tuple[int, int]:
    """Launch two kernels, beginning with the first or with the second; return nanoseconds."""
    took = [0, 0]
    for side in (first, 1 - first):
        began = time.thread_time_ns()
        for a, b, out in calls:
            kernels[side].into(a, b, out=out)
        took[side] = time.thread_time_ns() - began
    return took[0], took[1]


def ratio(pairs: Pairs) -> float:
    """Return the median of the ratios."""
    return statistics.median(one / other for one, other in pairs)


def measure(place: Path) -> Iterator[Figure]:
    """Measure in this process, which finds the stand-in driver."""
    import made

    from pallasc.specs.bundle.writer import build_bundle

    framework = made.install()
    arrays = {m: [framework.tensor(f"f32[{m}, 64]") for _ in range(3)] for m in range(8, 72)}
    few = {m: arrays[m] for m in range(8, 18)}
    tuned, chosen = items(range(8, 72))
    contents = {"tuned": tuned, "chosen": chosen}
    contents |= {str(count): items(range(8, 8 + count))[1] for count in (10, 600)}
    files = {name: place / name for name in contents}
    for name, own in contents.items():
        files[name].write_bytes(build_bundle(own, level=1))
    first = "lookup: first launch of a shape"
    pairs = first_launches([files["tuned"], files["chosen"]], arrays)
    yield Figure(f"{first}, with a table / without", ratio(pairs), goal=1.1)
    microseconds = statistics.median(without for _, without in pairs) / 1000
    yield Figure(f"{first}, without a table", microseconds, "µs")
    pairs = first_launches([files["600"], files["10"]], few)
    yield Figure(f"{first}, 600 variants without a table / 10", ratio(pairs), goal=1.1)
    pairs, asked = later_launches([files["tuned"], files["10"]], few)
    yield Figure("lookup: later launches, with a table / 10 variants", ratio(pairs), goal=1.05)
    yield Figure("lookup: later launches that look into the table", asked, goal=0)


if __name__ == "__main__":
    json.dump([asdict(figure) for figure in measure(Path(sys.argv[1]))], sys.stdout)
