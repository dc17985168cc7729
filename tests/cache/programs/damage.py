"""Damage files of a store at random: every damage must be seen, put away and healed.

Usage: damage.py ROOT MUTATIONS SEED. Prints JSON: how often each was done, and what was wrong.
"""

import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from content import blobs, is_right, key, manifest, publish

from pallasc.cache.format import sha256
from pallasc.cache.store import Store

NUMBERS = range(8)
EVERYTHING = 250
"""After so many mutations all artifacts are read, not only those that the damaged files are of."""


def flip(dice: random.Random, path: Path, other: Path) -> None:
    """Change one bit."""
    data = bytearray(path.read_bytes())
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    path.write_bytes(data)


def cut(dice: random.Random, path: Path, other: Path) -> None:
    """Lose the end."""
    data = path.read_bytes()
    path.write_bytes(data[: dice.randrange(1, len(data))])


def extend(dice: random.Random, path: Path, other: Path) -> None:
    """Add some bytes."""
    path.write_bytes(path.read_bytes() + dice.randbytes(dice.randrange(1, 100)))


def empty(dice: random.Random, path: Path, other: Path) -> None:
    """Lose everything."""
    path.write_bytes(b"")


def zero(dice: random.Random, path: Path, other: Path) -> None:
    """Have zeros in the place of data, as some file systems do after a crash."""
    path.write_bytes(bytes(path.stat().st_size))


def swap(dice: random.Random, path: Path, other: Path) -> None:
    """Exchange two files that are each whole."""
    mine, others = path.read_bytes(), other.read_bytes()
    path.write_bytes(others)
    other.write_bytes(mine)


DAMAGES: list[Callable[[random.Random, Path, Path], None]] = [flip, cut, extend, empty, zero, swap]


def is_whole(store: Store, number: int, wrong: list[str]) -> bool:
    """Read a number's artifact and manifest; tell whether both are hits."""
    found = store.get_artifact(key(number), verify=True)
    told = store.get_manifest(key(number))
    if (found is not None and not is_right(found, number)) or told not in (None, manifest(number)):
        wrong.append(f"a wrong answer for {number}")
    return found is not None and told is not None


def owners(store: Store) -> dict[Path, set[int]]:
    """Return the numbers that each file of the store is of."""
    found: dict[Path, set[int]] = {}
    for number in NUMBERS:
        places = [store.path(area, key(number)) for area in ("ac", "man")]
        places += [store.path("cas", sha256(data)) for data in blobs(number).values()]
        for place in places:
            found.setdefault(place, set()).add(number)
    return found


def mutate(store: Store, dice: random.Random, files: dict[Path, set[int]]) -> tuple[str, list[str]]:
    """Damage one file, or two, and return how, and what was wrong about the answers."""
    damage, (path, other) = dice.choice(DAMAGES), dice.sample(list(files), 2)
    before = path.read_bytes()
    damage(dice, path, other)
    if path.read_bytes() == before:
        return damage.__name__, ["the damage changed nothing"]
    damaged = {path, other} if damage is swap else {path}
    concerned = sorted(set().union(*(files[place] for place in damaged)))
    reader, wrong = Store(store.root), []
    whole = {number: is_whole(reader, number, wrong) for number in concerned}
    if all(whole.values()):
        wrong.append("not seen")
    for number in concerned:
        publish(reader, number)
    # A blob behind a damaged record is not read until the record is made anew.
    wrong += [f"{p} unseen" for p in damaged if not any(p.name in text for text in reader.warnings)]
    for number in concerned:
        if not is_whole(store, number, wrong):
            wrong.append(f"{number} did not heal")
    return damage.__name__, [f"{damage.__name__} of {path.parent.parent.name}: {w}" for w in wrong]


def main() -> None:
    """Run the experiment."""
    store, dice = Store(Path(sys.argv[1])), random.Random(int(sys.argv[3]))
    for number in NUMBERS:
        publish(store, number)
    files, done, wrong = owners(store), Counter[str](), list[str]()
    for turn in range(int(sys.argv[2])):
        name, found = mutate(store, dice, files)
        done[name] += 1
        wrong += found
        if turn % EVERYTHING == 0:
            wrong += [f"{number} lost" for number in NUMBERS if not is_whole(store, number, wrong)]
            for path in (store.folder / "quarantine").iterdir():
                path.unlink()
    print(json.dumps({"mutations": sum(done.values()), "done": done, "wrong": wrong[:20]}))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
