"""Remove the content of a cubin's debug sections.

The name of a debug section begins with `.debug_` or `.nv_debug_`, possibly after `.nv.merc`. The
relocations of a debug section are treated as debug sections, too. A section that is loaded into
memory (SHF_ALLOC) is never treated as one.

Symbols, relocations, and attributes of a cubin refer to sections and to each other by number, so
nothing is removed from a table: **a debug section stays in the section table, empty**. ptxas itself
writes empty sections (`.rela.text.…`). All other sections keep their bytes, names, flags, and
numbers, and so do the segments; only offsets in the file change. Sections of one segment stay
together. Stripping twice changes nothing.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from pallasc.errors import CorruptError
from pallasc.specs.artifacts.cubin import HEADER_BYTES, NO_BITS, SECTION, parse_elf

_DEBUG = re.compile(r"(?:\.nv\.merc)?(?:\.rela?)?\.(?:nv_)?debug_")
_PROGRAM = struct.Struct("<IIQQQQQQ")
_PLACES = struct.Struct("<QQ")
_COUNTS = struct.Struct("<HHHHH")
_PLACES_AT, _COUNTS_AT = 32, 54
_ALLOC = 2
_MOST_ALIGNED = 2**16


@dataclass(slots=True)
class _Section:
    """A row of the section table."""

    name: str
    row: list[int]

    @property
    def at(self) -> int:
        return self.row[4]

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return 0 if self.row[1] in NO_BITS else self.row[5]

    @property
    def alignment(self) -> int:
        return max(1, self.row[8])

    @property
    def is_debug(self) -> bool:
        return bool(_DEBUG.match(self.name)) and not self.row[2] & _ALLOC


@dataclass(slots=True)
class _Piece:
    """Bytes of the file that keep their relative positions."""

    start: int
    end: int
    alignment: int
    moved_to: int = 0


def debug_bytes(cubin: bytes) -> int:
    """Return the total size of a cubin's debug sections in bytes.

    Raises:
        CorruptError: the cubin is not a 64-bit ELF file, or has wrong offsets.
    """
    return sum(section.size for section in _parse(cubin)[1] if section.is_debug)


def strip_debug(cubin: bytes) -> bytes:
    """Return a cubin without the content of its debug sections.

    Raises:
        CorruptError: the cubin is not a 64-bit ELF file, or has wrong offsets.
    """
    programs, sections = _parse(cubin)
    debug = [section for section in sections if section.is_debug and section.size]
    if not debug:
        return cubin
    for section in debug:
        section.row[4] = section.row[5] = 0
    programs_at, sections_at = _PLACES.unpack_from(cubin, _PLACES_AT)
    kept = [
        _Piece(0, HEADER_BYTES, 1),
        _Piece(programs_at, programs_at + len(programs) * _PROGRAM.size, 8),
        _Piece(sections_at, sections_at + len(sections) * SECTION.size, 8),
        *(_Piece(row[2], row[2] + row[5], 1) for row in programs),
        *(_Piece(own.at, own.at + own.size, own.alignment) for own in sections),
    ]
    pieces = _merged(piece for piece in kept if piece.end > piece.start)
    data = _laid_out(cubin, pieces)
    for section in sections:
        section.row[4] = _moved(pieces, section.at)
    for row in programs:
        row[2] = _moved(pieces, row[2])
    if programs:
        programs_at = _moved(pieces, programs_at)
    sections_at = _moved(pieces, sections_at)
    _PLACES.pack_into(data, _PLACES_AT, programs_at, sections_at)
    for table_at, table, rows in (
        (programs_at, _PROGRAM, programs),
        (sections_at, SECTION, [section.row for section in sections]),
    ):
        for index, row in enumerate(rows):
            table.pack_into(data, table_at + index * table.size, *row)
    return bytes(data)


def _parse(data: bytes) -> tuple[list[list[int]], list[_Section]]:
    names = [section.name for section in parse_elf(data).sections]
    programs_at, sections_at = _PLACES.unpack_from(data, _PLACES_AT)
    program_bytes, program_count, *_ = _COUNTS.unpack_from(data, _COUNTS_AT)
    if program_count and program_bytes != _PROGRAM.size:
        raise CorruptError(f"an ELF file has program headers of {program_bytes} bytes")
    programs = _rows(data, _PROGRAM, programs_at, program_count)
    rows = _rows(data, SECTION, sections_at, len(names))
    for row in programs:
        if row[2] + row[5] > len(data):
            raise CorruptError(f"an ELF file of {len(data)} bytes ends inside a segment")
    for row in rows:
        if row[8] > _MOST_ALIGNED:
            raise CorruptError(f"an ELF file has a section aligned to {row[8]} bytes")
    return programs, [_Section(name, row) for name, row in zip(names, rows, strict=True)]


def _rows(data: bytes, table: struct.Struct, at: int, count: int) -> list[list[int]]:
    return [list(table.unpack_from(data, at + index * table.size)) for index in range(count)]


def _merged(pieces: Iterable[_Piece]) -> list[_Piece]:
    """Sort pieces by their position in the file, and merge those that overlap."""
    merged: list[_Piece] = []
    for piece in sorted(pieces, key=lambda piece: (piece.start, piece.end)):
        if merged and piece.start < merged[-1].end:
            merged[-1].end = max(merged[-1].end, piece.end)
            merged[-1].alignment = max(merged[-1].alignment, piece.alignment)
        else:
            merged.append(piece)
    return merged


def _laid_out(data: bytes, pieces: list[_Piece]) -> bytearray:
    """Place the pieces one after the other, each with its old offset modulo its alignment."""
    result = bytearray()
    for piece in pieces:
        result += bytes((piece.start - len(result)) % piece.alignment)
        piece.moved_to = len(result)
        result += data[piece.start : piece.end]
    return result


def _moved(pieces: list[_Piece], at: int) -> int:
    """Return the new position of a byte of the old file.

    An empty section may be between pieces; it then follows the piece before it.
    """
    place = 0
    for piece in pieces:
        if piece.start > at:
            break
        place = piece.moved_to + min(at, piece.end) - piece.start
    return place
