"""Read the parts of an ELF file that cubins and Mosaic's host objects need.

Only 64-bit little-endian files, laid out as in the System V ABI (gABI 4.1, chapters 4 and 5). Every
offset and length is checked against the bytes at hand.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from pallasc.errors import CorruptError

ELF = b"\x7fELF\x02\x01"
"""How such a file begins."""
_HEADER_BYTES = 64
# SHT_NOBITS, and the type that `.nv.merc.nv.shared.…` has: a size, and no bytes in the file.
NO_BITS = (8, 0x70000015)
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


@dataclass(frozen=True, slots=True)
class Section:
    """One section: `content` is empty where the file holds none."""

    name: str
    kind: int
    size: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Symbol:
    """One entry of the symbol table; `section` 0 means that the file does not define it."""

    name: str
    section: int


@dataclass(frozen=True, slots=True)
class Elf:
    """A parsed file; `size` is how many bytes it takes, from its own headers."""

    machine: int
    abi_version: int
    flags: int
    sections: tuple[Section, ...]
    size: int

    def section(self, name: str) -> Section | None:
        """Return the first section called `name`, or None."""
        return next((section for section in self.sections if section.name == name), None)

    def symbols(self) -> list[Symbol]:
        """Return the symbol table, the empty first entry included."""
        table, names = self.section(".symtab"), self.section(".strtab")
        if table is None or names is None:
            return []
        usable = len(table.content) // _SYMBOL.size * _SYMBOL.size
        return [
            Symbol(_text(names.content, row[0]), row[3])
            for row in _SYMBOL.iter_unpack(table.content[:usable])
        ]


def parse_elf(data: bytes) -> Elf:
    """Parse the ELF file that `data` starts with; bytes after it are ignored.

    Raises:
        CorruptError: it is not such a file, or it ends too early.
    """
    if not data.startswith(ELF) or len(data) < _HEADER_BYTES:
        raise CorruptError("not a 64-bit little-endian ELF file")
    machine = struct.unpack_from("<H", data, 18)[0]
    programs, sections = struct.unpack_from("<QQ", data, 32)
    flags = struct.unpack_from("<I", data, 48)[0]
    program_size, program_count, row_size, count, names = struct.unpack_from("<HHHHH", data, 54)
    if count and row_size != _SECTION.size:
        raise CorruptError(f"an ELF file has section headers of {row_size} bytes")
    table_end = sections + count * _SECTION.size
    if table_end > len(data):
        raise CorruptError(f"an ELF file of {len(data)} bytes ends inside its section table")
    rows = list(_SECTION.iter_unpack(data[sections:table_end]))
    size = max(
        [
            _HEADER_BYTES,
            table_end,
            programs + program_size * program_count,
            *(_end(row) for row in rows),
        ]
    )
    if size > len(data):
        raise CorruptError(f"an ELF file of {size} bytes ends after {len(data)}")
    if rows and names >= len(rows):
        raise CorruptError(f"an ELF file with {len(rows)} sections has its names in {names}")
    labels = _content(data, rows[names]) if rows else b""
    return Elf(
        machine=machine,
        abi_version=data[8],
        flags=flags,
        sections=tuple(
            Section(_text(labels, row[0]), row[1], row[5], _content(data, row)) for row in rows
        ),
        size=size,
    )


def _end(row: tuple[int, ...]) -> int:
    return 0 if row[1] in NO_BITS else row[4] + row[5]


def _content(data: bytes, row: tuple[int, ...]) -> bytes:
    return b"" if row[1] in NO_BITS else data[row[4] : row[4] + row[5]]


def _text(table: bytes, start: int) -> str:
    end = table.find(b"\0", start)
    return table[start : end if end >= 0 else len(table)].decode("utf-8", "replace")
