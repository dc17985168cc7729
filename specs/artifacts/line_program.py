"""Read which line of its PTX each instruction of a cubin is from.

`.nv_debug_line_sass` has them, as a line number program (DWARF 3, 6.2) whose only file is the PTX
in `.nv_debug_ptx_txt`. Its addresses count from the start of the kernel's code.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from pallasc.errors import CorruptError
from pallasc.specs.artifacts.elf import Elf

INSTRUCTION_BYTES = 16
"""Of each instruction, on all architectures that Mosaic compiles for."""
PTX_LINES = ".nv_debug_line_sass"
_PTX = ".nv_debug_ptx_txt"
_HEAD = struct.Struct("<IHIBBbBB")
_AFTER_LENGTHS = 10
"""The bytes up to the end of the header's own length, which it does not count."""


class Row(NamedTuple):
    """An address, in bytes from the start of the kernel, from which on a line holds."""

    address: int
    line: int


def ptx_rows(elf: Elf) -> tuple[Row, ...]:
    """Return the rows by address; () where the cubin has none. Lines count as in `Cubin.ptx`.

    The PTX of a cubin begins with an empty line for each comment that the assembler took out;
    `Cubin.ptx` is without them, its lines begin with 1.

    Raises:
        CorruptError: the program is damaged.
    """
    text, lines = elf.section(_PTX), elf.section(PTX_LINES)
    content = text.content if text else b""
    empty = len(content) - len(content.lstrip(b"\0"))
    try:
        rows = sorted(_rows(lines.content if lines else b""), key=lambda row: row.address)
    except (IndexError, struct.error) as error:
        raise CorruptError("the line table of a cubin ends inside an entry") from error
    return tuple(Row(row.address, max(0, row.line - empty)) for row in rows)


def lines_of_code(rows: tuple[Row, ...], code_bytes: int) -> list[int]:
    """Return the line of each instruction, 0 for none."""
    lines: list[int] = []
    following = iter([*rows, Row(1 << 63, 0)])
    line, then = 0, next(following)
    for address in range(0, code_bytes - INSTRUCTION_BYTES + 1, INSTRUCTION_BYTES):
        while then.address <= address:
            line, then = then.line, next(following)
        lines.append(line)
    return lines


def _rows(data: bytes) -> Iterator[Row]:
    start = 0
    while start < len(data):
        length, version, header, unit, _, base, span, first = _HEAD.unpack_from(data, start)
        if version not in (2, 3) or span == 0:
            raise CorruptError(f"a cubin has a line table of version {version}")
        lengths = data[start + _HEAD.size : start + _HEAD.size + first - 1]
        end = start + 4 + length
        program = _Program(data, start + _AFTER_LENGTHS + header, end)
        yield from program.rows(unit, base, span, first, lengths)
        start = end


class _Program:
    def __init__(self, data: bytes, at: int, end: int) -> None:
        self._data, self._at, self._end = data, at, end

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _number(self, *, is_signed: bool = False) -> int:
        """Return a LEB128 number."""
        result = shift = 0
        while True:
            byte = self._byte()
            result |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return result - (1 << shift) if is_signed and byte & 0x40 else result

    def rows(self, unit: int, base: int, span: int, first: int, lengths: bytes) -> Iterator[Row]:
        """Yield address and line of each row, in the order of the program."""
        address, line = 0, 1
        while self._at < self._end:
            opcode = self._byte()
            if opcode >= first:
                address += (opcode - first) // span * unit
                line += base + (opcode - first) % span
                yield Row(address, line)
            elif opcode == 0:
                size = self._number()
                behind = self._at + size
                kind = self._byte()
                if kind == 1:  # the end of a sequence
                    address, line = 0, 1
                elif kind == 2:
                    address = int.from_bytes(self._data[self._at : behind], "little")
                self._at = behind
            elif opcode == 1:
                yield Row(address, line)
            elif opcode == 2:
                address += self._number() * unit
            elif opcode == 3:
                line += self._number(is_signed=True)
            elif opcode == 8:
                address += (255 - first) // span * unit
            elif opcode == 9:
                address += struct.unpack_from("<H", self._data, self._at)[0]
                self._at += 2
            else:
                for _ in range(lengths[opcode - 1]):
                    self._number()
