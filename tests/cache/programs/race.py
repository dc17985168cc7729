"""Several processes read, publish, spoil and evict the same few things at the same time.

Usage: race.py ROOT PROCESSES OPERATIONS. Prints JSON: hits, puts, packs, blobs lost after an
unverified hit, and everything that was wrong.
"""

import contextlib
import json
import os
import random
import sys
import traceback
from pathlib import Path
from typing import Any

from content import add, artifact, blobs, key, manifest
from together import together

from pallasc.cache.evict import Limits
from pallasc.cache.inventory import stats
from pallasc.cache.prune import merge_packs, prune, tidy
from pallasc.cache.store import Store
from pallasc.cache.uses import Session, read_totals
from pallasc.cache.verify import verify

KEYS = 6


def spoil(store: Store, dice: random.Random, number: int) -> None:
    """Cut a file as a crash of the machine would, or take it away as an eviction would."""
    if dice.random() < 0.1:
        for place in (store.folder / "packs").glob("*"):
            with contextlib.suppress(OSError):
                os.truncate(place, dice.randrange(30_000))
            return
    path = store.path(dice.choice(["ac", "man"]), key(number))
    if dice.random() < 0.5:
        path.unlink(missing_ok=True)
        return
    broken = store.root / f"broken-{os.getpid()}"
    broken.write_bytes(b"pallasc-store 1 artifact")
    if path.parent.is_dir():
        broken.replace(path)


def look_up(store: Store, number: int, tally: dict[str, Any], *, verify: bool) -> None:
    """Get an artifact and judge it.

    A hit that was verified is whole. Of another one a blob may be gone by the time it is asked for,
    which counts as `lost`; other bytes than were published are wrong in either case.
    """
    found = store.get_artifact(key(number), verify=verify)
    if found is None:
        return
    tally["hits"] += 1
    wanted = blobs(number)
    if found.artifact != artifact(number) or found.names != sorted(wanted):
        tally["wrong"].append(f"another record for {number}")
    for name, data in wanted.items():
        given = found.blob(name)
        if given is None:
            tally["lost"] += 1
            tally["wrong"] += [f"a verified hit for {number} lacks {name}"] if verify else []
        elif given != data:
            tally["wrong"].append(f"other bytes for {name} of {number}, verified: {verify}")


def operate(store: Store, dice: random.Random, tally: dict[str, Any]) -> None:
    """Do one random thing and judge the answer."""
    number, choice = dice.randrange(KEYS), dice.random()
    if choice < 0.45:
        look_up(store, number, tally, verify=dice.random() < 0.5)
    elif choice < 0.6:
        found_manifest = store.get_manifest(key(number))
        if found_manifest is not None:
            tally["hits"] += 1
            right = found_manifest == manifest(number, int(found_manifest.variant))
            tally["wrong"] += [] if right else [f"manifest {number}"]
    elif choice < 0.85:
        result = store.put_artifact(key(number), artifact(number), blobs(number))
        tally["puts"] += result.stored
        tally["wrong"] += [f"conflict at {number}"] if result.conflict else []
    elif choice < 0.87:
        added = add(store, number, dice.randrange(KEYS))
        tally["packs"] += bool(added.artifacts)
        tally["wrong"] += [f"{added}"] if added.conflicts else []
    elif choice < 0.95:
        store.put_manifest(key(number), manifest(number, dice.randrange(1000)))
    elif choice < 0.98:
        spoil(store, dice, number)
    elif choice < 0.985:
        care(store, dice)
    else:
        with Session(store) as session:
            session.hit(key(number), seconds=1.0)
        tally["used"] += 1


def care(store: Store, dice: random.Random) -> None:
    """Do what keeps a store in order, without waiting for others who do the same."""
    choice = dice.randrange(5)
    if choice == 0:
        prune(store, limits=Limits(max_bytes=dice.randrange(150_000), grace_s=0))
    elif choice == 1:
        tidy(store, limits=Limits(max_bytes=100_000, grace_s=0), now_ns=dice.randrange(2**60))
    elif choice == 2:
        stats(store)
    elif choice == 3:
        verify(store, repair=True)
    else:
        merge_packs(store, most=1)


def work(root: Path, seed: int, operations: int) -> dict[str, Any]:
    """Do all operations of one process; an exception is wrong, whatever it is."""
    store, dice = Store(root), random.Random(seed)
    tally: dict[str, Any] = {"hits": 0, "puts": 0, "packs": 0, "lost": 0, "used": 0, "wrong": []}
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
    names = ("hits", "puts", "packs", "lost")
    sums = {name: sum(tally[name] for tally in tallies) for name in names}
    used, counted = sum(tally["used"] for tally in tallies), read_totals(Store(root)).hits
    wrong += [] if used == counted else [f"{counted} of {used} hits were counted"]
    print(json.dumps({**sums, "operations": processes * operations, "wrong": wrong[:20]}))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
