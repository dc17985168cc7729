"""Read packs: the index once, a frame when something in it is asked for."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from pallasc.cache.packs import format
from pallasc.cache.packs.format import Entry, Frame, Place, packed_name, unpacked_name
from pallasc.errors import CorruptError

_HELD_BYTES = 8 * 2**20
"""Contents of frames that are kept, because the next file asked for is often beside the last."""
_READ_BYTES = 2**20


def open_pack(source: Path | bytes | int, *, digest: str | None = None) -> Pack:
    """Open a pack and verify its index; frames are verified when they are read.

    Args:
        source: its file, its bytes, or an open descriptor that the pack closes.
        digest: its name; by default it is computed when it is asked for. It is not compared before
            `Pack.faults`.

    Raises:
        CorruptError: it is not a pack, or damaged.
        OSError: it cannot be read.
    """
    if isinstance(source, Path):
        source = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    return Pack(source, digest)


class Pack:
    """An open pack. It may be used by several threads; see `open_pack`.

    Attributes:
        size: its bytes.
        frames: its frames.
    """

    def __init__(self, source: bytes | int, digest: str | None = None) -> None:
        self._source: bytes | int = source
        self._lock = threading.Lock()
        self._held: dict[int, bytes] = {}
        self._held_bytes = 0
        self._expected = digest
        self.size = len(source) if isinstance(source, bytes) else os.fstat(source).st_size
        format.check_magic(self._read(0, min(self.size, len(format.MAGIC))))
        end = self._read(max(0, self.size - format.FOOTER_BYTES), format.FOOTER_BYTES)
        footer = format.read_footer(end, self.size)
        index = self._read(footer.offset, footer.size)
        frames, names, self._places = format.read_index(index, footer)
        self.frames: Sequence[Frame] = frames
        self._names = names
        self._numbers = dict(zip(names, range(len(names)), strict=True))
        if len(self._numbers) != len(names):
            self.close()
            raise CorruptError("its index has a name twice")

    def __del__(self) -> None:
        """Close the file."""
        self.close()

    def __len__(self) -> int:
        return len(self._numbers)

    def close(self) -> None:
        """Close the file; nothing can be read any more."""
        source, self._source = getattr(self, "_source", b""), b""
        if isinstance(source, int):
            with contextlib.suppress(OSError):
                os.close(source)

    @cached_property
    def digest(self) -> str:
        """Return the pack's name: as it was opened, else the SHA-256 of its bytes."""
        return self._expected or self.computed_digest()

    @cached_property
    def names(self) -> Mapping[tuple[str, str], Place]:
        """Return where each file lies, by area and name, sorted."""
        return {
            unpacked_name(packed): format.place(self._places, number)
            for packed, number in self._numbers.items()
        }

    @cached_property
    def _by_frame(self) -> dict[int, list[tuple[str, str]]]:
        found: dict[int, list[tuple[str, str]]] = {}
        for names, place in self.names.items():
            found.setdefault(place.frame, []).append(names)
        return found

    def listed(self, area: str) -> Iterator[tuple[str, int]]:
        """Yield name and size of each file of an area, sorted by name."""
        code = format.AREAS.index(area)
        for packed, number in self._numbers.items():
            if packed[0] == code:
                yield packed[1:].hex(), format.place(self._places, number).size

    def packed_names(self) -> Sequence[bytes]:
        """Return the packed names of all files, sorted."""
        return self._names

    def has(self, packed: bytes) -> bool:
        """Tell whether the pack holds a file, by its packed name."""
        return packed in self._numbers

    def find(self, area: str, name: str) -> Place | None:
        """Return where a file lies, or None."""
        number = self._numbers.get(packed_name(area, name))
        return None if number is None else format.place(self._places, number)

    def read(self, area: str, name: str) -> bytes | None:
        """Return a file, or None. Its frame is verified; whether it fits its name is not.

        Raises:
            CorruptError: the frame that it lies in is damaged.
            OSError: the pack cannot be read.
        """
        place = self.find(area, name)
        if place is None:
            return None
        if place.frame >= len(self.frames):
            raise CorruptError(f"{area} {name} lies in frame {place.frame}, which does not exist")
        content = self._content(place.frame)
        data = content[place.offset : place.offset + place.size]
        if len(data) != place.size:
            raise CorruptError(f"{area} {name} lies outside of frame {place.frame}")
        return data

    def stored(self, number: int) -> bytes:
        """Return the bytes of a frame as they lie in the pack, not verified.

        Raises:
            OSError: the pack cannot be read.
        """
        frame = self.frames[number]
        return self._read(frame.offset, frame.size)

    def entries(self, number: int) -> list[Entry]:
        """Return the files of a frame that the index has there; each is still to be verified.

        Raises:
            CorruptError: the frame is damaged.
            OSError: the pack cannot be read.
        """
        content = self._content(number)
        found = []
        for area, name, at, size in format.read_head(content, number):
            if self.find(area, name) == (number, at, size):
                found.append(Entry(area, name, content[at : at + size]))
        return found

    def names_in(self, number: int) -> list[tuple[str, str]]:
        """Return area and name of each file that the index has in a frame; nothing is read."""
        return self._by_frame.get(number, [])

    def faults(self) -> Iterator[tuple[int | None, str]]:
        """Read everything; yield each damaged frame, None for the pack as a whole, and why.

        Raises:
            OSError: the pack cannot be read.
        """
        if self._expected is not None and (digest := self.computed_digest()) != self._expected:
            yield None, f"its SHA-256 is {digest}"
        found = 0
        for number in range(len(self.frames)):
            try:
                found += len(self.entries(number))
            except CorruptError as error:
                yield number, error.message
                found += len(self.names_in(number))
        if found != len(self):
            yield None, f"its index names {len(self):,} files, but its frames hold {found:,}"

    def computed_digest(self) -> str:
        """Read the whole pack and return its SHA-256, which should be its name.

        Raises:
            OSError: it cannot be read.
        """
        digest = hashlib.sha256()
        for at in range(0, self.size, _READ_BYTES):
            digest.update(self._read(at, min(_READ_BYTES, self.size - at)))
        return digest.hexdigest()

    def _content(self, number: int) -> bytes:
        """Return the content of a frame; the last ones asked for are kept."""
        with self._lock:
            content = self._held.pop(number, None)
            if content is not None:
                self._held[number] = content
                return content
        content = format.read_content(self.stored(number), self.frames[number], number)
        with self._lock:
            if number not in self._held:
                self._held[number] = content
                self._held_bytes += len(content)
            while self._held_bytes > _HELD_BYTES and len(self._held) > 1:
                self._held_bytes -= len(self._held.pop(next(iter(self._held))))
        return content

    def _read(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes; fewer at the end of a file that was cut short."""
        if isinstance(self._source, bytes):
            return self._source[offset : offset + size]
        parts = []
        while size and (part := os.pread(self._source, size, offset)):
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return b"".join(parts)
