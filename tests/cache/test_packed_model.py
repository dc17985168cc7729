"""Packs in a store against a model of it, under whatever order of calls hypothesis finds."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path

import content
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pallasc.cache.evict import Limits
from pallasc.cache.format import ARTIFACTS
from pallasc.cache.inventory import stats
from pallasc.cache.manifests import Manifest
from pallasc.cache.prune import clear, merge_packs, prune
from pallasc.cache.store import Store
from pallasc.cache.transfer import export_file, import_file
from pallasc.cache.uses import Session
from pallasc.cache.verify import verify

ALL = (1, 2, 3, 11, 12)  # 1 and 11 share a blob, 2 and 12 another one
NUMBERS = st.sampled_from(ALL)
SETS = st.sets(NUMBERS, min_size=1)
FOLDER = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
LATER_NS = 2 * 10**18
"""A time after all of this, in 2033, so that no blob is young."""


class PacksAgainstModel(RuleBasedStateMachine):
    """What is in `sure` must be a hit; what is in neither `sure` nor `maybe` must be a miss.

    `maybe` has what lay in a file that was damaged at a random place. Whatever is found must be
    right.
    """

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(dir=FOLDER))
        self.store = Store(self.root / "store")
        self.source = Store(self.root / "source")
        for number in ALL:
            self.source.put_artifact(
                content.key(number), content.artifact(number), content.blobs(number)
            )
            self.source.put_manifest(content.key(number), Manifest(action=content.key(number)))
        self.sure: set[int] = set()
        self.maybe: set[int] = set()

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    def _packs(self) -> list[Path]:
        return sorted((self.store.folder / "packs").glob("*"))

    def _found(self) -> set[int]:
        store, found = Store(self.store.root), set()
        for number in ALL:
            artifact = store.get_artifact(content.key(number), verify=True)
            if artifact is not None:
                assert content.is_right(artifact, number)
                found.add(number)
        return found

    def _settle(self) -> None:
        """Look which of the uncertain ones are there."""
        found = self._found()
        assert self.sure <= found <= self.sure | self.maybe
        self.sure, self.maybe = found, set()

    @rule(numbers=SETS)
    def add(self, numbers: set[int]) -> None:
        names = [content.key(number) for number in sorted(numbers)]
        export_file(self.source, self.root / "numbers.pack", names)
        assert import_file(self.store, self.root / "numbers.pack").conflicts == []
        assert numbers - self.sure - self.maybe <= self._found()
        self.sure |= numbers
        self.maybe -= numbers

    @rule(number=NUMBERS)
    def put(self, number: int) -> None:
        content.publish(self.store, number)
        self.sure.add(number)
        self.maybe.discard(number)

    @rule(number=NUMBERS)
    def put_away(self, number: int) -> None:
        self.store.put_away(ARTIFACTS, content.key(number), "nobody vouches for it", None)
        self.maybe = (self.sure | self.maybe) - {number}  # the others of its packs are lost, too
        self.sure = set()

    @rule(seed=st.integers(0, 10**6), cut=st.booleans())
    def damage_a_pack(self, seed: int, cut: bool) -> None:
        dice, packs = random.Random(seed), self._packs()
        if packs:
            path = dice.choice(packs)
            data, before = bytearray(path.read_bytes()), path.stat()
            place = dice.randrange(len(data))
            if cut:
                del data[place:]
            else:
                data[place] ^= 1 << dice.randrange(8)
            path.write_bytes(data)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
            self.maybe |= self.sure
            self.sure = set()
            # A store that has read the pack before may have parts of it in memory.
            self.store = Store(self.store.root)

    @rule(number=NUMBERS)
    def hit(self, number: int) -> None:
        with Session(self.store) as session:
            if self.store.get_artifact(content.key(number), verify=True) is not None:
                session.hit(content.key(number))
                prune(Store(self.store.root), limits=Limits(max_bytes=0, grace_s=0))
                assert number in self._found()
                self.maybe |= self.sure
                self.sure = set()

    @rule(share=st.floats(0, 1.1), keep=st.frozensets(NUMBERS, max_size=2))
    def prune(self, share: float, keep: frozenset[int]) -> None:
        self._settle()
        limits = Limits(max_bytes=round(share * stats(self.store).bytes), grace_s=0)
        keys = frozenset(map(content.key, keep))
        pruned = prune(self.store, limits=limits, keep=keys, now_ns=LATER_NS)
        assert pruned.warnings == []
        assert pruned.plan.bytes_before - pruned.freed_bytes == stats(self.store).bytes
        assert pruned.excess_bytes <= sum(kept.bytes for kept in pruned.plan.retained)
        gone = {key for eviction in pruned.evictions for key in eviction.unit.keys}
        left = self._found()
        assert {content.key(number) for number in self.sure - left} <= gone
        assert keep & self.sure <= left <= self.sure
        self.sure = left

    @rule()
    def clear(self) -> None:
        self._settle()
        clear(self.store)
        left = self._found()
        assert left <= self.sure
        self.sure = left

    @rule()
    def merge_the_packs(self) -> None:
        before = len(self._packs())
        merge_packs(self.store, most=1)
        assert len(self._packs()) <= max(before, 1)

    @rule()
    def repair(self) -> None:
        assert verify(self.store, repair=True).ok
        assert verify(self.store).findings == []
        self._settle()
        figures = stats(self.store)
        assert (figures.warnings, figures.entries) == ([], len(self.sure))

    @rule()
    def export_to_a_new_store(self) -> None:
        target, source = Store(self.root / "target"), Store(self.store.root, read_only=True)
        if source.folder.exists():
            export_file(source, self.root / "all.pack")
            import_file(target, self.root / "all.pack")
        found = {n for n in ALL if target.get_artifact(content.key(n), verify=True) is not None}
        assert self.sure <= found <= self.sure | self.maybe
        assert target.warnings == []
        assert verify(target).findings == []
        shutil.rmtree(target.root, ignore_errors=True)

    @invariant()
    def every_answer_is_right(self) -> None:
        assert self.sure <= self._found() <= self.sure | self.maybe


TestPacksAgainstModel = PacksAgainstModel.TestCase
TestPacksAgainstModel.settings = settings(
    max_examples=10, stateful_step_count=20, deadline=None, database=None
)
