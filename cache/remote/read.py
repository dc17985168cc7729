"""Bring variants from a remote into the local store: the tails of packs, then the frames needed.

A pack's tail has its manifests, records, and index. Each manifest that fits a wanted request is
judged; the frames with the blobs of accepted ones follow, and go into packs of the local store.
Only accepted manifests, the record that each names by digest, and blobs, which have their digest
as name, become part of the store. Decompressing happens in the calling thread, so it counts as
waiting, and one frame is in memory at a time.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tempfile
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import NamedTuple

from pallasc.cache import format, packs
from pallasc.cache.manifests import Manifest, manifest_from_json, set_prefix
from pallasc.cache.pack_writer import PackWriter
from pallasc.cache.packs import Entry, Frame, Place, open_pack
from pallasc.cache.remote.catalog import (
    MAX_CATALOG_BYTES,
    MAX_FRAME_BYTES,
    Catalog,
    PackRow,
    catalog_name,
    decode_catalog,
    pack_name,
)
from pallasc.cache.remote.objects import Failure, RemoteError
from pallasc.cache.remote.session import Session
from pallasc.cache.signing import Trust
from pallasc.cache.store import Store
from pallasc.errors import CorruptError

Accept = Callable[[str, Manifest], bool]
_SMALL_BYTES = 256 * 2**10
"""A pack up to this size is read whole."""
_GAP_BYTES = 64 * 2**10
"""Frames that are closer together are read in one request."""
_FIRST_BYTES, _MOST_BYTES = 512 * 2**10, 4 * 2**20
"""One request for frames: at first, and when several have arrived."""
_WINDOW = 4
_WINDOW_BYTES = 8 * 2**20
"""Requests under way, and bytes that they ask for."""
_LOCAL_PACK_BYTES = 8 * 2**20


async def read_catalog(session: Session, namespace: str) -> tuple[Catalog, str | None]:
    """Return a catalog and its version; an empty one and None where there is none.

    Raises:
        CorruptError: it is damaged.
        RemoteError: it cannot be read.
    """
    try:
        got = await session.objects.get(catalog_name(namespace), limit=MAX_CATALOG_BYTES)
    except RemoteError as error:
        if error.failure is Failure.MISSING:
            return Catalog(), None
        raise
    return decode_catalog(got.data), got.version


def known_catalog(session: Session, namespace: str) -> Catalog:
    """Return a catalog; a damaged one counts as empty, and the next writer replaces it.

    Raises:
        RemoteError: it cannot be read.
    """
    for attempt in (1, 2):
        try:
            return session.result(read_catalog(session, namespace))[0]
        except CorruptError as error:
            if attempt == 2:
                session.wrong(f"{catalog_name(namespace)}: {error.message}")
    return Catalog()


class Tail(NamedTuple):
    """The tail of a pack, verified: its frames, where each blob is, and its other files."""

    frames: Sequence[Frame]
    places: bytes
    blobs: Mapping[str, int]
    first: int

    def place(self, digest: str) -> Place | None:
        """Return the place of a blob, None where the pack lacks it."""
        number = self.blobs.get(digest)
        return None if number is None else packs.place(self.places, number)


def open_tail(row: PackRow, data: bytes) -> Tail:
    """Return the tail of a pack from its bytes.

    Raises:
        CorruptError: it is not the tail that the catalog names, or contradicts itself.
    """
    if hashlib.sha256(data).hexdigest() != row.tail:
        raise CorruptError(f"its end has the SHA-256 {hashlib.sha256(data).hexdigest()}")
    footer = packs.read_footer(data[-packs.FOOTER_BYTES :], row.size)
    if footer.offset < row.offset:
        raise CorruptError("its index does not fit into its end")
    index = data[footer.offset - row.offset : len(data) - packs.FOOTER_BYTES]
    frames, names, places = packs.read_index(index, footer)
    blobs = {}
    for number, packed in enumerate(names):
        area, name = packs.unpacked_name(packed)
        if area == format.BLOBS:
            blobs[name] = number
    first = next((n for n, frame in enumerate(frames) if frame.offset >= row.offset), len(frames))
    return Tail(frames, places, blobs, first)


def frame_content(data: bytes, start: int, frame: Frame, number: int) -> tuple[bytes, bytes]:
    """Return a frame's bytes and its content, verified; `data` begins at `start` of the pack.

    Raises:
        CorruptError: it is damaged, or over the limit.
    """
    if frame.raw_size > MAX_FRAME_BYTES:
        raise CorruptError(f"frame {number} has {frame.raw_size:,} bytes of content")
    stored = data[frame.offset - start : frame.offset + frame.size - start]
    return stored, packs.read_content(stored, frame, number)


@dataclass(slots=True, eq=False)
class _Wanted:
    """An accepted manifest on its way, and the numbers of the frames that it still needs."""

    name: str
    manifest: Manifest
    entries: list[Entry]
    blobs: dict[str, int] = field(default_factory=dict)
    frames: set[int] = field(default_factory=set)
    replaces: bool = False


@dataclass(slots=True, eq=False)
class _Read:
    """One request: the tail of a pack, or frames of it; the whole pack where `size` is 0."""

    row: PackRow
    start: int
    size: int
    names: Sequence[str] = ()
    tail: Tail | None = None
    frames: Sequence[int] = ()
    wanted: Sequence[_Wanted] = ()
    is_second: bool = False

    @property
    def bytes(self) -> int:
        return self.size or self.row.size


class Fetch:
    """Brings variants from one namespace.

    Args:
        session: the remote.
        store: the local store.
        namespace: of the toolchain.
        trust: the keys that must sign manifests; None where no signature is required of remotes.
        accept: given the name of a manifest and the manifest, returns True if it is to be used.
        hold: where the store cannot be written, an open store has what arrives all the same.
    """

    def __init__(
        self,
        session: Session,
        store: Store,
        namespace: str,
        trust: Trust | None,
        accept: Accept,
        *,
        hold: bool = False,
    ) -> None:
        self._session, self._store, self._namespace = session, store, namespace
        self._trust, self._accept, self._hold = trust, accept, hold
        areas = (format.MANIFESTS, format.ARTIFACTS, format.PACKS)
        self._is_empty = not any(os.path.lexists(store.folder / area) for area in areas)
        self._part_bytes = _FIRST_BYTES
        self._has_ranges = True
        self._judged: set[str] = set()
        self._complete: list[_Wanted] = []
        self._open_local()
        self.actions: dict[str, str] = {}
        """Action keys of the variants that the local store has now, by name of the manifest."""
        self.saved_s = 0.0
        self.bad: set[str] = set()
        """Packs that are gone or damaged."""
        self.used: set[str] = set()
        """Packs that something was read from."""

    def _open_local(self) -> None:
        self._out = io.BytesIO()
        self._local = PackWriter(self._out)

    def run(self, wanted: Mapping[PackRow, Sequence[str]]) -> None:
        """Bring manifests with these names, by pack, the newest first, where they are accepted."""
        todo = deque(self._tail_of(row, names) for row, names in wanted.items())
        reads: dict[Future[bytes], _Read] = {}
        while (todo or reads) and not self._session.is_over():
            while todo and self._may_start(reads.values(), todo[0]):
                read = todo.popleft()
                read.names = [name for name in read.names if set_prefix(name) not in self._judged]
                if read.tail is not None or read.names:
                    reads[self._session.submit(self._read(read))] = read
            if not reads:
                continue
            future = self._session.first(reads)
            if future is None:
                break
            read = reads.pop(future)
            try:
                todo.extendleft(reversed(list(self._arrived(read, future.result()))))
                self._part_bytes = min(2 * self._part_bytes, _MOST_BYTES)
            except (CorruptError, RemoteError) as error:
                todo.extendleft(self._again(read, error))
            except CancelledError:
                break
        self._publish()

    def _may_start(self, under_way: Collection[_Read], read: _Read) -> bool:
        size = sum(each.bytes for each in under_way) + read.bytes
        return not under_way or (len(under_way) < _WINDOW and size <= _WINDOW_BYTES)

    def _tail_of(self, row: PackRow, names: Sequence[str]) -> _Read:
        start = row.offset if self._has_ranges and row.size > _SMALL_BYTES else 0
        return _Read(row, start, row.size - start if start else 0, names)

    async def _read(self, read: _Read) -> bytes:
        name = pack_name(self._namespace, read.row.pack)
        size = read.size or None
        got = await self._session.objects.get(
            name, limit=read.row.size, start=read.start, size=size
        )
        return got.data

    def _again(self, read: _Read, error: CorruptError | RemoteError) -> list[_Read]:
        """Return the request to repeat after a failure; none after the second."""
        if isinstance(error, RemoteError):
            if error.failure is Failure.NO_RANGES and read.size:
                self._has_ranges = False
                read.start = read.size = 0
                return [read]
            if error.failure is not Failure.TORN:
                self.bad.add(read.row.pack)
                self._session.failed_with(error)
                return []
        if not read.is_second:
            read.is_second = True
            return [read]
        self.bad.add(read.row.pack)
        self._session.wrong(f"pack {read.row.pack}: {error.message}")
        return []

    def _arrived(self, read: _Read, data: bytes) -> Iterator[_Read]:
        """Use what arrived; yield the requests that follow."""
        if not read.size and hashlib.sha256(data).hexdigest() != read.row.pack:
            raise CorruptError(f"its SHA-256 is {hashlib.sha256(data).hexdigest()}")
        self.used.add(read.row.pack)
        if read.tail is not None:
            self._take_frames(read, data)
            return
        tail = open_tail(read.row, data[read.row.offset - read.start :])
        wanted = self._judge(read, tail, data)
        frames = sorted({number for each in wanted for number in each.frames})
        self._finish_those_with_all(wanted)
        for start, size, numbers in self._parts(read.row, tail.frames, frames):
            part = _Read(read.row, start, size, tail=tail, frames=numbers, wanted=wanted)
            if read.start:
                yield part
            else:
                self._take_frames(part, data, start=0)

    def _parts(
        self, row: PackRow, frames: Sequence[Frame], numbers: Sequence[int]
    ) -> Iterator[tuple[int, int, Sequence[int]]]:
        """Yield start, size, and frames of each request; size is 0 for the whole pack."""
        if not self._has_ranges and numbers:
            yield 0, 0, numbers
            return
        run: list[int] = []
        for number in [*numbers, -1]:
            frame = frames[number]
            if run:
                start, end = frames[run[0]].offset, frames[run[-1]].offset + frames[run[-1]].size
                far = frame.offset - end > _GAP_BYTES
                large = frame.offset + frame.size - start > self._part_bytes
                if number < 0 or far or large:
                    yield start, end - start, run
                    run = []
            run = [*run, number]

    def _judge(self, read: _Read, tail: Tail, data: bytes) -> list[_Wanted]:
        """Return the accepted manifests of a tail, with the frames that each needs."""
        names, records = set(read.names), {}
        manifests: dict[str, bytes] = {}
        for number in range(tail.first, len(tail.frames)):
            if self._session.is_over():
                return []
            _, content = frame_content(data, read.start, tail.frames[number], number)
            for area, name, at, size in packs.read_head(content, number):
                if area == format.MANIFESTS and name in names:
                    manifests[name] = content[at : at + size]
                elif area == format.ARTIFACTS:
                    records[name] = content[at : at + size]
        accepted = []
        for name in read.names:
            if name not in manifests or self._session.is_over():
                continue
            try:
                found = self._judged_one(name, manifests[name], records, tail)
            except CorruptError as error:
                self._session.wrong(error.message)
                continue
            if found is not None:
                self._judged.add(set_prefix(name))
                accepted.append(found)
        return accepted

    def _judged_one(
        self, name: str, data: bytes, records: Mapping[str, bytes], tail: Tail
    ) -> _Wanted | None:
        kind = format.KINDS[format.MANIFESTS]
        body, _ = format.decode(kind, name, data)
        manifest = manifest_from_json(body)
        if set_prefix(name) in self._judged:
            return None
        if self._trust is not None and not self._trust.vouches(kind, name, body):
            self._session.stats.refuse(f"manifest {name}: no trusted key signed it")
            return None
        if manifest.specs or manifest.check or manifest.toolchains or not manifest.record:
            # Entries that a store keeps for itself, which nobody may send.
            self._session.stats.refuse(f"manifest {name}: it is not the manifest of a variant")
            return None
        with self._session.own_work():
            if not self._accept(name, manifest):
                return None
            present = None if self._is_empty else self._store.get_file(format.MANIFESTS, name)
            held = None if self._is_empty else self._store.get_artifact(manifest.action)
        found = _Wanted(name, manifest, [Entry(format.MANIFESTS, name, data)])
        found.replaces = present not in (None, data)
        if held is not None and held.digest == manifest.record:
            return found
        if held is not None and self._store.get_artifact(manifest.action, verify=True) is not None:
            text = f"action key {manifest.action}: {manifest.record} there, {held.digest} here"
            self._session.stats.conflicts.append(text)
            return None
        if manifest.action not in records:
            raise CorruptError(f"manifest {name}: the pack lacks its record")
        record, digest = format.decode_artifact(manifest.action, records[manifest.action])
        if digest != manifest.record:
            raise CorruptError(f"manifest {name}: the pack has another record")
        found.entries.insert(0, Entry(format.ARTIFACTS, manifest.action, records[manifest.action]))
        for blob in record["blobs"].values():
            place = tail.place(blob["digest"])
            if place is None or place.frame >= tail.first or place.size != blob["size"]:
                raise CorruptError(f"manifest {name}: the pack lacks blob {blob['digest']}")
            found.blobs[blob["digest"]] = place.frame
            found.frames.add(place.frame)
        return found

    def _take_frames(self, read: _Read, data: bytes, start: int | None = None) -> None:
        """Verify frames and copy them into the local pack; finish the variants that are whole."""
        tail = read.tail
        for number in read.frames if tail is not None else ():
            if self._session.is_over():
                return
            frame = tail.frames[number]  # type: ignore[union-attr]
            at = read.start if start is None else start
            stored, content = frame_content(data, at, frame, number)
            waiting = [each for each in read.wanted if number in each.frames]
            needed = {
                blob for each in waiting for blob, place in each.blobs.items() if place == number
            }
            left_out = set()
            for area, name, offset, size in packs.read_head(content, number):
                if area == format.BLOBS and name in needed:
                    found = hashlib.sha256(memoryview(content)[offset : offset + size]).hexdigest()
                    if found != name:
                        raise CorruptError(f"blob {name}: its SHA-256 is {found}")
                    needed.discard(name)
                else:
                    left_out.add(packs.packed_name(area, name))
            if needed:
                raise CorruptError(f"frame {number} lacks blob {min(needed)}")
            self._local.copy(stored, frame, content=content, without=left_out)
            for each in waiting:
                each.frames.discard(number)
            self._finish_those_with_all(waiting)

    def _finish_those_with_all(self, wanted: Sequence[_Wanted]) -> None:
        done = [each for each in wanted if not each.frames]
        for each in done:
            self._local.add(each.entries)
        self._complete += done
        self._session.earn(len(done))
        if self._local.bytes_so_far >= _LOCAL_PACK_BYTES:
            self._publish()

    def _publish(self) -> None:
        """Publish the variants that are complete as one pack of the local store."""
        complete, self._complete = self._complete, []
        if not complete:
            return
        from pallasc.cache.transfer import publish_pack

        self._local.close()
        data = self._out.getvalue()
        self._open_local()
        with self._session.own_work():
            try:
                newer = [each.entries[-1] for each in complete if each.replaces]
                publish_pack(self._store, data, newer)
            except OSError as error:
                self._store.not_written(error)
                complete = self._held(data, complete) if self._hold else []
        for each in complete:
            self.actions[each.name] = each.manifest.action
            self.saved_s += each.manifest.cost_s

    def _held(self, data: bytes, complete: list[_Wanted]) -> list[_Wanted]:
        """Have the open store hold a pack that it cannot take; return what this makes hits."""
        with contextlib.suppress(OSError), tempfile.TemporaryFile(prefix="pallasc-") as file:
            file.write(data)
            file.flush()
            self._store.hold_pack(open_pack(os.dup(file.fileno())))
            return [each for each in complete if not each.replaces]
        return []
