"""Packs: many files of a store, compressed together in one file.

A pack contains files exactly as in the store (`cache/format.py`), so they are verified like any
other file. Files that are read together share a frame: a variant's record and blobs are adjacent,
and manifests are in separate frames, which contain only manifests. A frame can be copied to another
pack unchanged.

    pack    = magic { frame } index footer
    magic   = "pallasc-pack 2" LF
    frame   = zstd                      without its magic number, see `specs/bundle/compress.py`
            | content                   if size = raw. Writers choose this form if zstd saves
                                        nothing, or makes the content over 256 times smaller
    content = { file }                  nothing between them

    index   = { frames } { names } { places }
    frames  = offset:u64 size:u32 raw:u32 digest:32     one after the other, from the magic to the
                                                        index; SHA-256 of the `size` bytes there
    names   = area:u8 name:32                           ascending, each once; "man" is 0, "ac" 1,
                                                        "cas" 2, as in `cache/format.py`
    places  = frame:u32 offset:u32 bytes:u32            for each name: number of its frame, and
                                                        place in the frame's content
    footer  = offset:u64 size:u32 frames:u32 names:u32 digest:32 "pallasc-pack 2" LF
                                                        of the index: place, size, counts, SHA-256

All numbers are little-endian. The name of a pack is the SHA-256 of all its bytes. A frame may
contain files that the index does not list: files that were left out when the frame was copied.

In a store, a pack with any damage is quarantined as a whole, and its variants are compiled again.

Two versions of the zstd library may compress the same files to different packs. So a pack's name
serves to find the pack, not to decide whether two packs have the same files.

Limits: see the constants. Anything larger is rejected before memory is allocated for it.

History:
    1  each content began with a list of its files.
    2  only the index locates files.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import struct
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from pallasc.cache import files
from pallasc.cache.folders import Folders
from pallasc.cache.format import PACKS, is_name
from pallasc.errors import CorruptError
from pallasc.specs.bundle import compress

VERSION = 2
MAGIC = b"pallasc-pack 2\n"
AREAS = ("man", "ac", "cas")
MAX_FILE_BYTES = 64 * 2**20
"""A larger file is not packed."""
_HELD_BYTES = 8 * 2**20
"""Size of cached frame contents; the next requested file is often in the same frame."""
_READ_BYTES = 2**20
MAX_FRAME_BYTES = MAX_FILE_BYTES + 2**20
MAX_PACK_BYTES = 2**32
MAX_FRAMES = 2**16
MAX_NAMES = 2**20
MOST_DENSE = 256
"""Maximum ratio of a content to its compressed frame, which bounds unpacked bytes."""

FRAME = struct.Struct("<QII32s")
PLACE = struct.Struct("<III")
FOOTER = struct.Struct("<QIII32s")
FOOTER_BYTES = FOOTER.size + len(MAGIC)
_NAME_BYTES = 33
_CODES = {area: bytes([code]) for code, area in enumerate(AREAS)}


class Entry(NamedTuple):
    """A file of a store; `area` is one of `AREAS`."""

    area: str
    name: str
    data: bytes


class Frame(NamedTuple):
    """A frame: its place in its pack, and its digest.

    Attributes:
        offset: offset of its first byte in the pack.
        size: its size in the pack.
        raw_size: the size of its content.
        digest: SHA-256 of its bytes in the pack.
    """

    offset: int
    size: int
    raw_size: int
    digest: str


class Place(NamedTuple):
    """Place of a file: number of its frame, offset in that frame's content, size in bytes."""

    frame: int
    offset: int
    size: int


class Footer(NamedTuple):
    """End of a pack: place, counts, and digest of its index."""

    offset: int
    size: int
    frames: int
    names: int
    digest: bytes


def packed_name(area: str, name: str) -> bytes:
    """Return a name in the form of the index; `name` must be 64 hexadecimal digits."""
    return _CODES[area] + bytes.fromhex(name)


def unpacked_name(packed: bytes) -> tuple[str, str]:
    """Return the area and name in a packed name."""
    return AREAS[packed[0]], packed[1:].hex()


def read_footer(data: bytes, pack_bytes: int) -> Footer:
    """Return the footer in the last `FOOTER_BYTES` of a pack, checked against the pack's size.

    Raises:
        CorruptError: the bytes are not the end of a complete pack, or exceed a limit.
    """
    if len(data) != FOOTER_BYTES or data[FOOTER.size :] != MAGIC:
        raise CorruptError("it does not end as a pack does: it is cut short, or damaged")
    footer = Footer(*FOOTER.unpack(data[: FOOTER.size]))
    if footer.frames > MAX_FRAMES or footer.names > MAX_NAMES or pack_bytes > MAX_PACK_BYTES:
        raise CorruptError(
            f"{footer.frames:,} frames, {footer.names:,} files and {pack_bytes:,} bytes are over "
            f"the limits of {MAX_FRAMES:,}, {MAX_NAMES:,} and {MAX_PACK_BYTES:,}"
        )
    size = footer.frames * FRAME.size + footer.names * (_NAME_BYTES + PLACE.size)
    if footer.size != size or footer.offset + size + FOOTER_BYTES != pack_bytes:
        raise CorruptError("its footer contradicts its size")
    return footer


