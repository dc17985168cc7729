"""Take the debug sections out of a cubin.

A debug section is one whose name begins with `.debug_` or `.nv_debug_`, also after `.nv.merc`, and
the relocations of one; a section that the loader puts into memory (SHF_ALLOC) is not one.

Symbols, relocations and attributes of a cubin refer to sections and to each other by number, so
none is taken out of a table: **a debug section stays in the section table, empty**. ptxas itself
writes empty sections (`.rela.text.…`). All other sections keep their bytes, names, flags and
numbers, and so do the segments; only places in the file change. What must stay together in a
segment does. Doing it again changes nothing.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from pallasc.errors import CorruptError

_DEBUG = re.compile(rb"(?:\.nv\.merc)?(?:\.rela?)?\.(?:nv_)?debug_")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_PROGRAM = struct.Struct("<IIQQQQQQ")
_PLACES = struct.Struct("<QQ")
_COUNTS = struct.Struct("<HHHHH")
_HEADER_BYTES = 64
_PLACES_AT, _COUNTS_AT = 32, 54
# SHT_NOBITS, and the type that `.nv.merc.nv.shared.…` has: a size, and no bytes in the file.
_NOBITS = (8, 0x70000015)
_ALLOC = 2
_MOST_ALIGNED = 2**16


@dataclass(slots=True)
class _Section:
    """One row of the section table."""

    name: bytes
    row: list[int]

    @property
    def at(self) -> int:
        return self.row[4]

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return 0 if self.row[1] in _NOBITS else self.row[5]

    @property
    def alignment(self) -> int:
        return max(1, self.row[8])

    @property
    def is_debug(self) -> bool:
        return bool(_DEBUG.match(self.name)) and not self.row[2] & _ALLOC


@dataclass(slots=True)
class _Parts:
    """What a file consists of: both tables, and where they lie."""

    programs_at: int
    sections_at: int
    programs: list[list[int]]
    sections: list[_Section]


@dataclass(slots=True)
class _Piece:
    """Bytes of the file that keep their places to each other."""

    start: int
    end: int
    alignment: int
    moved_to: int = 0


def debug_bytes(cubin: bytes) -> int:
    """Return how many bytes the debug sections of a cubin have.

    Raises:
        CorruptError: it is not a 64-bit ELF file, or offsets in it do not fit.
    """
    return sum(section.size for section in _parse(cubin).sections if section.is_debug)


def strip_debug(cubin: bytes) -> bytes:
    """Return a cubin without the content of its debug sections.

    Raises:
        CorruptError: it is not a 64-bit ELF file, or offsets in it do not fit.
    """
    parts = _parse(cubin)
    if not any(section.is_debug and section.size for section in parts.sections):
        return cubin
    for section in parts.sections:
        if section.is_debug:
            section.row[4] = section.row[5] = 0
    pieces = _merge(sorted(_pieces(parts), key=lambda piece: (piece.start, piece.end)))
    data = _lay_out(cubin, pieces)
    _write_tables(data, parts, pieces)
    return bytes(data)


def _parse(data: bytes) -> _Parts:
    if data[:6] != b"\x7fELF\x02\x01" or len(data) < _HEADER_BYTES:
        raise CorruptError("not a 64-bit little-endian ELF file")
    programs_at, sections_at = _PLACES.unpack_from(data, _PLACES_AT)
    program_size, program_count, row_size, count, names = _COUNTS.unpack_from(data, _COUNTS_AT)
    if (count and row_size != _SECTION.size) or (program_count and program_size != _PROGRAM.size):
        raise CorruptError(f"an ELF file has headers of {row_size} and {program_size} bytes")
    _check(data, sections_at, count * _SECTION.size)
    _check(data, programs_at, program_count * _PROGRAM.size)
    rows = [
        list(_SECTION.unpack_from(data, sections_at + index * _SECTION.size))
        for index in range(count)
    ]
    programs = [
        list(_PROGRAM.unpack_from(data, programs_at + index * _PROGRAM.size))
        for index in range(program_count)
    ]
    labels = _names(data, rows, names)
    sections = [_Section(_text(labels, row[0]), row) for row in rows]
    for section in sections:
        _check(data, section.at, section.size)
        if section.alignment > _MOST_ALIGNED:
            raise CorruptError(f"an ELF file has a section aligned to {section.alignment} bytes")
    for program in programs:
        _check(data, program[2], program[5])
    return _Parts(programs_at, sections_at, programs, sections)


def _check(data: bytes, at: int, size: int) -> None:
    if at + size > len(data):
        raise CorruptError(f"an ELF file of {len(data)} bytes has a part from {at} to {at + size}")


def _names(data: bytes, rows: list[list[int]], index: int) -> bytes:
    if not rows:
        return b""
    if index >= len(rows):
        raise CorruptError(f"an ELF file with {len(rows)} sections has its names in {index}")
    at, size = rows[index][4], rows[index][5]
    _check(data, at, size)
    return data[at : at + size]


def _text(labels: bytes, start: int) -> bytes:
    end = labels.find(b"\0", start)
    return labels[start : end if end >= 0 else len(labels)]


def _pieces(parts: _Parts) -> Iterator[_Piece]:
    """Yield all that is kept: header, tables, segments, sections."""
    yield _Piece(0, _HEADER_BYTES, 1)
    if parts.programs:
        end = parts.programs_at + len(parts.programs) * _PROGRAM.size
        yield _Piece(parts.programs_at, end, 8)
    yield _Piece(parts.sections_at, parts.sections_at + len(parts.sections) * _SECTION.size, 8)
    for program in parts.programs:
        if program[5]:
            yield _Piece(program[2], program[2] + program[5], 1)
    for section in parts.sections:
        if section.size:
            yield _Piece(section.at, section.at + section.size, section.alignment)


def _merge(pieces: list[_Piece]) -> list[_Piece]:
    merged: list[_Piece] = []
    for piece in pieces:
        if merged and piece.start < merged[-1].end:
            merged[-1].end = max(merged[-1].end, piece.end)
            merged[-1].alignment = max(merged[-1].alignment, piece.alignment)
        else:
            merged.append(piece)
    return merged


def _lay_out(data: bytes, pieces: list[_Piece]) -> bytearray:
    """Put the pieces one after the other, each as far from its alignment as it was."""
    result = bytearray()
    for piece in pieces:
        result += bytes((piece.start - len(result)) % piece.alignment)
        piece.moved_to = len(result)
        result += data[piece.start : piece.end]
    return result


def _write_tables(data: bytearray, parts: _Parts, pieces: list[_Piece]) -> None:
    sections_at = _moved(pieces, parts.sections_at)
    programs_at = _moved(pieces, parts.programs_at) if parts.programs else parts.programs_at
    for index, section in enumerate(parts.sections):
        section.row[4] = _moved(pieces, section.at)
        _SECTION.pack_into(data, sections_at + index * _SECTION.size, *section.row)
    for index, program in enumerate(parts.programs):
        program[2] = _moved(pieces, program[2])
        _PROGRAM.pack_into(data, programs_at + index * _PROGRAM.size, *program)
    _PLACES.pack_into(data, _PLACES_AT, programs_at, sections_at)


def _moved(pieces: list[_Piece], at: int) -> int:
    """Return where the byte at a place of the old file lies now.

    An empty section may lie between pieces; it then follows the piece before it.
    """
    place = 0
    for piece in pieces:
        if piece.start > at:
            break
        place = piece.moved_to + min(at, piece.end) - piece.start
    return place
