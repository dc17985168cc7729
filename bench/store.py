"""The store: a verified hit, a miss and a durable put of 64 kB, and the care of many records.

Goal: a verified hit takes at most 1.25 times as long as reading the same bytes and hashing them
with plain Python. Also: the caches of JAX, Triton and cuda-core, where they are installed, and
whether they answer with damaged bytes after a bit flip, a cut, or the loss of everything.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from harness import Figure, run_benchmark
from store_rivals import DAMAGES, Rival, rivals, serves_damaged

from pallasc.cache import format
from pallasc.cache.evict import Limits
from pallasc.cache.inventory import take_inventory
from pallasc.cache.prune import prune
from pallasc.cache.store import Store

SIZE = 65_536
KEYS = 64


class Ours:
    """The store with the interface of its rivals; every hit is verified."""

    name = "pallasc"

    def __init__(self, folder: Path) -> None:
        self._store = Store(folder)

    def put(self, key: str, data: bytes) -> None:
        """Store bytes, durably."""
        if not self._store.put_artifact(key, {"kernels": []}, {"cubin": data}).stored:
            raise SystemExit("the store stored nothing")

    def get(self, key: str) -> bytes | None:
        """Return the bytes, or None for a miss."""
        found = self._store.get_artifact(key, verify=True)
        return None if found is None else found.blob("cubin")

    def place(self, key: str) -> Path:
        """Return the file that holds the bytes."""
        found = self._store.get_artifact(key)
        if found is None:
            raise SystemExit(f"the store lost {key}")
        return self._store.path("cas", found.record["blobs"]["cubin"]["digest"])


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Measure everything in one run."""
    with tempfile.TemporaryDirectory(prefix="pallasc-bench-", dir=options.folder) as name:
        folder = Path(name)
        figures = [*_against_plain_python(folder / "plain", options.rounds)]
        figures += _one(Ours(folder / "store"), options.rounds)
        for rival in rivals(folder):
            figures += _one(rival, options.rounds)
        return [*figures, *_many(folder / "many", options.records)]


def _against_plain_python(folder: Path, rounds: int) -> list[Figure]:
    """Time a verified hit and a plain read in turn, so that a noisy machine slows both.

    Each reads another file, or the second would find the first one's bytes in the CPU's caches.
    """
    ours, keys = Ours(folder), [hashlib.sha256(bytes([n])).hexdigest() for n in range(KEYS)]
    for key in keys:
        ours.put(key, os.urandom(SIZE))
    places = [str(ours.place(key)) for key in keys]

    def read_and_hash(place: str) -> str:
        with open(place, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()

    hits_s, plain_s = [], []
    for turn in range(rounds):
        hits_s.append(_time(lambda key=keys[turn % KEYS]: ours.get(key)))
        other = places[(turn + KEYS // 2) % KEYS]
        plain_s.append(_time(lambda place=other: read_and_hash(place)))
    ratio = statistics.median(hits_s) / statistics.median(plain_s)
    return [
        Figure("verified hit / plain read and hash", ratio, goal=1.25),
        *_percentiles("plain read and hash", plain_s),
    ]


def _one(rival: Rival, rounds: int) -> list[Figure]:
    """Measure one cache: put, hit, miss, and what it answers after damage."""
    puts_s, hits_s, misses_s, keys = [], [], [], []
    for number in range(max(KEYS, rounds // 10)):
        keys.append(hashlib.sha256(f"{rival.name} {number}".encode()).hexdigest())
        data = os.urandom(SIZE)
        puts_s.append(_time(lambda key=keys[-1], data=data: rival.put(key, data)))
    for turn in range(rounds):
        key = keys[turn % KEYS]
        hits_s.append(_time(lambda key=key: rival.get(key)))
        missing = hashlib.sha256(f"missing {turn}".encode()).hexdigest()
        misses_s.append(_time(lambda key=missing: rival.get(key)))
    served = [
        Figure(
            f"{rival.name}: serves damaged bytes after {name}", float(serves_damaged(rival, how))
        )
        for name, how in DAMAGES.items()
    ]
    if rival.name == Ours.name:
        served = [replace(figure, goal=0.0) for figure in served]
    return [
        *_percentiles(f"{rival.name}: hit", hits_s),
        *_percentiles(f"{rival.name}: miss", misses_s),
        *_percentiles(f"{rival.name}: put", puts_s),
        *served,
    ]


def _many(folder: Path, records: int) -> list[Figure]:
    """Time the index and pruning of a store of many artifacts, each with a manifest and a blob."""
    store = Store(folder)
    began = time.perf_counter()
    for number in range(records):
        _write(store, number)
    print(f"{records} artifacts written in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    rebuild_s = _time(lambda: _count(store, records))
    again_s = _time(lambda: _count(store, records))
    keep = Limits(max_bytes=None, grace_s=0)
    look_s = _time(lambda: prune(store, limits=keep, dry_run=True))
    size = prune(store, limits=keep).plan.bytes_before
    began = time.perf_counter()
    pruned = prune(store, limits=Limits(max_bytes=size * 9 // 10, grace_s=0))
    prune_s = time.perf_counter() - began
    if abs(pruned.records - records / 10) > records / 50 + 2 or pruned.warnings:
        raise SystemExit(f"pruning took {pruned.records} of {records}: {pruned.warnings}")
    return [
        Figure("records", float(records)),
        Figure("rebuild of the index", rebuild_s, "s"),
        Figure("index brought up to date", again_s, "s"),
        Figure("prune, nothing to do", look_s, "s"),
        Figure("prune of a tenth", prune_s, "s"),
    ]


def _write(store: Store, number: int) -> None:
    """Write an artifact as the store would, but without syncing it."""
    blob = f"cubin {number}".encode() * 8
    key, digest = format.sha256(f"key {number}".encode()), format.sha256(blob)
    body = {
        "artifact": {"kernels": [{"cubin": "cubin"}], "plan": list(range(40))},
        "blobs": {"cubin": {"digest": digest, "size": len(blob)}},
    }
    told = {"action": key, "about": {"name": f"kernel{number % 100}", "target": "h100-sxm",
            "params": {"n": number}, "seconds": 1.0}}  # fmt: skip
    request = format.sha256(f"request {number}".encode())
    for area, name, data in (
        (format.BLOBS, digest, blob),
        (format.ARTIFACTS, key, format.encode("artifact", key, body)[0]),
        (format.MANIFESTS, request, format.encode("manifest", request, told)[0]),
    ):
        path = store.path(area, name)
        try:
            path.write_bytes(data)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        if area != format.MANIFESTS:
            os.utime(path, (number, number))


def _count(store: Store, records: int) -> None:
    if len(take_inventory(store).records) != records:
        raise SystemExit("the inventory does not have all records")


def _time(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _percentiles(name: str, times_s: Sequence[float]) -> list[Figure]:
    cuts = statistics.quantiles(times_s, n=100)
    return [
        Figure(f"{name}, median", statistics.median(times_s) * 1e6, "µs"),
        Figure(f"{name}, 99th percentile", cuts[98] * 1e6, "µs"),
    ]


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=2000, help="how often each is timed")
    parser.add_argument("--records", type=int, default=10_000, help="artifacts to index and prune")
    parser.add_argument("--folder", help="where the stores lie (default: the temporary folder)")


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", measure, _options))
