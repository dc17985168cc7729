"""Let system calls below the store fail or lie, one kind in each case, and judge every answer.

Usage: faults.py ROOT CASES SEED, with the library made from faults.c preloaded (`LD_PRELOAD`).
Prints JSON: the cases in which something really was spoilt, how many calls of each kind that were,
and everything that was wrong. A case in which nothing was spoilt does not count.
"""

import contextlib
import ctypes
import errno
import json
import random
import sys
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from content import add, artifact, blobs, is_right, key, manifest, publish
from together import together

from pallasc.cache.evict import Limits
from pallasc.cache.inventory import stats
from pallasc.cache.prune import merge_packs, prune, tidy
from pallasc.cache.store import Store
from pallasc.cache.uses import Session
from pallasc.cache.verify import verify
from pallasc.errors import ToolError

KEYS = 4
CALLS = ["open", "read", "write", "fsync", "rename", "link", "unlink", "mkdir", "close", "utime"]
ERRORS = ["ENOSPC", "EIO", "EROFS", "EMFILE", "EACCES", "EINTR"]
LIES = ["fail", "short", "nothing", "flip", "zero"]
# Python calls open, read, write and fsync again after EINTR (PEP 475); the others never give it.
WITH_EINTR = {"open", "read", "write", "fsync"}
CAN_LIE = {
    "read": ["short", "flip", "zero", "nothing"],
    "write": ["short", "flip", "zero", "nothing"],
    "fsync": ["nothing"],
    "rename": ["nothing"],
    "link": ["nothing"],
}


@dataclass(frozen=True)
class Case:
    """Which calls fail how: after `passed` of them, `spoilt` many."""

    call: str
    error: str
    lie: str
    passed: int
    spoilt: int

    def __str__(self) -> str:
        how = self.error if self.lie == "fail" else self.lie
        return f"{self.call} {how} after {self.passed}, {self.spoilt} times"


def roll(dice: random.Random) -> Case:
    """Return a random case."""
    call = dice.choice(CALLS)
    passed, spoilt = dice.choice([0, 0, dice.randrange(6), dice.randrange(40)]), 1
    if call in CAN_LIE and dice.random() < 0.4:
        return Case(call, "EIO", dice.choice(CAN_LIE[call]), passed, dice.choice([1, 3, 1000]))
    error = dice.choice(ERRORS)
    if error == "EINTR" and call not in WITH_EINTR:
        error = "EIO"
    spoilt = dice.choice([1, 3, 20]) if error == "EINTR" else dice.choice([1, 2, 1000])
    return Case(call, error, "fail", passed, spoilt)


def build(store: Store, dice: random.Random, *, honest: bool) -> list[str]:
    """Do what a build does, and return what is wrong; what it says to have stored is stored."""
    wrong, stored = [], []
    with Session(store) as session:
        for number in dice.sample(range(KEYS), 2):
            told = store.get_manifest(key(number))
            if told not in (None, manifest(number)):
                wrong.append(f"a wrong manifest for {number}")
            with store.single_flight(key(number), timeout_s=1):
                found = store.get_artifact(key(number), verify=True)
                if found is not None and not is_right(found, number):
                    wrong.append(f"a wrong answer for {number}")
                if found is not None:
                    session.hit(key(number))
                    continue
                if dice.random() < 0.3:
                    with contextlib.suppress(ToolError):
                        added = add(store, number)
                        wrong += [f"{added}"] if added.conflicts else []
                        stored.append(number)
                    session.hit(key(number))
                    continue
                result = store.put_artifact(key(number), artifact(number), blobs(number))
                if result.conflict:
                    wrong.append(f"a conflict about {number}")
                if result.stored:
                    stored.append(number)
                session.made(key(number), seconds=1.0)
            store.put_manifest(key(number), manifest(number))
    library.fault_pause(1)
    if honest:
        gone = [n for n in stored if Store(store.root).get_artifact(key(n), verify=True) is None]
        wrong += [f"{number} was stored, it said" for number in gone]
    library.fault_pause(0)
    return wrong


