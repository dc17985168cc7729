"""The store against a model of it, under whatever order of calls hypothesis finds."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sqlite3
import sys
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pallasc.cache import pins
from pallasc.cache.format import sha256
from pallasc.cache.limits import Limits
from pallasc.cache.prune import prune
from pallasc.cache.store import Store
from pallasc.cache.uses import Session
from pallasc.cache.verify import verify
from pallasc.errors import NotCachedError

sys.path.insert(0, str(Path(__file__).parent / "programs"))
import content

sys.path.pop(0)

ALL = (1, 2, 11, 12)  # 1 and 11 share a blob, 2 and 12 another one
NUMBERS = st.sampled_from(ALL)
FOLDER = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
LATER_NS = 2 * 10**18
"""A time after all of this, in 2033, so that no blob is young."""


class StoreAgainstModel(RuleBasedStateMachine):
    """What is in `used` must be a hit, everything else a miss; nothing is ever uncertain.

    `used` says when each artifact was last used, on a clock of the model's own, which the files and
    the log are made to follow. What pruning takes is predicted here, from sizes alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(dir=FOLDER))
        self.store = Store(self.root)
        self.clock = 1_000_000
        self.used: dict[int, int] = {}
        self.pinned: set[int] = set()

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    def _path(self, number: int) -> Path:
        return self.store.path("ac", content.key(number))

    def _note_use(self, number: int) -> None:
        self.used[number] = self.clock
        os.utime(self._path(number), (self.clock, self.clock))

    def _bytes(self, numbers: set[int]) -> int:
        """Return the size of some artifacts together, each shared blob once."""
        parts = {sha256(b): len(b) for n in numbers for b in content.blobs(n).values()}
        return sum(parts.values()) + sum(self._path(n).stat().st_size for n in numbers)

    def _expect_pruned(self, size: int, held: set[int]) -> set[int]:
        """Return what must be left of the artifacts that are there."""
        left = set(self.used)
        for number in sorted(self.used, key=self.used.__getitem__):
            if self._bytes(left) <= size:
                break
            if number not in held:
                left.discard(number)
        return left

    def _prune(self, share: float, held: set[int]) -> None:
        size = round(share * self._bytes(set(self.used)))
        left = self._expect_pruned(size, held)
        expected = self._bytes(left)
        pruned = prune(self.store, limits=Limits(max_bytes=size, grace_s=0), now_ns=LATER_NS)
        assert pruned.warnings == ()
        assert pruned.records == len(self.used) - len(left)
        assert pruned.plan.bytes_after == expected
        self.used = {number: self.used[number] for number in left}
        blobs = {path.name for path in (self.store.folder / "cas").glob("*/*")}
        assert blobs == {sha256(b) for n in left for b in content.blobs(n).values()}

    @initialize(order=st.permutations(ALL))
    def publish_all(self, order: list[int]) -> None:
        for number in order:
            self.put(number)

    @rule(number=NUMBERS)
    def put(self, number: int) -> None:
        self.clock += 1
        result = self.store.put_artifact(
            content.key(number), content.artifact(number), content.blobs(number)
        )
        assert result.stored
        assert result.existed == (number in self.used)
        if not result.existed:
            self._note_use(number)

    @rule(number=NUMBERS)
    def put_something_else(self, number: int) -> None:
        if number in self.used:
            result = self.store.put_artifact(content.key(number), {"other": True}, {})
            assert result.conflict

    @rule(number=NUMBERS)
    def hit(self, number: int) -> None:
        if number in self.used:
            self.clock += 1
            with Session(self.store, now_s=lambda: self.clock) as session:
                session.hit(content.key(number))
            self._note_use(number)

    @rule(number=NUMBERS, area=st.sampled_from(["ac", "cubin", "ptx"]), seed=st.integers(0, 99))
    def damage(self, number: int, area: str, seed: int) -> None:
        blobs = content.blobs(number)
        place = self._path(number)
        if area != "ac":
            place = self.store.path("cas", sha256(blobs[area]))
        with contextlib.suppress(FileNotFoundError):
            data = bytearray(place.read_bytes())
            data[random.Random(seed).randrange(len(data))] ^= 1
            place.write_bytes(data)
            for one in {number} if area != "ptx" else {number % 10, number % 10 + 10}:
                self.used.pop(one, None)

    @rule(number=NUMBERS)
    def pin(self, number: int) -> None:
        try:
            pins.pin(self.store, content.key(number))
            assert number in self.used
            self.pinned.add(number)
        except NotCachedError:
            assert number not in self.used
            self.pinned.discard(number)

    @rule(number=NUMBERS)
    def unpin(self, number: int) -> None:
        assert bool(pins.unpin(self.store, content.key(number))) == (number in self.pinned)
        self.pinned.discard(number)

    @rule(share=st.floats(0, 1.1))
    def prune(self, share: float) -> None:
        self._prune(share, self.pinned)

    @rule(share=st.floats(0, 1), number=NUMBERS)
    def prune_during_a_build(self, share: float, number: int) -> None:
        if number in self.used:
            self.clock += 1
            with Session(self.store, now_s=lambda: self.clock) as session:
                session.hit(content.key(number))
                self.used[number] = self.clock
                self._prune(share, self.pinned | {number})
            self._note_use(number)

    @rule()
    def repair(self) -> None:
        assert verify(self.store, repair=True).ok
        found = verify(self.store)
        assert found.findings == []
        assert found.records == len(self.used)

    @rule()
    def cut_the_index(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.truncate(self.store.folder / "index.sqlite", 1000)

    @rule()
    def falsify_the_index(self) -> None:
        place = self.store.folder / "index.sqlite"
        if place.exists() and place.stat().st_size > 1000:
            with contextlib.closing(sqlite3.connect(place)) as connection:
                connection.execute("UPDATE artifacts SET blobs = x'', last_use_ns = 1")
                connection.commit()

    @invariant()
    def every_answer_is_right(self) -> None:
        store = Store(self.root)
        for number in ALL:
            found = store.get_artifact(content.key(number), verify=True)
            assert (found is not None) == (number in self.used)
            assert found is None or content.is_right(found, number)


TestStoreAgainstModel = StoreAgainstModel.TestCase
TestStoreAgainstModel.settings = settings(
    max_examples=100, stateful_step_count=25, deadline=None, database=None
)
