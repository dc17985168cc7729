"""Builds of unchanged variants against starting Python with what such a build imports.

Goals: a build of one variant takes at most 2.5 times as long as
`python -c "import click, yaml, sqlite3"`, and a build of 1,000 at most 7 times as long; 10,000
variants take at most 5 times as long as 1,000; 1,000 variants in a pack take at most 1.05 times as
long as in separate files.
"""

import argparse
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from harness import Figure, build_command, in_turn, medians, ratio, run_benchmark, timed_process
from inputs import fill, write_spec

from pallasc.cache.store import Store
from pallasc.cache.transfer import export_file, import_file

BASELINE = [sys.executable, "-c", "import click, yaml, sqlite3"]


def measure(options: argparse.Namespace, place: Path) -> Sequence[Figure]:
    """Time the builds and the baseline in turn."""
    works: dict[str, Callable[[], float]] = {"baseline": partial(timed_process, BASELINE)}
    specs = {count: write_spec(place / f"spec{count}", count) for count in (1, 1000, 10_000)}
    for count, spec in specs.items():
        store = place / f"store{count}"
        fill(Store(store), spec)
        works[f"{count:,} unchanged"] = partial(timed_process, build_command(spec, store))
    packed = build_command(specs[1000], copy_to_pack(place / "store1000", place))
    works["1,000 in a pack"] = partial(timed_process, packed)
    times = in_turn(works, options.rounds)
    goals = (
        ("1 unchanged", "baseline", 2.5),
        ("1,000 unchanged", "baseline", 7),
        ("10,000 unchanged", "1,000 unchanged", 5),
        ("1,000 in a pack", "1,000 unchanged", 1.05),
    )
    return [
        *medians(times),
        *(Figure(f"{a} / {b}", ratio(times, a, b), goal=goal) for a, b, goal in goals),
    ]


def copy_to_pack(source: Path, place: Path) -> Path:
    """Copy a store into a new one that has everything in packs."""
    target = place / "packed"
    export_file(Store(source), place / "all.pack")
    import_file(Store(target), place / "all.pack")
    shutil.copytree(source / "v1" / "stat", target / "v1" / "stat", dirs_exist_ok=True)
    return target


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__, measure, rounds=7))
