"""Opening a bundle of 10,000 variants and selecting one, against reading its manifest's bytes.

Both take turns in one process, with the file in the page cache: reading is one `pread` of head,
pages and catalog; selecting opens the file anew, checks what it reads, finds one variant by name,
parameters and target, and closes the file. Beside it, what loading that kernel reads of the blobs:
its record, its cubin and their bases, and nothing else.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from harness import Figure, median_ratio, run_benchmark

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "bundle" / "programs"))

from made_bundles import make_artifact

from pallasc.specs.bundle.bundle import Bundle, open_bundle
from pallasc.specs.bundle.manifest import Entry, Item
from pallasc.specs.bundle.reader import MemorySource
from pallasc.specs.bundle.writer import build_bundle

TARGETS = ("a100-sxm", "a6000", "l40s", "h100-sxm", "b200", "b300", "thor", "rtx-pro-6000")
KERNELS = 10


class CountingSource(MemorySource):
    """Bytes that know which of them were read."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.parts: list[tuple[int, int]] = []

    def read(self, at: int, size: int) -> bytes:
        """Return bytes, and note where they lie."""
        self.parts.append((at, size))
        return super().read(at, size)


def make_bundle(path: Path, variants: int) -> None:
    """Write a bundle of so many different variants of ten kernels on eight targets."""
    points = max(1, variants // (KERNELS * len(TARGETS)))
    items = (
        Item(
            f"kernel_{kernel}",
            {"m": 16 * (point + 1), "n": 256 * (point % 7 + 1), "dtype": "bf16"},
            make_artifact(1000 * kernel + point, target=target, shape=(16 * (point + 1), 256)),
        )
        for kernel in range(KERNELS)
        for point in range(points)
        for target in TARGETS
    )
    path.write_bytes(build_bundle(items, level=3))


def manifest_place(path: Path) -> tuple[int, int, int]:
    """Return the bytes of the head, and where pages and catalog begin and end."""
    with open_bundle(path) as bundle:
        reader = bundle.reader
        return reader.head.head_bytes, reader.catalog.page(0).extent.at, reader.head.body_end


def read_manifest(path: Path, head_bytes: int, start: int, end: int) -> float:
    """Read the manifest's bytes and return the seconds that took."""
    began = time.perf_counter()
    descriptor = os.open(path, os.O_RDONLY)
    os.pread(descriptor, head_bytes, 0)
    os.pread(descriptor, end - start, start)
    os.close(descriptor)
    return time.perf_counter() - began


def select(path: Path, entry: Entry) -> float:
    """Open, select one variant, close, and return the seconds that took."""
    params = dict(entry.params)
    began = time.perf_counter()
    with open_bundle(path) as bundle:
        bundle.select(entry.name, params, entry.target)
    return time.perf_counter() - began


def load(path: Path, entry: Entry) -> float:
    """Do the same, and read its artifact and cubin as well."""
    params = dict(entry.params)
    began = time.perf_counter()
    with open_bundle(path) as bundle:
        bundle.artifact(bundle.select(entry.name, params, entry.target)).cubin()
    return time.perf_counter() - began


def bytes_touched(data: bytes, entry: Entry) -> tuple[int, int]:
    """Return how many bytes of blobs are read for a kernel, and how many are not its own."""
    source = CountingSource(data)
    bundle = Bundle(source, "the bundle")
    bundle.artifact(bundle.select(entry.name, dict(entry.params), entry.target)).cubin()
    reader = bundle.reader
    own = set()
    for blob in (entry.record, *(number for number in entry.blobs if number is not None)):
        number, step = blob, -1
        while step:
            row = reader.row(number)
            own.add((row.extent.at, row.extent.size))
            step = row.step
            number -= step
    blobs = range(reader.head.head_bytes + 1, reader.catalog.page(0).extent.at)
    read = [part for part in source.parts if part[0] in blobs or part in own]
    return sum(size for _, size in read), sum(size for at, size in read if (at, size) not in own)


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Make the bundle and take the figures."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.pallasc"
        make_bundle(path, options.variants)
        with open_bundle(path) as bundle:
            entries = list(bundle.entries())
        chosen = random.Random(1).choices(entries, k=options.rounds)
        place = manifest_place(path)
        reads, selections, loads = [], [], []
        for entry in chosen:
            reads.append(read_manifest(path, *place))
            selections.append(select(path, entry))
            loads.append(load(path, entry))
        data = path.read_bytes()
        touched = [bytes_touched(data, entry) for entry in chosen[:50]]
    return [
        Figure("variants", len(entries)),
        Figure("bundle", len(data) / 1e6, "MB"),
        Figure("manifest", (place[2] - place[1] + place[0]) / 1e6, "MB"),
        Figure("read the manifest's bytes", statistics.median(reads) * 1e6, "µs"),
        Figure("open and select", statistics.median(selections) * 1e6, "µs"),
        Figure("open, select and load", statistics.median(loads) * 1e6, "µs"),
        Figure("open and select / read", median_ratio(selections, reads), goal=5),
        Figure("open, select and load / read", median_ratio(loads, reads)),
        Figure("blobs read for one kernel", statistics.mean(t[0] for t in touched), "bytes"),
        Figure("blobs read that are not its own", sum(t[1] for t in touched), "bytes", goal=0),
    ]


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--variants", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=500)


if __name__ == "__main__":
    raise SystemExit(run_benchmark(__doc__ or "", measure, _options))
