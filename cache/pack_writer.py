"""Writes packs: the files of one variant side by side, and each file once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import BinaryIO, NamedTuple

from pallasc.cache import packs
from pallasc.cache.packs import Entry, Footer, Frame, Pack, Place, packed_name, unpacked_name
from pallasc.errors import CorruptError
from pallasc.specs.bundle import compress

LEVEL = 6
FRAME_BYTES = 2**20
"""A frame is closed after the variant that fills it so far."""
_MOST_PENDING_BYTES = 4 * 2**20
"""A frame is closed here even in the middle of a variant."""


class PackSummary(NamedTuple):
    """Summary of a pack that was written.

    Attributes:
        digest: the pack's name, SHA-256 of all its bytes.
        size: its bytes.
        names: area and name of each file, sorted.
    """

    digest: str
    size: int
    names: list[tuple[str, str]]


def write_pack(groups: Iterable[Sequence[Entry]], out: BinaryIO) -> PackSummary:
    """Write a pack.

    Args:
        groups: the files of one variant each. Readers are fastest where variants are asked for in
            the order that they are written in.
        out: is written from its present position on; nothing is read or sought.

    Raises:
        CorruptError: a file cannot be packed, or the pack becomes too large.
    """
    writer = PackWriter(out)
    for group in groups:
        writer.add(group)
    return writer.close()


class PackWriter:
    """Writes one pack. Nothing written is a pack before `close`.

    Args:
        out: is written from its present position on.
    """

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._hash = hashlib.sha256()
        self._at = 0
        self._frames: list[Frame] = []
        self._places: dict[bytes, Place] = {}
        self._seen: set[bytes] = set()
        self._artifacts: list[Entry] = []
        self._pending = 0
        self._manifests: list[Entry] = []
        self._manifest_bytes = 0
        self._last: list[tuple[bytes, int, list[Entry]]] = []
        self._last_bytes = 0
        self._write(packs.MAGIC)

    @property
    def bytes_so_far(self) -> int:
        """Return the bytes so far, including manifests, which are written last."""
        return self._at + self._last_bytes

    def add(self, group: Sequence[Entry]) -> None:
        """Add the files of one variant; those that the pack holds already are not repeated.

        Raises:
            CorruptError: a file cannot be packed, or the pack becomes too large.
        """
        for entry in group:
            if not self._is_new(entry):
                continue
            if entry.area == "man":
                self._manifests.append(entry)
                self._manifest_bytes += len(entry.data)
                if self._manifest_bytes >= FRAME_BYTES:
                    self._end_manifests()
                continue
            if self._pending + len(entry.data) > _MOST_PENDING_BYTES:
                self._end_artifacts()
            self._artifacts.append(entry)
            self._pending += len(entry.data)
        if self._pending >= FRAME_BYTES:
            self._end_artifacts()

    def end_frame(self) -> int:
        """Close the frame that is being filled; return the offset of the next one."""
        self._end_artifacts()
        return self._at

    def copy_frame(self, pack: Pack, number: int, names: Iterable[bytes]) -> None:
        """Add a frame of another pack as it is; nothing if none of its files is new.

        Args:
            pack: the other pack.
            number: of the frame there.
            names: packed names of the files to take from it.

        Raises:
            CorruptError: the frame is damaged, or this pack becomes too large.
            OSError: the other pack cannot be read.
        """
        new = [packed for packed in names if packed not in self._seen]
        if new:
            pack.content(number)  # which verifies it
            places = [(packed, *pack.place(packed)[1:]) for packed in new]
            self._seen.update(new)
            self._add_frame(pack.stored(number), pack.frames[number].raw_size, places)

    def close(self) -> PackSummary:
        """Write the rest, the index, and the footer.

        Raises:
            CorruptError: the pack becomes too large.
        """
        self._end_artifacts()
        self._end_manifests()
        for stored, raw_size, entries in self._last:
            self._add_frame(stored, raw_size, _places(entries))
        self._last = []
        index, offset = write_index(self._frames, self._places), self._at
        digest = hashlib.sha256(index).digest()
        self._write(index)
        footer = Footer(offset, len(index), len(self._frames), len(self._places), digest)
        self._write(write_footer(footer))
        names = [unpacked_name(packed) for packed in sorted(self._places)]
        return PackSummary(self._hash.hexdigest(), self._at, names)

    def _is_new(self, entry: Entry) -> bool:
        if len(entry.data) > packs.MAX_FILE_BYTES:
            raise CorruptError(
                f"{entry.area} {entry.name} has {len(entry.data):,} bytes; a pack takes files of "
                f"up to {packs.MAX_FILE_BYTES:,}"
            )
        packed = packed_name(entry.area, entry.name)
        is_new = packed not in self._seen
        self._seen.add(packed)
        return is_new

    def _end_artifacts(self) -> None:
        if self._artifacts:
            stored, raw_size = write_frame(self._artifacts)
            self._add_frame(stored, raw_size, _places(self._artifacts))
        self._artifacts, self._pending = [], 0

    def _end_manifests(self) -> None:
        if self._manifests:
            stored, raw_size = write_frame(self._manifests)
            self._last.append((stored, raw_size, self._manifests))
            self._last_bytes += len(stored)
        self._manifests, self._manifest_bytes = [], 0

    def _add_frame(
        self, stored: bytes, raw_size: int, places: Iterable[tuple[bytes, int, int]]
    ) -> None:
        number = len(self._frames)
        frame = Frame(self._at, len(stored), raw_size, hashlib.sha256(stored).hexdigest())
        self._frames.append(frame)
        self._places.update((name, Place(number, at, size)) for name, at, size in places)
        if (
            len(self._frames) > packs.MAX_FRAMES
            or len(self._places) > packs.MAX_NAMES
            or self._at + len(stored) > packs.MAX_PACK_BYTES // 2
        ):
            raise CorruptError(
                f"a pack takes up to {packs.MAX_FRAMES:,} frames, {packs.MAX_NAMES:,} files and "
                f"{packs.MAX_PACK_BYTES // 2:,} bytes"
            )
        self._write(stored)

    def _write(self, data: bytes) -> None:
        self._out.write(data)
        self._hash.update(data)
        self._at += len(data)


def _places(entries: Sequence[Entry]) -> list[tuple[bytes, int, int]]:
    """Return packed name, offset and size of files in the frame that `write_frame` makes."""
    places, at = [], 0
    for entry in entries:
        places.append((packed_name(entry.area, entry.name), at, len(entry.data)))
        at += len(entry.data)
    return places


def write_footer(footer: Footer) -> bytes:
    """Return the footer's bytes."""
    return packs.FOOTER.pack(*footer) + packs.MAGIC


def write_index(frames: list[Frame], places: dict[bytes, Place]) -> bytes:
    """Return the index's bytes; `places` by packed name."""
    names = sorted(places)
    return b"".join(
        (
            *(packs.FRAME.pack(*frame[:3], bytes.fromhex(frame.digest)) for frame in frames),
            *names,
            *(packs.PLACE.pack(*places[name]) for name in names),
        )
    )


def write_frame(entries: list[Entry]) -> tuple[bytes, int]:
    """Return the bytes of a frame that holds these files, and the size of its content."""
    content = b"".join(entry.data for entry in entries)
    stored = compress.compress(content, LEVEL)
    if len(stored) >= len(content) or len(stored) * packs.MOST_DENSE < len(content):
        stored = content
    return stored, len(content)
