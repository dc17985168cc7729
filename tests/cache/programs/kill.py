"""Kill publishing processes at random moments, prune, and look at what is left.

Usage: kill.py ROOT KILLS SEED. Prints JSON: how many kills there were, how many hit a process in
the middle of its work, and everything that was wrong. It goes on until enough have hit.
"""

import json
import os
import random
import select
import signal
import sys
from pathlib import Path
from typing import Never

from content import is_right, key, manifest, publish

from pallasc.cache.evict import Limits
from pallasc.cache.inventory import stats
from pallasc.cache.prune import prune
from pallasc.cache.store import Store
from pallasc.cache.uses import Session

KEYS = 12
LEAST_SHARE = 0.15
"""How many of the kills have to hit."""
TIDY = Limits(max_bytes=None, grace_s=0)


def publish_for_ever(root: Path, seed: int, ready: int) -> Never:
    """Publish, use and spoil the same few artifacts again and again, until killed."""
    store, dice = Store(root), random.Random(seed)
    os.write(ready, b"x")
    while True:
        number = dice.randrange(KEYS)
        with store.single_flight(key(number)), Session(store) as session:
            publish(store, number)
            session.made(key(number), seconds=1.0)
        if dice.random() < 0.5:
            store.path(dice.choice(["ac", "man"]), key(number)).unlink(missing_ok=True)
        if dice.random() < 0.1:
            stats(store)


def left_over(store: Store) -> list[str]:
    """Prune, and return what a dead process left all the same."""
    prune(store, limits=TIDY)
    folders = [store.folder / name for name in ("tmp", "leases", "locks")]
    again = prune(store, limits=TIDY, dry_run=True)
    return [
        *(
            f"{path.relative_to(store.folder)} is left"
            for folder in folders
            for path in folder.glob("*")
        ),
        *(f"blob {name} is left" for name in again.plan.orphans),
        *again.warnings,
    ]


def kill_one(root: Path, seed: int, pause_s: float) -> bool:
    """Start a publisher and kill it after `pause_s`; False if it had ended before."""
    ready, ready_there = os.pipe()
    child = os.fork()
    if not child:
        publish_for_ever(root, seed, ready_there)
    os.read(ready, 1)
    select.select([], [], [], pause_s)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(ready)
    os.close(ready_there)
    return os.WIFSIGNALED(status)


def wrong_answers(root: Path) -> list[str]:
    """Read everything; what is not a miss must be right."""
    store, wrong = Store(root), []
    for number in range(KEYS):
        found = store.get_artifact(key(number), verify=True)
        if found is not None and not is_right(found, number):
            wrong.append(f"artifact {number}")
        if store.get_manifest(key(number)) not in (None, manifest(number)):
            wrong.append(f"manifest {number}")
    return wrong + store.warnings


def not_healed(root: Path) -> list[str]:
    """Publish everything once more; then everything must be a hit."""
    store, wrong = Store(root), []
    for number in range(KEYS):
        publish(store, number)
        found = store.get_artifact(key(number), verify=True)
        if found is None or not is_right(found, number):
            wrong.append(f"artifact {number}")
        if store.get_manifest(key(number)) != manifest(number):
            wrong.append(f"manifest {number}")
    return wrong + store.warnings


def main() -> None:
    """Run the experiment."""
    root, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    dice = random.Random(seed)
    number, interrupted, wrong, longest_s = 0, 0, [], 0.02
    while number < kills or interrupted < LEAST_SHARE * kills:
        number += 1
        if not kill_one(root, dice.randrange(2**32), dice.uniform(0, longest_s)):
            wrong.append(f"publisher {number} ended by itself")
        folder = root / "v1"
        # A lease is there while something is used, a temporary while something is published.
        is_hit = any(any((folder / name).glob("*")) for name in ("tmp", "leases"))
        interrupted += is_hit
        # On a busy machine a process has not got far in this time.
        longest_s = min(10.0, longest_s * (1.0 if is_hit else 1.02))
        found = [*wrong_answers(root), *left_over(Store(root))]
        wrong += [f"after kill {number}: {text}" for text in found]
    wrong += [f"not healed: {text}" for text in not_healed(root)]
    told = {"kills": number, "interrupted": interrupted, "wrong": wrong}
    print(json.dumps(told))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
