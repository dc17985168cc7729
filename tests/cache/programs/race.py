"""Several processes read, publish and spoil the same few things at the same time.

Usage: race.py ROOT PROCESSES OPERATIONS. Prints JSON: hits, and everything that was wrong.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

from content import artifact, blobs, is_right, key, manifest

from pallasc.cache.store import Store

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
    else:
        spoil(store, dice, number)


def work(root: Path, seed: int, operations: int) -> dict[str, Any]:
    """Do all operations of one process."""
    store, dice = Store(root), random.Random(seed)
    tally: dict[str, Any] = {"hits": 0, "puts": 0, "wrong": []}
    for _ in range(operations):
        operate(store, dice, tally)
    return tally


def main() -> None:
    """Run the processes, all waiting at a pipe for the start."""
    root, processes, operations = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    start_read, start_write = os.pipe()
    children, pipes = [], []
    for seed in range(processes):
        result_read, result_write = os.pipe()
        child = os.fork()
        if not child:
            os.close(start_write)
            os.read(start_read, 1)
            os.write(result_write, json.dumps(work(root, seed, operations)).encode())
            os._exit(0)
        os.close(result_write)
        children.append(child)
        pipes.append(result_read)
    os.close(start_write)
    tallies: list[dict[str, Any]] = []
    for pipe in pipes:
        with open(pipe, encoding="utf-8") as file:
            text = file.read()
        tallies.append(json.loads(text) if text else {"hits": 0, "puts": 0, "wrong": ["died"]})
    for child in children:
        os.waitpid(child, 0)
    wrong = [text for tally in tallies for text in tally["wrong"]]
    sums = {name: sum(tally[name] for tally in tallies) for name in ("hits", "puts")}
    print(json.dumps({**sums, "wrong": wrong}))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
