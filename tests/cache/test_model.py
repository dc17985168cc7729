"""The store against a model, under whatever order of calls hypothesis finds."""

import contextlib
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import content
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pallasc.cache.evict import Limits
from pallasc.cache.format import sha256
from pallasc.cache.inventory import stats
from pallasc.cache.prune import Pruned, clear, prune
from pallasc.cache.store import Store
from pallasc.cache.uses import Session, read_totals
from pallasc.cache.verify import verify

ALL = (1, 2, 11, 12)  # 1 and 11 share a blob, 2 and 12 another one
NUMBERS = st.sampled_from(ALL)
FOLDER = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
BEFORE_TODAY_S = 10**9
"""A time between the model's clock, which begins in 1970, and that of the kernel."""
LATER_NS = 2 * 10**18
"""A time after all of this, in 2033, so that no blob is young."""


class StoreAgainstModel(RuleBasedStateMachine):
    """What is in `used` must be a hit, everything else a miss; nothing is ever uncertain.

    `used` says when each artifact was last used, on a clock of the model's own, which every file
    and the log are made to follow: two files of one tick of the kernel's clock cannot be told
    apart, and pruning would spare both. What pruning takes is predicted from sizes and uses alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(dir=FOLDER))
        self.store = Store(self.root)
        self.clock = 1_000_000
        self.used: dict[int, int] = {}
        self.hits = 0

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    def _path(self, number: int) -> Path:
        return self.store.path("ac", content.key(number))

    def _blob_path(self, number: int, name: str) -> Path:
        return self.store.path("cas", sha256(content.blobs(number)[name]))

    def _set_time(self, *paths: Path) -> None:
        for path in paths:
            os.utime(path, (self.clock, self.clock))

    @contextlib.contextmanager
    def _build_that_hits(self, number: int) -> Iterator[None]:
        """Hit an artifact in a session, which must touch the record and have a lease."""
        self.clock += 1
        with Session(self.store, now_s=lambda: self.clock) as session:
            session.hit(content.key(number))
            assert self._path(number).stat().st_mtime > BEFORE_TODAY_S
            (lease,) = (self.store.folder / "leases").iterdir()
            self._set_time(lease, self._path(number))
            self.used[number] = self.clock
            self.hits += 1
            yield

    def _bytes(self, numbers: set[int]) -> int:
        """Return the size of some artifacts together, each shared blob once."""
        parts = {sha256(b): len(b) for n in numbers for b in content.blobs(n).values()}
        return sum(parts.values()) + sum(self._path(n).stat().st_size for n in numbers)

    def _fit(self, size: int, held: set[int]) -> set[int]:
        """Return what must be left of the artifacts that are there, so that they fit a size."""
        left = set(self.used)
        for number in sorted(self.used, key=self.used.__getitem__):
            if self._bytes(left) <= size:
                break
            if number not in held:
                left.discard(number)
        return left

    def _check_pruned(self, pruned: Pruned, left: set[int], expected: int) -> None:
        assert pruned.warnings == []
        assert pruned.records == len(self.used) - len(left)
        assert pruned.plan.bytes_after == pruned.plan.bytes_before - pruned.freed_bytes == expected
        self.used = {number: self.used[number] for number in left}
        blobs = {path.name for path in (self.store.folder / "cas").glob("*/*")}
        assert blobs == {sha256(b) for n in left for b in content.blobs(n).values()}

    def _prune(
        self, size: int, in_use: frozenset[int] = frozenset(), keep: frozenset[int] = frozenset()
    ) -> None:
        left = self._fit(size, keep | in_use)
        expected = self._bytes(left)
        keys = frozenset(map(content.key, keep))
        limits = Limits(max_bytes=size, grace_s=0)
        pruned = prune(self.store, limits=limits, keep=keys, now_ns=LATER_NS)
        self._check_pruned(pruned, left, expected)
        assert pruned.excess_bytes == max(0, expected - size)
        if pruned.excess_bytes:
            assert pruned.plan.held == len(left)

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
            blobs = [self._blob_path(number, name) for name in content.blobs(number)]
            assert all(path.stat().st_mtime > BEFORE_TODAY_S for path in blobs)
            self._set_time(self._path(number), *blobs)
            self.used[number] = self.clock

    @rule(number=NUMBERS)
    def put_something_else(self, number: int) -> None:
        if number in self.used:
            result = self.store.put_artifact(content.key(number), {"other": True}, {})
            assert result.conflict

    @rule(number=NUMBERS)
    def hit(self, number: int) -> None:
        if number in self.used:
            with self._build_that_hits(number):
                pass

    @rule(number=NUMBERS, area=st.sampled_from(["ac", "cubin", "ptx"]), seed=st.integers(0, 99))
    def damage(self, number: int, area: str, seed: int) -> None:
        place = self._path(number) if area == "ac" else self._blob_path(number, area)
        with contextlib.suppress(FileNotFoundError):
            data, before = bytearray(place.read_bytes()), place.stat()
            data[random.Random(seed).randrange(len(data))] ^= 1
            place.write_bytes(data)
            os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
            for owner in {number} if area != "ptx" else {number % 10, number % 10 + 10}:
                self.used.pop(owner, None)

    @rule(share=st.floats(0, 1.1), keep=st.frozensets(NUMBERS, max_size=3))
    def prune(self, share: float, keep: frozenset[int]) -> None:
        self._prune(round(share * self._bytes(set(self.used))), keep=keep)

    @rule(count=st.integers(0, len(ALL)))
    def prune_to_what_the_newest_take(self, count: int) -> None:
        newest = sorted(self.used, key=self.used.__getitem__, reverse=True)[:count]
        self._prune(self._bytes(set(newest)))

    @rule(share=st.floats(0, 1), number=NUMBERS)
    def prune_during_a_build(self, share: float, number: int) -> None:
        if number in self.used:
            with self._build_that_hits(number):
                self._prune(round(share * self._bytes(set(self.used))), frozenset({number}))

    @rule(age_s=st.integers(1, 20))
    def prune_by_age(self, age_s: int) -> None:
        left = {n for n, at in self.used.items() if at >= self.clock - age_s}
        expected = self._bytes(left)
        limits = Limits(max_bytes=None, max_age_s=age_s, grace_s=0)
        pruned = prune(self.store, limits=limits, now_ns=self.clock * 10**9)
        self._check_pruned(pruned, left, expected)

    @rule()
    def clear(self) -> None:
        self._check_pruned(clear(self.store), set(), 0)
        self.hits = 0

    @rule()
    def count(self) -> None:
        found = stats(self.store)
        assert found.entries == len(self.used)
        assert (read_totals(self.store).hits, found.warnings) == (self.hits, [])

    @rule()
    def repair(self) -> None:
        assert verify(self.store, repair=True).ok
        found = verify(self.store)
        assert found.findings == []
        assert found.records == len(self.used)

    @rule(seed=st.integers(0, 99), cut=st.booleans())
    def damage_the_index(self, seed: int, cut: bool) -> None:
        path = self.store.folder / "stat" / "index"
        with contextlib.suppress(FileNotFoundError):
            data = bytearray(path.read_bytes())
            place = random.Random(seed).randrange(len(data))
            data[place] ^= 1
            path.write_bytes(data[:place] if cut else data)

    @invariant()
    def every_answer_is_right(self) -> None:
        store = Store(self.root)
        for number in ALL:
            found = store.get_artifact(content.key(number), verify=True)
            assert (found is not None) == (number in self.used)
            assert found is None or content.is_right(found, number)


TestStoreAgainstModel = StoreAgainstModel.TestCase
TestStoreAgainstModel.settings = settings(max_examples=15, stateful_step_count=25)
