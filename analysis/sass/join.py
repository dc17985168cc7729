"""Joins many cubins into one file for nvdisasm, whose run time is mostly startup.

nvdisasm 13.5 takes 0.2 s to start and 0.1 s to prepare its data-flow analysis, regardless of its
input, and 10 to 30 ms per kernel. The joined file contains everything that affects the listing, so
that the result is the same. For each kernel that is the section `.text.…`, the symbols of its
functions, and the attributes `.nv.info.…`, from which the analysis reads the ends of a kernel and
the points where warps converge. EIATTR_PARAM_CBANK is left out: it names a symbol by number.

A cubin with relocations in its code, or with duplicate section names, cannot be joined. The ELF
file has sections and no segments: names, strings, symbols, then the kernels' sections. Kernels are
named `k0`, `k1`, … and their functions `k0.NAME`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pallasc.errors import CorruptError
from pallasc.specs.artifacts.cubin import EM_CUDA, Elf, parse_elf

_HEADER = struct.Struct("<HHIQQQIHHHHHH")
_ROW = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_HEADER_BYTES = 64
_PROGBITS, _SYMTAB, _STRTAB, _NV_INFO = 1, 2, 3, 0x70000000
_ALLOC_EXECUTE = 6
_SECTION_SYMBOL, _LOCAL = 3, 0
_SYMBOLS = 3  # index of the section
_PARAM_CBANK = 0x0A
_SIZED = 4
_TEXT = ".text."


@dataclass(frozen=True, slots=True)
class Function:
    """A symbol in a kernel's code; `info` and `other` as in ELF, `name` is "" for the kernel."""

    name: str
    info: int
    other: int
    address: int
    size: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A kernel of a cubin: its code, its attributes, its functions and its registers."""

    content: bytes
    attributes: bytes
    functions: tuple[Function, ...]
    registers: int
    kind: tuple[int, int, int, int]
    """Values that must be equal within a file: type, flags, and two bytes of `e_ident`."""


def pieces_of(cubin: bytes) -> dict[str, Piece] | None:
    """Return the kernels of a cubin by name; None if it has to be disassembled separately.

    Raises:
        CorruptError: it is not a cubin, or has inconsistent lengths or offsets.
    """
    elf = parse_elf(cubin)
    rows = _rows(cubin)
    kind = (struct.unpack_from("<H", cubin, 16)[0], elf.flags, cubin[7], elf.abi_version)
    names = [section.name for section in elf.sections]
    if elf.machine != EM_CUDA or not any(name.startswith(_TEXT) for name in names):
        return None
    if len(set(names)) != len(names) or any(
        section.size and section.name.startswith((".rela.text.", ".rel.text."))
        for section in elf.sections
    ):
        return None
    symbols = _symbols(elf)
    return {
        section.name.removeprefix(_TEXT): _piece(elf, number, rows[number][7] >> 24, symbols, kind)
        for number, section in enumerate(elf.sections)
        if section.name.startswith(_TEXT)
    }


def _piece(
    elf: Elf,
    number: int,
    registers: int,
    symbols: Sequence[tuple[str, tuple[int, ...]]],
    kind: tuple[int, int, int, int],
) -> Piece:
    section = elf.sections[number]
    kernel = section.name.removeprefix(_TEXT)
    functions = tuple(
        Function("" if name == kernel else name, *row[1:3], *row[4:])
        for name, row in symbols
        if row[3] == number and row[1] & 15 != _SECTION_SYMBOL
    )
    return Piece(section.content, _attributes(elf, kernel), functions, registers, kind)


def name_in_file(number: int) -> str:
    """Return the name of the kernel of a piece in a joined file."""
    return f"k{number}"


def joined(pieces: Sequence[Piece]) -> bytes:
    """Join kernels of one kind into a file for nvdisasm."""
    strings, names = _Strings(), _Strings()
    functions = [(number, f) for number, piece in enumerate(pieces) for f in piece.functions]
    functions.sort(key=lambda each: each[1].info >> 4 != _LOCAL)
    symbols = [bytes(_SYMBOL.size)]
    of_kernel = [0] * len(pieces)
    for number, function in functions:
        if not function.name:
            of_kernel[number] = len(symbols)
        own = f".{function.name}" if function.name else ""
        name = strings.add(name_in_file(number) + own)
        section = _SYMBOLS + 1 + 2 * number
        symbols.append(
            _SYMBOL.pack(
                name, function.info, function.other, section, function.address, function.size
            )
        )
    first_global = 1 + sum(f.info >> 4 == _LOCAL for _, f in functions)
    rows = [
        (names.add(".symtab"), _SYMTAB, 0, b"".join(symbols), 2, first_global, 8, _SYMBOL.size),
        *_of_kernels(pieces, names, of_kernel),
    ]
    rows[:0] = [(names.add(".strtab"), _STRTAB, 0, strings.content, 0, 0, 1, 0)]
    rows[:0] = [(names.add(".shstrtab"), _STRTAB, 0, names.content, 0, 0, 1, 0)]
    return _file(rows, pieces[0].kind)


_Row = tuple[int, int, int, bytearray | bytes, int, int, int, int]


def _of_kernels(pieces: Sequence[Piece], names: _Strings, symbols: Sequence[int]) -> Iterator[_Row]:
    for number, piece in enumerate(pieces):
        info = piece.registers << 24 | symbols[number]
        text = (names.add(_TEXT + name_in_file(number)), _PROGBITS, _ALLOC_EXECUTE, piece.content)
        yield (*text, _SYMBOLS, info, 128, 0)
        own = (names.add(f".nv.info.{name_in_file(number)}"), _NV_INFO, 0x40, piece.attributes)
        yield (*own, _SYMBOLS, _SYMBOLS + 1 + 2 * number, 4, 0)


class _Strings:
    """A string table; `content` grows as names are added."""

    def __init__(self) -> None:
        self.content = bytearray(1)

    def add(self, text: str) -> int:
        at = len(self.content)
        self.content += text.encode() + b"\0"
        return at


def _file(rows: Sequence[_Row], kind: tuple[int, int, int, int]) -> bytes:
    body, table = bytearray(_HEADER_BYTES), [bytes(_ROW.size)]
    for name, type_, flags, content, link, info, alignment, entry in rows:
        body += bytes(-len(body) % alignment)
        where = (len(body), len(content), link, info, alignment, entry)
        table.append(_ROW.pack(name, type_, flags, 0, *where))
        body += content
    body += bytes(-len(body) % 8)
    file_type, flags, os_abi, abi_version = kind
    ident = b"\x7fELF\x02\x01\x01" + bytes([os_abi, abi_version]) + bytes(7)
    places = (0, 0, len(body), flags, _HEADER_BYTES, 56, 0, _ROW.size, len(table), 1)
    body[:_HEADER_BYTES] = ident + _HEADER.pack(file_type, EM_CUDA, 1, *places)
    return bytes(body) + b"".join(table)


def _rows(data: bytes) -> list[tuple[int, ...]]:
    start = struct.unpack_from("<Q", data, 40)[0]
    count = struct.unpack_from("<H", data, 60)[0]
    return list(_ROW.iter_unpack(data[start : start + count * _ROW.size]))


def _symbols(elf: Elf) -> list[tuple[str, tuple[int, ...]]]:
    """Return the name and the raw row of each symbol."""
    table = elf.section(".symtab")
    raw = table.content if table else b""
    rows = _SYMBOL.iter_unpack(raw[: len(raw) // _SYMBOL.size * _SYMBOL.size])
    return [(symbol.name, row) for symbol, row in zip(elf.symbols(), rows, strict=False)]


def _attributes(elf: Elf, kernel: str) -> bytes:
    """Return a kernel's attributes, without those that refer to symbols by number."""
    section = elf.section(f".nv.info.{kernel}")
    raw = section.content if section else b""
    found, at = bytearray(), 0
    while at + 4 <= len(raw):
        sort, attribute, size = struct.unpack_from("<BBH", raw, at)
        end = at + 4 + (size if sort == _SIZED else 0)
        if end > len(raw):
            raise CorruptError(f"a cubin's attributes end inside attribute {attribute:#x}")
        if attribute != _PARAM_CBANK:
            found += raw[at:end]
        at = end
    return bytes(found)
