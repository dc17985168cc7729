"""The format of packs: many files of a store, compressed together in one file.

A pack holds files exactly as the store has them (`cache/format.py`), so that what comes out of one
is verified as any other file is. Files that are read together lie in one frame: those of one
variant side by side, manifests in frames of their own at the end. A frame says what it holds, so
it can be copied to another pack as it is, or used alone.

    pack    = magic { frame } index footer
    magic   = "pallasc-pack 1" LF
    frame   = zstd                      without its magic number, see `specs/bundle/compress.py`
            | content                   where size = raw; always where zstd saves nothing, or more
                                        than 255 of 256 bytes
    content = head { file }             files in the order of the head, nothing between them
    head    = { area SP name SP bytes LF } LF
    area    = "man" | "ac" | "cas"      as in `cache/format.py`
    name    = 64 lower-case hexadecimal digits
    bytes   = decimal, without leading zeros

    index   = { frames } { names } { places }
    frames  = offset:u64 size:u32 raw:u32 digest:32     one after the other, from the magic to the
                                                        index; SHA-256 of the `size` bytes there
    names   = area:u8 name:32                           ascending, each once; "man" is 0, "ac" 1,
                                                        "cas" 2
    places  = frame:u32 offset:u32 bytes:u32            of each name: where in which content
    footer  = offset:u64 size:u32 frames:u32 names:u32 digest:32 "pallasc-pack 1" LF
                                                        of the index: place, size, counts, SHA-256

All numbers are little-endian. The name of a pack is the SHA-256 of all its bytes. A frame may hold
files that the index does not name: they were left out when the frame was copied.

The same files give the same pack with one version of the zstd library. With another version the
compressed bytes may differ, so nothing may depend on a pack's name but where the pack lies.

Limits: see the constants. What is larger is refused before memory is taken for it.

History:
    1  the first version.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from pallasc.errors import CorruptError
from pallasc.specs.bundle import compress

VERSION = 1
MAGIC = b"pallasc-pack 1\n"
AREAS = ("man", "ac", "cas")
LEVEL = 6
FRAME_BYTES = 2**20
"""A frame is closed after the variant that fills it so far."""
MAX_FILE_BYTES = 64 * 2**20
"""A larger file is not packed."""
MAX_FRAME_BYTES = MAX_FILE_BYTES + 2**20
MAX_PACK_BYTES = 2**32
MAX_FRAMES = 2**16
MAX_NAMES = 2**20
MOST_DENSE = 256
"""How much smaller than its content a compressed frame may be: a bound on what is unpacked."""

_FRAME = struct.Struct("<QII32s")
_PLACE = struct.Struct("<III")
_FOOTER = struct.Struct("<QIII32s")
FOOTER_BYTES = _FOOTER.size + len(MAGIC)
_NAME_BYTES = 33
_LINE = re.compile(rb"(man|ac|cas) ([0-9a-f]{64}) (0|[1-9][0-9]{0,9})")
_CODES = {area: bytes([code]) for code, area in enumerate(AREAS)}
_MAGICS = re.compile(rb"pallasc-pack ([0-9]{1,9})\n")


class Entry(NamedTuple):
    """A file of a store; `area` is one of `AREAS`."""

    area: str
    name: str
    data: bytes


class Frame(NamedTuple):
    """A frame: where it lies in its pack, and what it must be.

    Attributes:
        offset: of its first byte, in the pack.
        size: its bytes in the pack.
        raw_size: the bytes of its content.
        digest: SHA-256 of its bytes in the pack.
    """

    offset: int
    size: int
    raw_size: int
    digest: str


class Place(NamedTuple):
    """Where a file lies: number of its frame, offset in that frame's content, size in bytes."""

    frame: int
    offset: int
    size: int


class Footer(NamedTuple):
    """What the end of a pack says of its index."""

    offset: int
    size: int
    frames: int
    names: int
    digest: bytes


def packed_name(area: str, name: str) -> bytes:
    """Return a name as the index has it; `name` must be 64 hexadecimal digits."""
    return _CODES[area] + bytes.fromhex(name)


def unpacked_name(packed: bytes) -> tuple[str, str]:
    """Return area and name of what `packed_name` gave."""
    return AREAS[packed[0]], packed[1:].hex()


def check_magic(data: bytes) -> None:
    """Check the first bytes of a pack.

    Raises:
        CorruptError: they are not those of a pack of this version.
    """
    if data == MAGIC:
        return
    version = _MAGICS.match(data)
    if version is not None:
        raise CorruptError(
            f"it is a pack of version {version[1].decode()}, and this pallasc reads {VERSION}",
            hint="Update pallasc.",
        )
    raise CorruptError("it does not begin as a pack does")


def read_footer(data: bytes, pack_bytes: int) -> Footer:
    """Return what the last `FOOTER_BYTES` of a pack say, checked against the pack's size.

    Raises:
        CorruptError: they are not the end of a whole pack, or break a limit.
    """
    if len(data) != FOOTER_BYTES or data[_FOOTER.size :] != MAGIC:
        raise CorruptError("it does not end as a pack does: it is cut short, or damaged")
    footer = Footer(*_FOOTER.unpack(data[: _FOOTER.size]))
    if footer.frames > MAX_FRAMES or footer.names > MAX_NAMES or pack_bytes > MAX_PACK_BYTES:
        raise CorruptError(
            f"{footer.frames:,} frames, {footer.names:,} files and {pack_bytes:,} bytes are over "
            f"the limits of {MAX_FRAMES:,}, {MAX_NAMES:,} and {MAX_PACK_BYTES:,}"
        )
    size = footer.frames * _FRAME.size + footer.names * (_NAME_BYTES + _PLACE.size)
    if footer.size != size or footer.offset + size + FOOTER_BYTES != pack_bytes:
        raise CorruptError("its footer contradicts its size")
    return footer


