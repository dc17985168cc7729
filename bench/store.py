"""A verified hit of 64 kB, a miss, and a put.

Goal: a verified hit takes at most 1.25 times as long as reading the same bytes and hashing them
with plain Python. Each read is of another file, because a second read of a file would find its
bytes in the CPU's caches.
"""

import argparse
import hashlib
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from harness import Figure, run_benchmark, timed

from pallasc.cache.store import Store

SIZE, KEYS = 65_536, 64


def measure(options: argparse.Namespace, place: Path) -> Sequence[Figure]:
    """Time hits, plain reads, and misses in turn."""
    store = Store(place / "store")
    keys = [hashlib.sha256(bytes([number])).hexdigest() for number in range(KEYS)]
    times: dict[str, list[float]] = {name: [] for name in ("put", "hit", "plain", "miss")}
    for key in keys:
        blobs = {"cubin": os.urandom(SIZE)}
        times["put"].append(timed(store.put_artifact, key, {"kernels": []}, blobs))
    files = [file_of(store, key) for key in keys]
    for turn in range(options.rounds):
        key, file = keys[turn % KEYS], files[(turn + KEYS // 2) % KEYS]
        missing = hashlib.sha256(f"missing {turn}".encode()).hexdigest()
        times["hit"].append(timed(read_hit, store, key))
        times["plain"].append(timed(read_and_hash, file))
        times["miss"].append(timed(store.get_artifact, missing, verify=True))
    found = {name: statistics.median(own) for name, own in times.items()}
    return [
        Figure("verified hit / plain read and hash", found["hit"] / found["plain"], goal=1.25),
        *(Figure(f"{name}, median", median_s * 1e6, "µs") for name, median_s in found.items()),
        *(
            Figure(f"{name}, 99th percentile", statistics.quantiles(own, n=100)[98] * 1e6, "µs")
            for name, own in times.items()
        ),
    ]


def read_hit(store: Store, key: str) -> bytes | None:
    """Return the bytes of a verified hit."""
    found = store.get_artifact(key, verify=True)
    return found and found.blob("cubin")


def file_of(store: Store, key: str) -> str:
    """Return the file with the bytes."""
    found = store.get_artifact(key)
    if found is None:
        raise SystemExit(f"the store has lost {key}")
    return str(store.path("cas", found.record.blobs["cubin"].digest))


def read_and_hash(path: str) -> str:
    """Read and hash the same bytes with plain Python."""
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__, measure, rounds=2000))
