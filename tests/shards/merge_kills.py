"""Merges that are killed at random moments: the store verifies, and the next merge completes it.

`run` is used by the tests with a few kills. Each process is forked
from this one, so that it is busy with merging from its first moment on. It kills itself before or
after a call of some function, of C or Python: which one does not depend on the machine.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from made_parts import Parts

from pallasc.cache.store import Store
from pallasc.cache.upkeep.verify import verify
from pallasc.compiler.shards.join import Joined, join, publish

_SHARDS, _VARIANTS = 3, 90
_PACK_BYTES = 2000
_ROUND = 5
"""Kills of merges into one store before it is completed, and made anew."""


@dataclass
class Outcome:
    """What came of many kills; `wrong` says what did not verify.

    Attributes:
        kills: merges that were killed.
        completed: merges that had ended by then.
        partial: kills after which the store had some of the variants, but not all.
        wrong: what was not as it should be.
    """

    kills: int = 0
    completed: int = 0
    partial: int = 0
    wrong: list[str] = field(default_factory=list)


def run(folder: Path, *, kills: int, seed: int) -> Outcome:
    """Kill merges until so many were killed."""
    outcome, rng = Outcome(), random.Random(seed)
    joined = join(_write(folder))
    publish(joined, Store(folder / "first"))  # which imports what the others find imported
    longest = _calls(joined, folder / "counted")
    while outcome.kills < kills:
        for _ in range(_ROUND):
            _killed(outcome, joined, folder / "store", rng.randint(1, longest))
            _check(outcome, joined, folder / "store")
        publish(joined, Store(folder / "store"))
        if _check(outcome, joined, folder / "store") != _VARIANTS:
            outcome.wrong.append("a merge that was not killed did not complete the store")
        shutil.rmtree(folder / "store")
    return outcome


def _write(folder: Path) -> list[Path]:
    parts, words = Parts(folder), [f"k{number}" for number in range(_VARIANTS)]
    return [
        parts.write(
            f"{number}/{_SHARDS}",
            " ".join(words[number - 1 :: _SHARDS]),
            " ".join(words),
            pack_bytes=_PACK_BYTES,
        )
        for number in range(1, _SHARDS + 1)
    ]


def _calls(joined: Joined, store: Path, most: int | None = None) -> int:
    """Merge; return the number of calls and returns of functions, and die after `most` of them."""
    count = 0

    def note(*_: object) -> None:
        nonlocal count
        count += 1
        if count == most:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(note)
    try:
        publish(joined, Store(store))
    finally:
        sys.setprofile(None)
    return count


def _killed(outcome: Outcome, joined: Joined, store: Path, after: int) -> None:
    pid = os.fork()
    if not pid:
        status = 1
        try:
            _calls(joined, store, after)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        outcome.kills += 1
        return
    outcome.completed += 1
    if os.WEXITSTATUS(status):
        outcome.wrong.append("a merge failed")


def _check(outcome: Outcome, joined: Joined, folder: Path) -> int:
    """Verify a store; return how many variants it has, each of which must be whole."""
    store = Store(folder)
    outcome.wrong += [f"{f.kind} {f.path}: {f.reason}" for f in verify(store).findings]
    held = 0
    for word, entry in joined.lock.variants.items():
        stored = store.get_artifact(entry.action, verify=True)
        if stored is not None:
            held += 1
            if stored.blob("cubin") != word.encode() * 100:
                outcome.wrong.append(f"{word} is not what was merged")
    outcome.wrong += store.warnings
    outcome.partial += 0 < held < len(joined.lock.variants)
    return held