def read_index(data: bytes, footer: Footer) -> tuple[list[Frame], dict[bytes, Place]]:
    """Return frames, and places by packed name, sorted.

    Raises:
        CorruptError: the bytes are not the index in the footer, or contradict themselves.
    """
    if hashlib.sha256(data).digest() != footer.digest:
        raise CorruptError("its index is damaged: it has another SHA-256 than the footer says")
    cut = footer.frames * FRAME.size
    frames = [
        Frame(offset, size, raw, digest.hex())
        for offset, size, raw, digest in FRAME.iter_unpack(data[:cut])
    ]
    at = len(MAGIC)
    for number, frame in enumerate(frames):
        if frame.offset != at:
            raise CorruptError(f"frame {number} does not begin where the one before it ends")
        if frame.raw_size > MAX_FRAME_BYTES:
            raise CorruptError(
                f"frame {number} has {frame.raw_size:,} bytes; the limit is {MAX_FRAME_BYTES:,}"
            )
        if not frame.size <= frame.raw_size <= frame.size * MOST_DENSE:
            raise CorruptError(
                f"frame {number} has {frame.size:,} bytes for a content of {frame.raw_size:,}"
            )
        at += frame.size
    if at != footer.offset:
        raise CorruptError("its index does not begin where the last frame ends")
    end = cut + footer.names * _NAME_BYTES
    names = [data[i : i + _NAME_BYTES] for i in range(cut, end, _NAME_BYTES)]
    if names != sorted(set(names)) or (names and names[-1][0] >= len(AREAS)):
        raise CorruptError("the names in its index are not in order")
    places = map(Place._make, PLACE.iter_unpack(data[end:]))
    return frames, dict(zip(names, places, strict=True))


def open_pack(source: Path | bytes | int, *, digest: str = "") -> Pack:
    """Open a pack and verify its index; frames are verified when they are read.

    Args:
        source: its file, its bytes, or an open descriptor, which the pack will close.
        digest: its name, "" if unknown. Only `Pack.check` compares it.

    Raises:
        CorruptError: the source is not a pack, or is damaged.
        OSError: the source cannot be read.
    """
    if isinstance(source, Path):
        source = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    return Pack(source, digest)