def write_footer(footer: Footer) -> bytes:
    """Return the footer's bytes."""
    return _FOOTER.pack(*footer) + MAGIC


def write_index(frames: list[Frame], places: dict[bytes, Place]) -> bytes:
    """Return the index's bytes; `places` by packed name."""
    names = sorted(places)
    return b"".join(
        (
            *(_FRAME.pack(*frame[:3], bytes.fromhex(frame.digest)) for frame in frames),
            *names,
            *(_PLACE.pack(*places[name]) for name in names),
        )
    )


def read_index(data: bytes, footer: Footer) -> tuple[list[Frame], list[bytes], bytes]:
    """Return frames, packed names and the bytes of the places, which `place` reads.

    Raises:
        CorruptError: it is not the index that the footer names, or contradicts itself.
    """
    if hashlib.sha256(data).digest() != footer.digest:
        raise CorruptError("its index is damaged: it has another SHA-256 than the footer says")
    cut = footer.frames * _FRAME.size
    frames = [
        Frame(offset, size, raw, digest.hex())
        for offset, size, raw, digest in _FRAME.iter_unpack(data[:cut])
    ]
    at = len(MAGIC)
    for number, frame in enumerate(frames):
        if frame.offset != at:
            raise CorruptError(f"frame {number} does not begin where the one before it ends")
        check_frame(number, frame)
        at += frame.size
    if at != footer.offset:
        raise CorruptError("its index does not begin where the last frame ends")
    end = cut + footer.names * _NAME_BYTES
    names = [data[i : i + _NAME_BYTES] for i in range(cut, end, _NAME_BYTES)]
    if names != sorted(names) or (names and names[-1][0] >= len(AREAS)):
        raise CorruptError("the names in its index are not in order")
    return frames, names, data[end:]


def place(places: bytes, number: int) -> Place:
    """Return the place of the name with this number."""
    return Place(*_PLACE.unpack_from(places, number * _PLACE.size))


def check_frame(number: int, frame: Frame) -> None:
    """Check that a frame stays below the limits.

    Raises:
        CorruptError: it does not.
    """
    if not 0 < frame.raw_size <= MAX_FRAME_BYTES:
        raise CorruptError(
            f"frame {number} has {frame.raw_size:,} bytes; the limit is {MAX_FRAME_BYTES:,}"
        )
    if not frame.size <= frame.raw_size <= frame.size * MOST_DENSE:
        raise CorruptError(
            f"frame {number} has {frame.size:,} bytes for a content of {frame.raw_size:,}"
        )


def write_frame(entries: list[Entry]) -> tuple[bytes, int]:
    """Return the bytes of a frame that holds these files, and the size of its content."""
    head = b"".join(
        b"%s %s %d\n" % (entry.area.encode(), entry.name.encode(), len(entry.data))
        for entry in entries
    )
    content = b"".join((head, b"\n", *(entry.data for entry in entries)))
    stored = compress.compress(content, LEVEL)
    if len(stored) >= len(content) or len(stored) * MOST_DENSE < len(content):
        stored = content
    return stored, len(content)


def read_content(stored: bytes, frame: Frame, number: int = 0) -> bytes:
    """Return the content of a frame.

    Args:
        stored: its bytes in the pack.
        frame: what they must be.
        number: of the frame, for messages.

    Raises:
        CorruptError: they are anything else.
    """
    check_frame(number, frame)
    if len(stored) != frame.size or hashlib.sha256(stored).hexdigest() != frame.digest:
        raise CorruptError(
            f"frame {number} is damaged: its SHA-256 is {hashlib.sha256(stored).hexdigest()}"
        )
    if frame.size == frame.raw_size:
        return stored
    try:
        return compress.decompress(stored, frame.raw_size)
    except CorruptError as error:
        raise CorruptError(f"frame {number}: {error.message}") from error


def read_head(content: bytes, number: int = 0) -> Iterator[tuple[str, str, int, int]]:
    """Yield area, name, offset and size of each file in a frame's content.

    Raises:
        CorruptError: the content does not begin with a head that describes all of it.
    """
    end = content.find(b"\n\n") + 2
    if content.startswith(b"\n") or end < 2:
        raise CorruptError(f"frame {number} does not say what it holds")
    at = end
    for line in content[: end - 2].split(b"\n"):
        match = _LINE.fullmatch(line)
        if match is None:
            raise CorruptError(f"frame {number}: {line[:80]!r} is not a file of a store")
        size = int(match[3])
        yield match[1].decode("ascii"), match[2].decode("ascii"), at, size
        at += size
    if at != len(content):
        raise CorruptError(f"frame {number} has {len(content):,} bytes; its head says {at:,}")


def read_frame(stored: bytes, frame: Frame, number: int = 0) -> list[Entry]:
    """Return the files of a frame that was copied out of its pack; each is still to be verified.

    Raises:
        CorruptError: as of `read_content` and `read_head`.
    """
    content = read_content(stored, frame, number)
    return [
        Entry(area, name, content[at : at + size])
        for area, name, at, size in read_head(content, number)
    ]
