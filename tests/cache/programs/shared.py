"""Two users of one group share a store in which both have the same rights, whatever their umask.

Usage: shared.py, as root. Prints JSON: the steps that were done, and everything that was wrong.
"""

import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import content
import zstandard  # noqa: F401  (likewise)
from content import artifact, blobs, is_right, key, manifest, publish

from pallasc.cache.evict import Limits
from pallasc.cache.format import ARTIFACTS
from pallasc.cache.inventory import stats, take_inventory
from pallasc.cache.prune import clear, prune
from pallasc.cache.store import Store
from pallasc.cache.uses import Session, read_totals
from pallasc.cache.verify import verify

ANNE, BERT, GROUP = 64_001, 64_002, 64_000
UMASKS = {ANNE: 0o022, BERT: 0o077}
ROOM = Limits(max_bytes=None, grace_s=0)
NOTHING = Limits(max_bytes=1, grace_s=0)

Step = Callable[[Store], object]


def publish_all(numbers: tuple[int, ...]) -> Step:
    """Return a step that publishes artifacts and their manifests."""

    def step(store: Store) -> list[str]:
        with Session(store) as session:
            for number in numbers:
                publish(store, number)
                session.made(key(number), seconds=1.0)
        return missing(store, numbers)

    return step


def missing(store: Store, numbers: tuple[int, ...]) -> list[str]:
    """Use artifacts as a build does; return what is not as it should be."""
    wrong = []
    with Session(store) as session:
        for number in numbers:
            found = store.get_artifact(key(number), verify=True)
            if found is None or not is_right(found, number):
                wrong.append(f"{number} is no hit")
            if store.get_manifest(key(number)) != manifest(number):
                wrong.append(f"the manifest of {number} is no hit")
            session.hit(key(number), seconds=1.0)
    return wrong


def differing(what: str, is_: object, should: object) -> list[str]:
    """Return a sentence where something is not as it should be."""
    return [] if is_ == should else [f"{what}: {is_} instead of {should}"]


def count(entries: int, hits: int) -> Step:
    """Return a step that asks for the statistics, which needs the index."""

    def step(store: Store) -> list[str]:
        found = stats(store)
        counted = found.entries, read_totals(store).hits
        wrong = differing("entries and hits", counted, (entries, hits))
        read = take_inventory(store).read
        return [*wrong, *found.warnings, *differing("files that the index lacks", read, 0)]

    return step


def spoil(store: Store) -> None:
    """Damage a blob of one's own."""
    place = store.path("cas", store.get_artifact(key(2)).record.blobs["cubin"].digest)  # type: ignore[union-attr]
    place.write_bytes(b"damaged")


def heal(store: Store) -> list[str]:
    """Miss what the other one damaged, and publish it again."""
    found = store.get_artifact(key(2), verify=True)
    wrong = differing("a damaged hit", found, None)
    warned, store.warnings = store.warnings, []
    wrong += differing("warnings of the damage", len(warned), 2)
    result = store.put_artifact(key(2), artifact(2), blobs(2))
    return [*wrong, *differing("stored again", result.stored, True)]


def die(store: Store) -> None:
    """Be killed while something is held, written and locked."""
    Session(store).hit(key(1))
    (store.folder / "tmp" / f"{next((store.folder / 'leases').iterdir()).name}").write_bytes(b"x")
    store.single_flight(key(1)).__enter__()
    os.kill(os.getpid(), signal.SIGKILL)


def clean_up(store: Store) -> list[str]:
    """Take the other one's lock over, and clear away what it left."""
    with store.single_flight(key(1), timeout_s=5) as held:
        wrong = differing("the lock of a dead process", held, True)
    pruned = prune(store, limits=ROOM)
    left = pruned.leftovers
    return [
        *wrong, *pruned.warnings,
        *differing("leftovers", (left.temporaries, left.leases), (1, 1)),
    ]  # fmt: skip


def check(store: Store) -> list[str]:
    """Verify everything, able to repair."""
    return [str(finding) for finding in verify(store, repair=True).findings]


def kept(store: Store) -> bool:
    """Tell whether one artifact is there."""
    return store.get_artifact(key(1), verify=True) is not None


def add(*numbers: int) -> Step:
    """Return a step that adds a pack of some numbers."""

    def step(store: Store) -> list[str]:
        return differing("added", content.add(store, *numbers).artifacts, len(numbers))

    return step


def put_away(number: int) -> Step:
    """Return a step that has an artifact in a pack count as missing, whoever added that."""

    def step(store: Store) -> list[str]:
        store.put_away(ARTIFACTS, key(number), "nobody vouches for it", None)
        store.warnings = []
        return differing("put away", Store(store.root).get_artifact(key(number)), None)

    return step


STEPS: tuple[tuple[int, Step], ...] = (
    (ANNE, publish_all((1, 2))),
    (BERT, publish_all((3, 11))),  # 11 shares a blob with 1
    (ANNE, lambda store: missing(store, (1, 2, 3, 11))),
    (ANNE, lambda store: stats(store) and None),
    (BERT, count(4, 8)),
    (ANNE, spoil),
    (BERT, heal),
    (ANNE, lambda store: missing(store, (1, 2, 3, 11))),
    (ANNE, die),
    (BERT, clean_up),
    (ANNE, add(4, 5)),
    (BERT, lambda store: missing(store, (4, 5))),
    (BERT, put_away(4)),
    (ANNE, lambda store: prune(store, limits=NOTHING, keep=frozenset({key(1)})).warnings),
    (BERT, lambda store: [*differing("kept", kept(store), True), *check(store)]),
    (BERT, lambda store: [*clear(store).warnings, *differing("left", stats(store).entries, 0)]),
    (ANNE, publish_all((1,))),
)


def run(root: Path, user: int, step: Step) -> list[str]:
    """Do a step as a user; return what was wrong, the store's warnings too."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        os.write(write, json.dumps(done(root, user, step)).encode())
        os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8") as file:
        text = file.read()
    os.waitpid(child, 0)
    wrong: list[str] = json.loads(text) if text else ["the process died"]
    return wrong


def done(root: Path, user: int | None, step: Step) -> list[Any]:
    """Do a step in this process."""
    try:
        if user is not None:
            os.setgroups([GROUP])
            os.setgid(user)
            os.setuid(user)
            os.umask(UMASKS[user])
        store = Store(root)
        wrong = step(store) or []
        return [*list(wrong), *store.warnings]  # type: ignore[call-overload]
    except Exception:
        return [traceback.format_exc()]


def main() -> None:
    """Run all steps once without another user, so that all is imported, then in a shared folder."""
    told: dict[str, Any] = {"steps": 0, "wrong": []}
    with tempfile.TemporaryDirectory() as name:
        for _, step in STEPS:
            if step is not die:
                done(Path(name), None, step)
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        root = Path(name) / "shared"
        root.mkdir()
        os.chown(root, -1, GROUP)
        root.chmod(0o2775)
        for number, (user, step) in enumerate(STEPS):
            wrong = run(root, user, step)
            wrong = differing("ended", wrong, ["the process died"]) if step is die else wrong
            told["wrong"] += [f"step {number} of {user}: {text}" for text in wrong]
            told["steps"] += 1
    print(json.dumps(told))
    sys.exit(bool(told["wrong"]))


if __name__ == "__main__":
    main()