def care(store: Store, dice: random.Random) -> list[str]:
    """Do what keeps a store in order."""
    choice = dice.randrange(5)
    if choice == 0:
        prune(store, limits=Limits(max_bytes=dice.randrange(100_000), grace_s=0))
    elif choice == 1:
        stats(store)
    elif choice == 2:
        verify(store, repair=dice.random() < 0.5)
    elif choice == 4:
        with contextlib.suppress(OSError):
            merge_packs(store, most=0)
    else:
        tidy(store, limits=Limits(max_bytes=60_000, grace_s=0), now_ns=dice.randrange(2**60))
    return []


def healed(store: Store) -> list[str]:
    """Look at everything, publish it once more; then everything must be a hit."""
    wrong = []
    for number in range(KEYS):
        found = store.get_artifact(key(number), verify=True)
        if found is not None and not is_right(found, number):
            wrong.append(f"a wrong answer for {number} afterwards")
        publish(store, number)
        found = store.get_artifact(key(number), verify=True)
        if found is None or not is_right(found, number):
            wrong.append(f"{number} did not heal")
        if store.get_manifest(key(number)) != manifest(number):
            wrong.append(f"manifest {number} did not heal")
    return wrong


def run(root: Path, case: Case, dice: random.Random) -> tuple[int, list[str]]:
    """Run one case; return how many calls were spoilt, and what was wrong."""
    store = Store(root)
    for number in dice.sample(range(KEYS), dice.randrange(KEYS)):
        for area in ("ac", "man"):
            store.path(area, key(number)).unlink(missing_ok=True)
    number = getattr(errno, case.error)
    library.fault_arm(
        str(store.folder).encode(), CALLS.index(case.call), number, LIES.index(case.lie),
        case.passed, case.spoilt,
    )  # fmt: skip
    try:
        wrong = build(store, dice, honest=case.lie == "fail")
        if dice.random() < 0.5:
            wrong += care(Store(root), dice)
    except Exception:
        wrong = [traceback.format_exc()]
    finally:
        spoilt = library.fault_disarm()
    return spoilt, [f"{case}: {text}" for text in [*wrong, *healed(Store(root))]]


def run_all(root: Path, wanted: int, dice: random.Random) -> dict[str, Any]:
    """Run cases until enough of them really spoilt something."""
    cases, injected, wrong, rolled = Counter[str](), Counter[str](), list[str](), 0
    while cases.total() < wanted:
        case, rolled = roll(dice), rolled + 1
        spoilt, found = run(root, case, dice)
        wrong += found
        if spoilt:
            name = f"{case.call} {case.error if case.lie == 'fail' else case.lie}"
            cases[name] += 1
            injected[name] += spoilt
    return {
        "cases": cases.total(), "injected": injected.total(), "rolled": rolled,
        "by_kind": dict(sorted(injected.items())), "wrong": wrong,
    }  # fmt: skip


def main() -> None:
    """Run the cases in a process of their own, and clear away after it."""
    root, wanted, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    (told,) = together([lambda: run_all(root, wanted, random.Random(seed))])
    left = prune(Store(root), limits=Limits(grace_s=0, quarantine_s=0))
    left_over = [str(path) for name in ("tmp", "leases") for path in (root / "v1" / name).glob("*")]
    told["wrong"] += [*left.warnings, *(f"{path} is left" for path in left_over)]
    told["wrong"] = told["wrong"][:20]
    print(json.dumps(told))
    sys.exit(bool(told["wrong"]))


if __name__ == "__main__":
    library = ctypes.CDLL(None)
    library.fault_arm.argtypes = [ctypes.c_char_p, *[ctypes.c_int] * 3, *[ctypes.c_long] * 2]
    library.fault_disarm.restype = ctypes.c_long
    main()
