"""Opening a bundle of 10,000 variants and selecting one, against reading its manifest's bytes.

Both are timed in turn in one process, with the file in the page cache. Reading is one `pread` of
head, pages and catalog. Selecting opens the file again, checks the data that it reads, finds one
variant by its key, and closes the file. Goal: selecting takes at most 5 times as long as reading.
"""

import argparse
import os
import random
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from harness import ROOT, Figure, ratio, run_benchmark, timed

sys.path.insert(0, str(ROOT / "tests" / "bundle" / "programs"))

from made_bundles import make_artifact

from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.bundle.manifest import Entry, Item
from pallasc.specs.bundle.writer import build_bundle

TARGETS = ("a100-sxm", "a6000", "l40s", "h100-sxm", "b200", "b300", "thor", "rtx-pro-6000")
KERNELS = 10


def make_bundle(path: Path, variants: int) -> None:
    """Write a bundle of different variants of ten kernels on eight targets."""
    items = (
        Item(
            f"kernel_{kernel}",
            {"m": 16 * (point + 1), "n": 256 * (point % 7 + 1), "dtype": "bf16"},
            make_artifact(1000 * kernel + point, target=target, shape=(16 * (point + 1), 256)),
        )
        for kernel in range(KERNELS)
        for point in range(max(1, variants // (KERNELS * len(TARGETS))))
        for target in TARGETS
    )
    path.write_bytes(build_bundle(items, level=3))


def read_manifest(path: Path, head_bytes: int, start: int, end: int) -> None:
    """Read the manifest's bytes."""
    descriptor = os.open(path, os.O_RDONLY)
    os.pread(descriptor, head_bytes, 0)
    os.pread(descriptor, end - start, start)
    os.close(descriptor)


def select(path: Path, entry: Entry, *, load: bool) -> None:
    """Open, select one variant, close; `load` reads its artifact and cubin as well."""
    with open_bundle(path) as bundle:
        found = bundle.reader.entry(bundle.reader.find(entry.key))
        if load:
            bundle.artifact(found).cubin()


def measure(options: argparse.Namespace, place: Path) -> Sequence[Figure]:
    """Make the bundle, and time reading, selecting and loading in turn."""
    path = place / "kernels.pallasc"
    make_bundle(path, options.variants)
    with open_bundle(path) as bundle:
        entries, reader = list(bundle.entries()), bundle.reader
        parts = reader.head.head_bytes, reader.catalog.page(0).extent.at, reader.head.body_end
    chosen = random.Random(1).choices(entries, k=options.rounds)
    names = ("read the manifest", "open and select", "open, select and load")
    times: dict[str, list[float]] = {name: [] for name in names}
    for entry in chosen:
        times[names[0]].append(timed(read_manifest, path, *parts))
        times[names[1]].append(timed(select, path, entry, load=False))
        times[names[2]].append(timed(select, path, entry, load=True))
    return [
        Figure("variants", len(entries)),
        Figure("bundle", path.stat().st_size / 1e6, "MB"),
        *(Figure(name, statistics.median(times[name]) * 1e6, "µs") for name in names),
        Figure("open and select / read", ratio(times, names[1], names[0]), goal=5),
        Figure("open, select and load / read", ratio(times, names[2], names[0])),
    ]


if __name__ == "__main__":
    raise SystemExit(run_benchmark(__doc__, measure, variants=10_000, rounds=500))
