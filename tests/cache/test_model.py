"""The store against a model of it, under whatever order of calls hypothesis finds."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

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

NUMBERS = st.sampled_from([1, 2, 11, 12])  # 1 and 11 share a blob, 2 and 12 another one
FOLDER = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class StoreAgainstModel(RuleBasedStateMachine):
    """`sure` must be hits, in the order of their last use; `gone` must be misses."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(dir=FOLDER))
        self.store = Store(self.root)
        self.clock = 1_000_000
        self.sure: dict[int, int] = {}
        self.gone = {1, 2, 11, 12}
        self.pinned: set[int] = set()

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    def _use(self, number: int) -> None:
        """Set the times of a number's files to one that only moves forward."""
        self.clock += 1
        self.sure.pop(number, None)
        self.sure[number] = self.clock
        self.gone.discard(number)
        os.utime(self.store.path("ac", content.key(number)), (self.clock, self.clock))

    @rule(number=NUMBERS)
    def put(self, number: int) -> None:
        before = number in self.sure
        result = self.store.put_artifact(
            content.key(number), content.artifact(number), content.blobs(number)
        )
        assert result.stored
        assert result.existed or not before
        if not before:
            self._use(number)

    @rule(number=NUMBERS)
    def put_something_else(self, number: int) -> None:
        if number in self.sure:
            result = self.store.put_artifact(content.key(number), {"other": True}, {})
            assert result.conflict

    @rule(number=NUMBERS)
    def hit(self, number: int) -> None:
        if number in self.sure:
            with Session(self.store) as session:
                session.hit(content.key(number))
            self._use(number)

    @rule(number=NUMBERS, area=st.sampled_from(["ac", "cubin", "ptx"]), seed=st.integers(0, 99))
    def damage(self, number: int, area: str, seed: int) -> None:
        blobs = content.blobs(number)
        key = content.key(number)
        place = self.store.path(*(("ac", key) if area == "ac" else ("cas", sha256(blobs[area]))))
        with contextlib.suppress(FileNotFoundError):
            data = bytearray(place.read_bytes())
            data[random.Random(seed).randrange(len(data))] ^= 1
            place.write_bytes(data)
            concerned = {number} if area != "ptx" else {number % 10, number % 10 + 10}
            for one in concerned:
                self.sure.pop(one, None)

    @rule(number=NUMBERS)
    def pin(self, number: int) -> None:
        try:
            pins.pin(self.store, content.key(number))
            self.pinned.add(number)
        except NotCachedError:
            assert number not in self.sure
            self.pinned.discard(number)

    @rule(number=NUMBERS)
    def unpin(self, number: int) -> None:
        assert bool(pins.unpin(self.store, content.key(number))) == (number in self.pinned)
        self.pinned.discard(number)

    @rule(size=st.integers(0, 120_000))
    def prune(self, size: int) -> None:
        pruned = prune(self.store, limits=Limits(max_bytes=size, grace_s=0), now_ns=10**18 + 10**18)
        evicted = [one.entry.key for one in pruned.plan.evictions]
        lost = [number for number in self.sure if content.key(number) in evicted]
        kept = [number for number in self.sure if number not in lost and number not in self.pinned]
        assert not set(lost) & self.pinned
        assert [self.sure[n] for n in lost] == sorted(self.sure[n] for n in lost)
        assert all(self.sure[a] < self.sure[b] for a in lost for b in kept)
        assert pruned.plan.bytes_after <= size or not kept
        for number in lost:
            del self.sure[number]
            self.gone.add(number)

    @rule()
    def repair(self) -> None:
        assert verify(self.store, repair=True).ok
        found = verify(self.store)
        assert found.findings == []
        assert found.records >= len(self.sure)

    @rule()
    def damage_the_index(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.truncate(self.store.folder / "index.sqlite", 1000)

    @invariant()
    def every_answer_is_right(self) -> None:
        store = Store(self.root)
        for number in (1, 2, 11, 12):
            # A look that is not a hit puts away what is broken, which is a step of its own.
            found = store.get_artifact(content.key(number), verify=True)
            if number in self.sure:
                assert found is not None
            if number in self.gone:
                assert found is None
            assert found is None or content.is_right(found, number)


TestStoreAgainstModel = StoreAgainstModel.TestCase
TestStoreAgainstModel.settings = settings(
    max_examples=40, stateful_step_count=20, deadline=None, database=None
)
