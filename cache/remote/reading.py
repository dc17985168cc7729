"""Read what a remote has: the catalog, its indexes, and frames of packs, all verified.

Whatever arrives is compared with the digest that it is named by, before anything in it is looked
at. What is wrong is asked for once more; if it is wrong again, it is not used.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pallasc.cache.manifests import set_prefix
from pallasc.cache.packs.arriving import Arriving
from pallasc.cache.packs.format import Frame
from pallasc.cache.remote import layout
from pallasc.cache.remote.catalog import Catalog, decode_catalog
from pallasc.cache.remote.failure import Failure, RemoteError
from pallasc.cache.remote.guard import Guard, Watch
from pallasc.cache.remote.held import Held
from pallasc.cache.remote.index import Index, PackedFrame, decode_index
from pallasc.cache.remote.objects import OnBytes, too_large
from pallasc.cache.store import Store
from pallasc.errors import CorruptError

SMALL_BYTES = 256 * 2**10
"""A pack up to this size is read whole."""
GAP_BYTES = 128 * 2**10
"""Parts that lie closer together are read with what is between them."""
MOST_PARTS = 3
"""Of one pack; it is read whole where it would be more."""
MOST_READ = 64
"""Indexes that are looked at, the newest ones; writers join them long before."""
MOST_READ_BYTES = 32 * 2**20
"""Of these together; a single one may have more."""
_DECODING = threading.Lock()
"""What decoding takes in memory is several times what stays, so one index comes after the other."""
_WINDOW = 16
"""Requests that are under way or wait to be looked at."""
_WINDOW_BYTES = 16 * 2**20
"""What these ask for: bounds the memory of bodies."""
_FIRST_BYTES = 2 * 2**20
"""What a build asks for before it knows how fast the line is."""
_AHEAD_S = 0.8
"""And then, how long what is under way may take: packs that share a slow line are all late."""


@dataclass(slots=True)
class Known:
    """What a namespace has.

    Attributes:
        catalog: as it was read, empty where there is none.
        version: of the catalog, None where there is none.
        indexes: newest first, by digest; without rows of bad packs.
        lost: indexes that the catalog names and that are gone or damaged.
    """

    catalog: Catalog = field(default_factory=Catalog)
    version: str | None = None
    indexes: dict[str, Index] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)

    def sets_of(self, requests: Iterable[str]) -> list[str]:
        """Return the names of all manifests of these request keys, the newest index first."""
        wanted = {set_prefix(key) for key in requests}
        names = (name for index in self.indexes.values() for name in index.requests)
        return list(dict.fromkeys(name for name in names if set_prefix(name) in wanted))


class Part(NamedTuple):
    """What one request asks of a pack: these frames; the whole pack where `size` is 0."""

    pack: str
    start: int
    size: int
    frames: tuple[Frame, ...]


def read_catalog(
    guard: Guard, namespace: str, *, strict: bool = False
) -> tuple[Catalog, str | None]:
    """Return the catalog and its version; an empty one and None where there is none.

    A catalog that is damaged in the same way twice counts as empty: a writer will replace it.

    Args:
        guard: the remote.
        namespace: the namespace.
        strict: raise for a damaged catalog instead.

    Raises:
        CorruptError: it is damaged, and `strict` is set.
        RemoteError: it cannot be read, or is damaged in another way each time.
    """
    name = layout.catalog_name(namespace)
    seen = b""
    for attempt in range(3):
        try:
            got = guard.get(name, limit_bytes=layout.MAX_CATALOG_BYTES)
        except RemoteError as error:
            if error.failure is Failure.MISSING:
                return Catalog(), None
            raise
        try:
            catalog = decode_catalog(got.data)
        except CorruptError as error:
            guard.wrong(f"{name}: {error.message}")
            if attempt and got.data == seen:
                if strict:
                    raise
                return Catalog(), got.version
            seen = got.data
        else:
            return catalog, got.version
    raise RemoteError(f"{guard.stats.url}/{name}: it arrives damaged", Failure.TORN)


def read_known(guard: Guard, root: Path, namespace: str) -> Known:
    """Return what a namespace has; indexes are kept in the local store, whose root this is.

    Raises:
        RemoteError: the catalog cannot be read.
    """
    catalog, version = read_catalog(guard, namespace)
    known = Known(catalog, version)
    reads = {
        digest: guard.submit(
            lambda digest=digest: _index(  # type: ignore[misc]
                guard, root, namespace, digest, catalog.indexes[digest][0]
            )
        )
        for digest in _looked_at(catalog)
    }
    for digest, future in reads.items():
        index = future.result()
        if index is None:
            known.lost.add(digest)
        else:
            known.indexes[digest] = index.without_packs(catalog.bad)
    return known


def _looked_at(catalog: Catalog) -> list[str]:
    """Return the indexes that are looked at, newest first."""
    chosen: list[str] = []
    size = 0
    for digest in catalog.newest()[:MOST_READ]:
        size += catalog.indexes[digest][0]
        if chosen and size > MOST_READ_BYTES:
            break
        chosen.append(digest)
    return chosen


def _index(guard: Guard, root: Path, namespace: str, digest: str, size: int) -> Index | None:
    """Return an index that has so many bytes, None where it is gone or damaged.

    Raises:
        RemoteError: it may be there, but cannot be read.
    """
    store = Store(root)  # a store's object serves one thread
    data = store.get_blob(digest)
    try:
        if data is None:
            name, limit = layout.index_name(namespace, digest), layout.MAX_INDEX_BYTES
            data = read_named(guard, name, digest, min(size, limit))
            store.put_blob(data)
        with _DECODING, guard.at_work():
            return decode_index(data)
    except CorruptError as error:
        guard.wrong(f"index {digest}: {error.message}")
    except RemoteError as error:
        if error.failure not in (Failure.MISSING, Failure.TORN, Failure.TOO_LARGE):
            raise
        guard.wrong(error.message)
    return None


def read_named(
    guard: Guard, name: str, digest: str, limit_bytes: int, *, watch: Watch | None = None
) -> bytes:
    """Return an object that is named by its digest; `watch` as for `Guard.get`.

    Raises:
        CorruptError: it has another digest, twice.
        RemoteError: it cannot be read.
    """
    for _ in range(2):
        data = guard.get(name, limit_bytes=limit_bytes, watch=watch).data
        if (found := layout.sha256(data)) == digest:
            return data
    raise CorruptError(f"{name}: its SHA-256 is {found}")


class FrameReader:
    """Reads frames of packs, in as few requests as make sense.

    Args:
        guard: the remote.
        sizes: bytes of the packs, by digest.
    """

    def __init__(self, guard: Guard, sizes: Mapping[str, int]) -> None:
        self._guard = guard
        self.sizes = sizes
        self._held = Held()
        self._ranges = guard.objects.has_ranges
        self._lock = threading.Lock()
        self._seen: set[str] = set()
        self._right_bytes = 0
        self._began_s = guard.stats.waited_s
        self.bad: set[str] = set()
        """Packs that are gone or damaged."""
        self.packs: set[str] = set()
        """Packs that something was read from."""

    def read(
        self, wanted: Iterable[PackedFrame], *, worth: bool = False
    ) -> Iterator[tuple[PackedFrame, bytes]]:
        """Yield frames and their bytes in the pack, verified, as they arrive.

        Frames that do not arrive are left out: because their pack is bad, or time is over.

        Args:
            wanted: the frames.
            worth: they are what the build wants, so each that arrives is worth its waiting.
        """
        waiting = deque(self._plan(wanted))
        reads: dict[Future[list[bytes]], tuple[Part, Arriving]] = {}
        while waiting or reads:
            while waiting and self._may_start(reads.values(), waiting[0]):
                part = waiting.popleft()
                arriving = Arriving(part.frames if worth else (), self._right)
                reads[self._start(part, arriving)] = part, arriving
            if (future := self._guard.first(reads)) is None:
                break
            part, arriving = reads.pop(future)
            try:
                found = future.result()
            except RemoteError as error:
                if error.failure is Failure.NO_RANGES and part.size:
                    self._ranges = False
                    waiting.append(part._replace(start=0, size=0))
                else:
                    yield from self._found(part, arriving.right())
                    self._failed(part, error)
                continue
            except CorruptError as error:
                self._failed(part, error)
                continue
            self._right_bytes += self._size(part)
            yield from self._found(part, zip(part.frames, found, strict=True))
        for part, arriving in reads.values():  # time is over; a part of them may be here
            yield from self._found(part, arriving.right())

    def _start(self, part: Part, arriving: Arriving) -> Future[list[bytes]]:
        """Begin to read a part; one that is held is read at once, as time may be over."""
        if not self._held.has(part.pack):
            return self._guard.submit(lambda: self._read(part, arriving))
        future: Future[list[bytes]] = Future()
        try:
            future.set_result(self._read(part, arriving))
        except (RemoteError, CorruptError) as error:
            future.set_exception(error)
        return future

    def _found(
        self, part: Part, frames: Iterable[tuple[Frame, bytes]]
    ) -> Iterator[tuple[PackedFrame, bytes]]:
        for frame, data in frames:
            self.packs.add(part.pack)
            yield PackedFrame(part.pack, frame), data

    def is_worth(self, frames: Iterable[PackedFrame]) -> None:
        """Note that the build wants these frames; those that are here were worth their waiting."""
        for pack, frame in frames:
            if self._held.has(pack):
                self._right(frame)

    def _may_start(self, reads: Collection[tuple[Part, Arriving]], part: Part) -> bool:
        """Tell whether a part may be asked for beside those that are under way."""
        if not reads:
            return True
        room: float = _WINDOW_BYTES
        if self._guard.limits.wait_s is not None and not self._held.has(part.pack):
            waited_s = self._guard.stats.waited_s - self._began_s
            room = min(room, max(_FIRST_BYTES, self._right_bytes * _AHEAD_S / (waited_s + 0.001)))
        taken = sum(self._size(each) for each, _ in reads) + self._size(part)
        return len(reads) < _WINDOW and taken <= room

    def _size(self, part: Part) -> int:
        return part.size or self.sizes[part.pack]

    def _right(self, frame: Frame) -> None:
        """Note that a frame that the build wants is here; each counts once."""
        with self._lock:
            if frame.digest in self._seen:
                return
            self._seen.add(frame.digest)
        self._guard.prove(frame.size)

    def _failed(self, part: Part, error: RemoteError | CorruptError) -> None:
        if self._guard.failed is None:
            self.bad.add(part.pack)
            self._guard.wrong(f"pack {part.pack}: {error.message}")

    def _plan(self, wanted: Iterable[PackedFrame]) -> Iterator[Part]:
        by_pack: dict[str, list[Frame]] = {}
        for pack, frame in wanted:
            if pack not in self.bad and (self._guard.failed is None or self._held.has(pack)):
                by_pack.setdefault(pack, []).append(frame)
        for pack, frames in by_pack.items():
            yield from self._parts(pack, frames)

    def _parts(self, pack: str, frames: Sequence[Frame]) -> list[Part]:
        frames = sorted(set(frames))
        size = self.sizes[pack]
        whole = [Part(pack, 0, 0, tuple(frames))]
        if self._held.has(pack) or not self._ranges or size <= SMALL_BYTES:
            return whole
        runs: list[list[Frame]] = []
        for frame in frames:
            if runs and frame.offset - _end(runs[-1][-1]) <= GAP_BYTES:
                runs[-1].append(frame)
            else:
                runs.append([frame])
        parts = [Part(pack, r[0].offset, _end(r[-1]) - r[0].offset, tuple(r)) for r in runs]
        if len(parts) > MOST_PARTS or 2 * sum(part.size for part in parts) > size:
            return whole
        return parts

    def _read(self, part: Part, arriving: Arriving) -> list[bytes]:
        """Return the frames of a part, verified; `arriving` has them before that.

        Raises:
            CorruptError: they arrive damaged, twice.
            RemoteError: they do not arrive.
        """
        name = layout.pack_name(part.pack)

        def watch() -> OnBytes:
            return arriving.begin(part.start)

        if not part.size:
            data = self._held.get(part.pack)
            if data is None:
                limit = min(self.sizes[part.pack], layout.MAX_PACK_BYTES)
                data = read_named(self._guard, name, part.pack, limit, watch=watch)
                if len(data) <= SMALL_BYTES or not self._ranges:
                    self._held.put(part.pack, data)
            found, fault = _cut(data, part, 0)
            if fault:
                raise CorruptError(fault)
            return found
        if part.size > layout.MAX_PACK_BYTES:
            raise too_large(f"a part of {name}", part.size, layout.MAX_PACK_BYTES)
        for _ in range(2):
            data = self._guard.get_part(name, part.start, part.size, watch=watch)
            found, fault = _cut(data, part, part.start)
            if not fault:
                return found
        raise CorruptError(fault)


def _end(frame: Frame) -> int:
    return frame.offset + frame.size


def _cut(data: bytes, part: Part, start: int) -> tuple[list[bytes], str]:
    """Return the frames in a part's bytes, and what is wrong with the first that is."""
    found = []
    for frame in part.frames:
        stored = data[frame.offset - start : _end(frame) - start]
        if layout.sha256(stored) != frame.digest:
            return [], f"the frame at {frame.offset} has the SHA-256 {layout.sha256(stored)}"
        found.append(stored)
    return found, ""
