"""Where the machine code of a cubin accesses local memory, by the lines of its PTX.

An instruction has 16 bytes on all architectures that Mosaic compiles for; the low twelve bits are
its operation: 0x387 stores to local memory, 0x983 loads from it (`STL` and `LDL` of nvdisasm).

`.nv_debug_line_sass` has the lines, as a line number program (DWARF 3, 6.2) whose only file is the
PTX in `.nv_debug_ptx_txt`. Its addresses count from the start of the kernel's code.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from pallasc.errors import CorruptError
from pallasc.specs.artifacts.elf import parse_elf

_INSTRUCTION_BYTES = 16
_OPERATION = 0xFFF
_STORE_LOCAL, _LOAD_LOCAL = 0x387, 0x983
_HEAD = struct.Struct("<IHIBBbBB")
_AFTER_LENGTHS = 10
"""The bytes up to the end of the header's own length, which it does not count."""


class LocalAccess(NamedTuple):
    """A line of PTX whose machine code accesses local memory, and how often."""

    ptx_line: int
    stores: int
    loads: int


def local_accesses(cubin: bytes, kernel: str) -> list[LocalAccess] | None:
    """Return the lines of a kernel that access local memory, most accesses first.

    None where the cubin does not tell: it has several kernels, or no lines.

    Raises:
        CorruptError: it is not a cubin, or its lines are damaged.
    """
    elf = parse_elf(cubin)
    code = [section for section in elf.sections if section.name.startswith(".text.")]
    lines = elf.section(".nv_debug_line_sass")
    if len(code) != 1 or code[0].name != f".text.{kernel}" or lines is None:
        return None
    try:
        line_at = list(_rows(lines.content))
    except (IndexError, struct.error) as error:
        raise CorruptError("the line table of a cubin ends inside an entry") from error
    counts: dict[int, list[int]] = {}
    rows, line = iter([*line_at, (1 << 63, 0)]), 0
    following = next(rows)
    content = code[0].content
    for address in range(0, len(content) - _INSTRUCTION_BYTES + 1, _INSTRUCTION_BYTES):
        while following[0] <= address:
            line, following = following[1], next(rows)
        operation = struct.unpack_from("<H", content, address)[0] & _OPERATION
        if operation in (_STORE_LOCAL, _LOAD_LOCAL):
            counts.setdefault(line, [0, 0])[operation == _LOAD_LOCAL] += 1
    found = [LocalAccess(line, *each) for line, each in counts.items()]
    return sorted(found, key=lambda each: (-each.stores - each.loads, each.ptx_line))


def _rows(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the rows of a line number program, by address: address and line."""
    rows: list[tuple[int, int]] = []
    start = 0
    while start < len(data):
        length, version, header, unit, _, base, span, first = _HEAD.unpack_from(data, start)
        if version not in (2, 3) or span == 0:
            raise CorruptError(f"a cubin has a line table of version {version}")
        lengths = data[start + _HEAD.size : start + _HEAD.size + first - 1]
        end = start + 4 + length
        program = _Program(data, start + _AFTER_LENGTHS + header, end)
        rows += program.rows(unit, base, span, first, lengths)
        start = end
    return iter(sorted(rows))


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

    def rows(
        self, unit: int, base: int, span: int, first: int, lengths: bytes
    ) -> Iterator[tuple[int, int]]:
        """Yield address and line of each row, in the order of the program."""
        address, line = 0, 1
        while self._at < self._end:
            opcode = self._byte()
            if opcode >= first:
                address += (opcode - first) // span * unit
                line += base + (opcode - first) % span
                yield address, line
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
                yield address, line
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
