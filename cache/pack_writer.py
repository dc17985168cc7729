"""Writes packs: the files of a variant are adjacent, and each file is written once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import BinaryIO, NamedTuple

from pallasc.cache import packs
from pallasc.cache.format import MANIFESTS
from pallasc.cache.packs import Entry, Footer, Frame, Pack, Place, packed_name, unpacked_name
from pallasc.errors import CorruptError
from pallasc.specs.bundle import compress

LEVEL = 6
FRAME_BYTES = 2**20
"""A frame ends after the variant that reaches this size."""
_MOST_FILLING_BYTES = 4 * 2**20
"""A frame ends at this size even in the middle of a variant."""


class PackSummary(NamedTuple):
    """Summary of a pack that was written.

    Attributes:
        digest: the pack's name, SHA-256 of all its bytes.
        size: its size in bytes.
        names: area and name of each file, sorted.
    """

    digest: str
    size: int
    names: list[tuple[str, str]]


def write_pack(groups: Iterable[Sequence[Entry]], out: BinaryIO) -> PackSummary:
    """Write a pack.

    Args:
        groups: each has the files of one variant. Reading is fastest in the order of writing.
        out: file to write to, from its current position on; it is not read, and its position is not
            changed otherwise.

    Raises:
        CorruptError: a file cannot be packed, or the pack becomes too large.
    """
    writer = PackWriter(out)
    for group in groups:
        writer.add(group)
    return writer.close()


class PackWriter:
    """Writes one pack. The output is not a pack before `close`.

    Args:
        out: file to write to, from its current position on.

    Attributes:
        size: bytes so far, without the frames that are being filled.
    """

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._hash = hashlib.sha256()
        self.size = 0
        self._frames: list[Frame] = []
        self._places: dict[bytes, Place] = {}
        self._seen: set[bytes] = set()
        self._filling: dict[bool, list[Entry]] = {False: [], True: []}
        """Files of the next frame (False), and of the next frame with manifests (True)."""
        self._filling_bytes = {False: 0, True: 0}
        self._write(packs.MAGIC)

    def add(self, group: Iterable[Entry]) -> None:
        """Add the files of one variant; files that are already in the pack are not repeated.

        Raises:
            CorruptError: a file cannot be packed, or the pack becomes too large.
        """
        for entry in group:
            area, name, data = entry
            if len(data) > packs.MAX_FILE_BYTES:
                raise CorruptError(
                    f"{area} {name} has {len(data):,} bytes; a pack takes files of up to "
                    f"{packs.MAX_FILE_BYTES:,}"
                )
            packed = packed_name(area, name)
            if packed in self._seen:
                continue
            self._seen.add(packed)
            is_manifest = area == MANIFESTS
            if self._filling_bytes[is_manifest] + len(data) > _MOST_FILLING_BYTES:
                self._end_frame(is_manifest)
            self._filling[is_manifest].append(entry)
            self._filling_bytes[is_manifest] += len(data)
        for of_manifests, filling_bytes in self._filling_bytes.items():
            if filling_bytes >= FRAME_BYTES:
                self._end_frame(of_manifests)

    def copy(self, pack: Pack, takes: Callable[[bytes], bool]) -> None:
        """Add the files of another pack that `takes` selects by their packed names.

        Raises:
            CorruptError, OSError: as for `copy_frame`.
        """
        for number in range(len(pack.frames)):
            self.copy_frame(pack, number, filter(takes, pack.names_in(number)))

    def copy_frame(self, pack: Pack, number: int, names: Iterable[bytes]) -> None:
        """Add a frame of another pack unchanged; add nothing if none of its files is new.

        Args:
            pack: the other pack.
            number: number of the frame in it.
            names: packed names of the files to take from it.

        Raises:
            CorruptError: the frame is damaged, or this pack becomes too large.
            OSError: the other pack cannot be read.
        """
        new = [packed for packed in names if packed not in self._seen]
        if new:
            pack.content(number)  # verifies the frame
            places = [(packed, *pack.place(packed)[1:]) for packed in new]
            self._seen.update(new)
            self._add_frame(pack.stored(number), pack.frames[number].raw_size, places)

    def close(self) -> PackSummary:
        """Write the rest, the index, and the footer.

        Raises:
            CorruptError: the pack becomes too large.
        """
        self._end_frame(False)
        self._end_frame(True)
        index, offset = write_index(self._frames, self._places), self.size
        digest = hashlib.sha256(index).digest()
        self._write(index)
        footer = Footer(offset, len(index), len(self._frames), len(self._places), digest)
        self._write(write_footer(footer))
        names = [unpacked_name(packed) for packed in sorted(self._places)]
        return PackSummary(self._hash.hexdigest(), self.size, names)

    def _end_frame(self, of_manifests: bool) -> None:
        entries, self._filling[of_manifests] = self._filling[of_manifests], []
        self._filling_bytes[of_manifests] = 0
        if not entries:
            return
        content = b"".join(entry.data for entry in entries)
        places, at = [], 0
        for entry in entries:
            places.append((packed_name(entry.area, entry.name), at, len(entry.data)))
            at += len(entry.data)
        self._add_frame(stored_bytes(content), len(content), places)

    def _add_frame(
        self, stored: bytes, raw_size: int, places: Iterable[tuple[bytes, int, int]]
    ) -> None:
        number = len(self._frames)
        frame = Frame(self.size, len(stored), raw_size, hashlib.sha256(stored).hexdigest())
        self._frames.append(frame)
        self._places.update((name, Place(number, at, size)) for name, at, size in places)
        if (
            len(self._frames) > packs.MAX_FRAMES
            or len(self._places) > packs.MAX_NAMES
            or self.size + len(stored) > packs.MAX_PACK_BYTES // 2
        ):
            raise CorruptError(
                f"a pack takes up to {packs.MAX_FRAMES:,} frames, {packs.MAX_NAMES:,} files and "
                f"{packs.MAX_PACK_BYTES // 2:,} bytes"
            )
        self._write(stored)

    def _write(self, data: bytes) -> None:
        self._out.write(data)
        self._hash.update(data)
        self.size += len(data)


def stored_bytes(content: bytes) -> bytes:
    """Compress a content to the bytes of its frame."""
    stored = compress.compress(content, LEVEL)
    is_smaller = len(stored) < len(content) <= len(stored) * packs.MOST_DENSE
    return stored if is_smaller else content


def write_index(frames: Iterable[Frame], places: Mapping[bytes, Place]) -> bytes:
    """Return the index's bytes; `places` by packed name."""
    names = sorted(places)
    parts = [packs.FRAME.pack(*frame[:3], bytes.fromhex(frame.digest)) for frame in frames]
    return b"".join([*parts, *names, *(packs.PLACE.pack(*places[name]) for name in names)])


def write_footer(footer: Footer) -> bytes:
    """Return the footer's bytes."""
    return packs.FOOTER.pack(*footer) + packs.MAGIC
