"""Damage the index at random: what it says afterwards must be what the records say.

Usage: index_damage.py ROOT TIMES SEED. Prints JSON: how often each was done, and what was wrong.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import damage
from content import is_right, key, publish

from pallasc.cache import format
from pallasc.cache.evict import Limits
from pallasc.cache.inventory import artifacts, stats, take_inventory
from pallasc.cache.manifests import About, Manifest
from pallasc.cache.prune import prune
from pallasc.cache.store import Store
from pallasc.cache.uses import Session, read_totals

NUMBERS = range(20)


def by_file(change: Callable[[random.Random, Path, Path], None]) -> Callable[..., None]:
    """Return a damage of the index's file."""

    def do(store: Store, dice: random.Random) -> None:
        other = store.root / "other"
        other.write_bytes(dice.randbytes(1000))
        change(dice, store.folder / "stat" / "index", other)

    do.__name__ = change.__name__
    return do


def folder(store: Store, dice: random.Random) -> None:
    """Put a folder in the place of the file."""
    path = store.folder / "stat" / "index"
    path.unlink()
    path.mkdir()
    (path / "something").write_text("in the way")


def change(store: Store, dice: random.Random) -> None:
    """Change what the index says, as anyone with write access to the store can."""
    path, name = store.folder / "stat" / "index", format.sha256(b"pallasc index")
    facts = dice.choice([{}, [], 7, None])
    rows = {f" ac {key(number)}": ["", facts] for number in NUMBERS}
    path.write_bytes(format.encode("index", name, {"facts": rows})[0])


DAMAGES = [*map(by_file, damage.DAMAGES), folder, change]


def says(store: Store) -> dict[str, Any]:
    """Return everything that follows from the records."""
    figures = stats(store).to_json()
    for name in ("quarantined", "warnings"):
        figures.pop(name)
    return {"figures": figures, "listed": artifacts(store), "hits": read_totals(store).hits}


def once(store: Store, dice: random.Random, truth: dict[str, Any]) -> tuple[str, list[str]]:
    """Damage the index, and compare what is said, and what pruning takes."""
    damage_it = dice.choice(DAMAGES)
    damage_it(store, dice)
    wrong = []
    try:
        if (said := says(store)) != truth:
            wrong.append(f"it says {said} instead of {truth}")
        pruned = prune(store, limits=Limits(grace_s=0))
        if pruned.records or pruned.blobs or pruned.manifests:
            wrong.append(f"it removed {pruned.to_json()}")
    except Exception:
        wrong.append(traceback.format_exc())
    place = store.folder / "stat" / "index"
    if place.is_dir():
        shutil.rmtree(place)
        take_inventory(store)
    return damage_it.__name__, [f"{damage_it.__name__}: {text}" for text in wrong]


def main() -> None:
    """Run the experiment; the manifests say who asked for what, so that nothing is lost."""
    store, dice = Store(Path(sys.argv[1])), random.Random(int(sys.argv[3]))
    with Session(store) as session:
        for number in NUMBERS:
            publish(store, number)
            about = About(f"kernel {number}", "sm_90a", {"n": number})
            told = {**about.to_json(), "seconds": 1.5}
            store.put_manifest(key(number), Manifest(action=key(number), about=told))
            session.hit(key(number))
    for number in NUMBERS:  # after the times of the log, which a new index no longer knows
        later_ns = time.time_ns() + (number + 1) * 10**9
        os.utime(store.path("ac", key(number)), ns=(later_ns, later_ns))
    truth, done, wrong = says(store), Counter[str](), list[str]()
    for _ in range(int(sys.argv[2])):
        name, found = once(store, dice, truth)
        done[name] += 1
        wrong += found
    for number in NUMBERS:
        stored = store.get_artifact(key(number), verify=True)
        if stored is None or not is_right(stored, number):
            wrong.append(f"a wrong answer for {number}")
    print(json.dumps({"damages": sum(done.values()), "done": done, "wrong": wrong[:20]}))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