class Pack:
    """An open pack, usable by several threads; see `open_pack`.

    Attributes:
        digest: its name, "" if unknown.
        size: its size in bytes.
        frames: its frames.
        names: packed names of all files, sorted.
    """

    def __init__(self, source: bytes | int, digest: str = "") -> None:
        self._source: bytes | int = source
        self._lock = threading.Lock()
        self._held: dict[int, bytes] = {}
        self._held_bytes = 0
        self.digest = digest
        self.size = len(source) if isinstance(source, bytes) else os.fstat(source).st_size
        if self._read(0, len(MAGIC)) != MAGIC:
            raise CorruptError(f"it does not begin as a pack of version {VERSION} does")
        end = self._read(max(0, self.size - FOOTER_BYTES), FOOTER_BYTES)
        footer = read_footer(end, self.size)
        index = self._read(footer.offset, footer.size)
        frames, self._places = read_index(index, footer)
        self.frames: Sequence[Frame] = frames
        self.names: Sequence[bytes] = list(self._places)

    def __del__(self) -> None:
        """Close the file."""
        self.close()

    def __len__(self) -> int:
        return len(self._places)

    def close(self) -> None:
        """Close the file; nothing can be read afterwards."""
        source, self._source = getattr(self, "_source", b""), b""
        if isinstance(source, int):
            with contextlib.suppress(OSError):
                os.close(source)

    @cached_property
    def _by_frame(self) -> dict[int, list[bytes]]:
        found: dict[int, list[bytes]] = {}
        for packed, place in self._places.items():
            found.setdefault(place.frame, []).append(packed)
        return found

    def has(self, packed: bytes) -> bool:
        """Return True if the pack contains a file, by its packed name."""
        return packed in self._places

    def area_names(self, area: str, prefix: str = "") -> list[str]:
        """Return the sorted names of an area's files.

        Args:
            area: area of the files.
            prefix: prefix of the names, with an even number of digits.
        """
        start = packed_name(area, prefix.ljust(64, "0"))[: 1 + len(prefix) // 2]
        first, last = (bisect_left(self.names, start + pad) for pad in (b"", b"\xff" * 33))
        return [name[1:].hex() for name in self.names[first:last]]

    @property
    def identity(self) -> files.Identity | None:
        """The current identity of its file, None if it is in memory."""
        source = self._source
        return None if isinstance(source, bytes) else files.identity(os.fstat(source))

    def place(self, packed: bytes) -> Place:
        """Return the place of a file in the pack, by its packed name."""
        return self._places[packed]

    def read(self, area: str, name: str) -> bytes | None:
        """Return a file, or None. The caller must verify that the file matches its name.

        The frame is verified here.

        Raises:
            CorruptError: its frame is damaged.
            OSError: the pack cannot be read.
        """
        place = self._places.get(packed_name(area, name))
        if place is None:
            return None
        if place.frame >= len(self.frames):
            raise CorruptError(f"{area} {name} is in frame {place.frame}, which does not exist")
        data = self.content(place.frame)[place.offset : place.offset + place.size]
        if len(data) != place.size:
            raise CorruptError(f"{area} {name} lies outside of frame {place.frame}")
        return data

    def stored(self, number: int) -> bytes:
        """Return the bytes of a frame in the pack, unverified.

        Raises:
            OSError: the pack cannot be read.
        """
        frame = self.frames[number]
        return self._read(frame.offset, frame.size)

    def names_in(self, number: int) -> list[bytes]:
        """Return the packed names of the files that the index lists in a frame; nothing is read."""
        return self._by_frame.get(number, [])

    def check_sizes(self, number: int) -> None:
        """Check that the total size of the files in a frame does not exceed the frame.

        Raises:
            CorruptError: the total size exceeds the frame: places overlap, and could let a small
                pack expand to files of any size.
        """
        size = sum(self.place(packed).size for packed in self.names_in(number))
        if size > self.frames[number].raw_size:
            raise CorruptError(f"frame {number} is smaller than its files")

    def check(self) -> Iterator[Entry]:
        """Read everything; yield each file, which the caller must verify.

        Raises:
            CorruptError: something in it is damaged.
            OSError: the pack cannot be read.
        """
        found = 0
        for number in range(len(self.frames)):
            self.check_sizes(number)
            for packed in self.names_in(number):
                area, name = unpacked_name(packed)
                yield Entry(area, name, self.read(area, name) or b"")
                found += 1
        if found != len(self):
            raise CorruptError("its index names frames that do not exist")
        if self.digest and (digest := self.computed_digest()) != self.digest:
            raise CorruptError(f"its SHA-256 is {digest}")

    def computed_digest(self) -> str:
        """Read the whole pack and return its SHA-256, which should be its name.

        Raises:
            OSError: the pack cannot be read.
        """
        digest = hashlib.sha256()
        for at in range(0, self.size, _READ_BYTES):
            digest.update(self._read(at, min(_READ_BYTES, self.size - at)))
        return digest.hexdigest()

    def content(self, number: int) -> bytes:
        """Return the verified content of a frame; recently requested ones are cached.

        Raises:
            CorruptError: the frame is damaged.
            OSError: the pack cannot be read.
        """
        with self._lock:
            content = self._held.pop(number, None)
            if content is not None:
                self._held[number] = content
                return content
        content = self._verified_content(number)
        with self._lock:
            if number not in self._held:
                self._held[number] = content
                self._held_bytes += len(content)
            while self._held_bytes > _HELD_BYTES and len(self._held) > 1:
                self._held_bytes -= len(self._held.pop(next(iter(self._held))))
        return content

    def _verified_content(self, number: int) -> bytes:
        frame, stored = self.frames[number], self.stored(number)
        digest = hashlib.sha256(stored).hexdigest()
        if digest != frame.digest:
            raise CorruptError(f"frame {number} is damaged: its SHA-256 is {digest}")
        if frame.size == frame.raw_size:
            return stored
        try:
            return compress.decompress(stored, frame.raw_size)
        except CorruptError as error:
            raise CorruptError(f"frame {number}: {error.message}") from error

    def _read(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes; fewer at the end of a truncated file."""
        if isinstance(self._source, bytes):
            return self._source[offset : offset + size]
        parts = []
        while size and (part := os.pread(self._source, size, offset)):
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return b"".join(parts)


def open_stored(folders: Folders, digest: str) -> Pack:
    """Open a pack of a store.

    Raises:
        CorruptError: the file is not a pack, or its index is damaged.
        OSError: the file cannot be read.
    """
    descriptor = folders.open_file(f"{PACKS}/{digest}")
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise CorruptError("not a regular file")
    except BaseException:
        os.close(descriptor)
        raise
    return open_pack(descriptor, digest=digest)


def put_pack_away(
    folders: Folders, digest: str, reason: str, identity: files.Identity | None
) -> None:
    """Move a pack to `quarantine/` with the reason; disk errors are not raised."""
    files.put_away(folders, f"{PACKS}/{digest}", f"{PACKS}-{digest}", reason, identity)


class StorePacks:
    """The packs of one store, opened when a requested file is not found elsewhere.

    Args:
        folders: the folders of the store.
        warn: called with each fault: the pack's place, and the reason.
        read_only: leave damaged packs in place.
    """

    def __init__(
        self, folders: Folders, warn: Callable[[str, str], None], *, read_only: bool = False
    ) -> None:
        self._read_only = read_only
        self._folders = folders
        self._path = str(folders.path(PACKS))
        self._warn = warn
        self._seen: tuple[int, int] | None = None
        self._open: dict[str, Pack] = {}
        self._refused: set[str] = set()

    @property
    def packs(self) -> Mapping[str, Pack]:
        """The readable packs, by name. The folder is listed again after a change.

        Raises:
            OSError: the packs cannot be listed. All methods of this class that take a name may
                raise this.
        """
        try:
            status = os.stat(self._path, follow_symlinks=False)
        except FileNotFoundError:
            self._open, self._seen = {}, None
            return self._open
        seen = status.st_ino, status.st_mtime_ns
        if seen != self._seen:
            names = [name for name in self._folders.names(PACKS) if is_name(name)]
            opened = {name: pack for name in names if (pack := self._opened(name)) is not None}
            self._open, self._seen = opened, seen
        return self._open

    def read(self, area: str, name: str, *, known: bool = False) -> files.Content | None:
        """Return a file from a pack. The caller must verify that the file matches its name.

        Args:
            area: area of the file.
            name: name of the file.
            known: search only packs that are already open.
        """
        packed = packed_name(area, name)
        for digest, pack in list((self._open if known else self.packs).items()):
            if pack.has(packed):
                data = self.read_in(pack, area, name)
                if data is not None:
                    # Files of one variant are in one pack, so search this pack first next time.
                    if next(iter(self._open)) != digest:
                        self._open = {digest: pack, **self._open}
                    return files.Content(data, files.IN_PACK)
        return None

    def holders(self, area: str, name: str) -> list[str]:
        """Return the names of the packs that contain a file."""
        packed = packed_name(area, name)
        return [digest for digest, pack in self.packs.items() if pack.has(packed)]

    def names(self, area: str, prefix: str = "") -> set[str]:
        """Return the names of an area's files in packs; see `Pack.area_names`."""
        return {name for pack in self.packs.values() for name in pack.area_names(area, prefix)}

    def drop_holders(self, area: str, name: str, reason: str) -> None:
        """Quarantine all packs that contain a file; disk errors are not raised."""
        with contextlib.suppress(OSError):
            for digest in self.holders(area, name):
                self._drop(self._open[digest], f"{area} {name}: {reason}")

    def touch(self, area: str, name: str, touched: set[str]) -> bool:
        """Set the time of a pack that contains a file to now; return False if there is none.

        Args:
            area: area of the file.
            name: name of the file.
            touched: packs whose time this caller has already set; the pack is added.

        Raises:
            FileNotFoundError: the pack was just removed.
            OSError: the time of the pack cannot be set.
        """
        holders = self.holders(area, name)
        if holders and touched.isdisjoint(holders):
            self._folders.touch(f"{PACKS}/{holders[0]}")
            touched.add(holders[0])
        return bool(holders)

    def relist(self) -> None:
        """List and open the packs again at the next use."""
        self._open, self._refused, self._seen = {}, set(), None

    def _opened(self, digest: str) -> Pack | None:
        if digest in self._open or digest in self._refused:
            return self._open.get(digest)
        place = f"{PACKS}/{digest}"
        identity = None
        try:
            identity = files.identity(self._folders.status(place))
            return open_stored(self._folders, digest)
        except FileNotFoundError:
            return None
        except CorruptError as error:
            self._warn(place, f"is corrupt and counts as missing: {error.message}")
            if not self._read_only:
                put_pack_away(self._folders, digest, error.message, identity)
        except OSError as error:
            self._warn(place, f"cannot be read: {error.strerror or error}")
        self._refused.add(digest)
        return None

    def read_in(self, pack: Pack, area: str, name: str) -> bytes | None:
        """Return a file of a pack; None if the pack is damaged, which loses all its files."""
        try:
            return pack.read(area, name)
        except CorruptError as error:
            self._drop(pack, error.message)
            return None

    def _drop(self, pack: Pack, reason: str) -> None:
        """Quarantine a pack; its files count as missing here even if that fails."""
        digest = pack.digest
        self._refused.add(digest)
        self._open.pop(digest, None)
        self._warn(f"{PACKS}/{digest}", f"is damaged and counts as missing: {reason}")
        if not self._read_only:
            put_pack_away(self._folders, digest, reason, pack.identity)
