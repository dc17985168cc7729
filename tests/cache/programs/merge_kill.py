"""Kill imports of exported stores at random moments; the store must verify, a last one be whole.

Usage: merge_kill.py ROOT KILLS SEED. Prints JSON: how many kills there were, how many hit an import
in the middle of its work, and everything that was wrong. It goes on until enough have hit.
"""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import signal
import sys
import time
from pathlib import Path
from unittest import mock

from content import is_right, key, manifest, publish

from pallasc.cache.prune import merge_packs
from pallasc.cache.store import Store
from pallasc.cache.transfer import export_file, import_file
from pallasc.cache.verify import verify

KEYS = 20
LEAST_SHARE = 0.125
"""How many of the kills have to hit."""


def merge(target: Path, sources: list[Path]) -> None:
    """Import files, then merge their packs."""
    store = Store(target)
    for source in sources:
        import_file(store, source)
    merge_packs(store, most=1)


def kill_one(target: Path, sources: list[Path], pause_s: float) -> bool:
    """Start imports and kill them after `pause_s`; False if they had ended before."""
    ready, ready_there = os.pipe()
    child = os.fork()
    if not child:
        os.write(ready_there, b"x")
        merge(target, sources)
        os._exit(0)
    os.read(ready, 1)
    select.select([], [], [], pause_s)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(ready)
    os.close(ready_there)
    return os.WIFSIGNALED(status)


def faults(root: Path) -> list[str]:
    """Return what is wrong in a store: no finding, and no answer that is not right."""
    store = Store(root)
    wrong = [f"{finding.path}: {finding.reason}" for finding in verify(store).findings]
    for number in range(KEYS):
        found = store.get_artifact(key(number), verify=True)
        if found is not None and not is_right(found, number):
            wrong.append(f"artifact {number}")
        if store.get_manifest(key(number)) not in (None, manifest(number)):
            wrong.append(f"manifest {number}")
    return wrong + store.warnings


def run(root: Path, kills: int, seed: int) -> tuple[int, list[str]]:
    """Kill imports into a store; return how many were at work, and what was wrong."""
    dice = random.Random(seed)
    stores, target = [root / "one", root / "two"], root / "target"
    for number in range(KEYS):
        publish(Store(stores[number % 2]), number)
        publish(Store(stores[0]), number % 5)
    sources = [store.with_suffix(".pack") for store in stores]
    with mock.patch("pallasc.cache.pack_writer.FRAME_BYTES", 50_000):
        for store, source in zip(stores, sources, strict=True):
            export_file(Store(store), source)
    began_s = time.perf_counter()
    merge(target, sources)
    whole_s = time.perf_counter() - began_s
    number, interrupted, wrong = 0, 0, []
    while number < kills or interrupted < LEAST_SHARE * kills:
        number += 1
        if dice.random() < 0.5:
            shutil.rmtree(target, ignore_errors=True)
        is_hit = kill_one(target, sources, dice.uniform(0, whole_s))
        interrupted += is_hit
        whole_s *= 1.02 if is_hit else 0.9
        found = faults(target)
        wrong += [f"after kill {number}: {text}" for text in found]
    merge(target, sources)
    whole = Store(target)
    wrong += [f"not whole: {n}" for n in range(KEYS) if not whole.get_artifact(key(n), verify=True)]
    return interrupted, wrong


def main() -> None:
    """Run the experiment."""
    root, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    interrupted, wrong = run(root, kills, seed)
    print(json.dumps({"kills": kills, "interrupted": interrupted, "wrong": wrong}))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
