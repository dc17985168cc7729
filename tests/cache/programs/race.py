"""Several processes read, publish, spoil and evict the same few things at the same time.

Usage: race.py ROOT PROCESSES OPERATIONS. Prints JSON: hits, and everything that was wrong.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import traceback
from pathlib import Path
from typing import Any

from content import artifact, blobs, is_right, key, manifest
from together import together

from pallasc.cache import pins
from pallasc.cache.limits import Limits
from pallasc.cache.prune import prune, tidy
from pallasc.cache.stats import stats
from pallasc.cache.store import Store
from pallasc.cache.uses import Session
from pallasc.cache.verify import verify
from pallasc.errors import NotCachedError

KEYS = 6


def spoil(store: Store, dice: random.Random, number: int) -> None:
    """Cut a file as a crash of the machine would, or take it away as an eviction would."""
    path = store.path(dice.choice(["ac", "man"]), key(number))
    if dice.random() < 0.5:
        path.unlink(missing_ok=True)
        return
    broken = store.root / f"broken-{os.getpid()}"
    broken.write_bytes(b"pallasc-store 1 artifact")
    if path.parent.is_dir():
        broken.replace(path)


def operate(store: Store, dice: random.Random, tally: dict[str, Any]) -> None:
    """Do one random thing and judge the answer."""
    number, choice = dice.randrange(KEYS), dice.random()
    if choice < 0.45:
        found = store.get_artifact(key(number), verify=dice.random() < 0.5)
        if found is not None:
            tally["hits"] += 1
            blob = found.blob("cubin")
            right = is_right(found, number) if blob is not None else True
            tally["wrong"] += [] if right else [f"artifact {number}"]
    elif choice < 0.6:
        found_manifest = store.get_manifest(key(number))
        if found_manifest is not None:
            tally["hits"] += 1
            right = found_manifest == manifest(number, found_manifest["edition"])
            tally["wrong"] += [] if right else [f"manifest {number}"]
    elif choice < 0.85:
        result = store.put_artifact(key(number), artifact(number), blobs(number))
        tally["puts"] += result.stored
        tally["wrong"] += [f"conflict at {number}"] if result.conflict else []
    elif choice < 0.95:
        store.put_manifest(key(number), manifest(number, dice.randrange(1000)))
    elif choice < 0.98:
        spoil(store, dice, number)
    elif choice < 0.985:
        care(store, dice, number)
    else:
        with Session(store) as session:
            session.hit(key(number), seconds=1.0)


def care(store: Store, dice: random.Random, number: int) -> None:
    """Do what keeps a store in order, without waiting for others who do the same."""
    choice = dice.randrange(6)
    if choice == 0:
        prune(store, limits=Limits(max_bytes=dice.randrange(150_000), grace_s=0), timeout_s=0)
    elif choice == 1:
        tidy(store, limits=Limits(max_bytes=100_000, grace_s=0), now_ns=dice.randrange(2**60))
    elif choice == 2:
        stats(store, timeout_s=0)
    elif choice == 3:
        verify(store, repair=True, timeout_s=0)
    elif choice == 4:
        with contextlib.suppress(NotCachedError):
            pins.pin(store, key(number))
    else:
        pins.unpin(store, key(number))


def work(root: Path, seed: int, operations: int) -> dict[str, Any]:
    """Do all operations of one process; an exception is wrong, whatever it is."""
    store, dice = Store(root), random.Random(seed)
    tally: dict[str, Any] = {"hits": 0, "puts": 0, "wrong": []}
    for _ in range(operations):
        try:
            operate(store, dice, tally)
        except Exception:
            tally["wrong"].append(traceback.format_exc())
    return tally


def main() -> None:
    """Run the processes, all waiting at a pipe for the start."""
    root, processes, operations = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    tallies = together(
        [lambda seed=seed: work(root, seed, operations) for seed in range(processes)]
    )
    wrong = [text for tally in tallies for text in tally["wrong"]]
    sums = {name: sum(tally[name] for tally in tallies) for name in ("hits", "puts")}
    print(json.dumps({**sums, "operations": processes * operations, "wrong": wrong[:20]}))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
