"""The companion record of an artifact: the source lines of its machine code and PTX.

An artifact has no source lines, so it does not depend on the location of its source. The source
lines are in a separate record, which is valid only for code with the digests in it.

The record, schema 2, is canonical JSON (`specs/canonical.py`) with the fields of `SourceLines`; a
frame is a list `[file, line, function]`. It has no times and no absolute paths. Records of schema
1, which had runs instead of lists of numbers, are no longer read.

`ptx_rows` reads the PTX line of each instruction from a cubin. The section `.nv_debug_line_sass`
has these lines, as a line number program (DWARF 3, 6.2) whose only file is the PTX in
`.nv_debug_ptx_txt`. Its addresses are relative to the start of the kernel's code.
"""

import struct
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from pallasc.errors import CorruptError
from pallasc.specs.artifacts.cubin import Elf
from pallasc.specs.canonical import Natural, StrictStruct, canonical_json

SCHEMA = 2
MAX_BYTES = 64 * 2**20
Place = Literal["spec", "installed"]
Line = Annotated[str, Meta(pattern=r"\A[^\n\r]*\Z")]

INSTRUCTION_BYTES = 16
"""Size of each instruction on all architectures that Mosaic compiles for."""
PTX_LINES = ".nv_debug_line_sass"
_PTX = ".nv_debug_ptx_txt"
_HEAD = struct.Struct("<IHIBBbBB")
_AFTER_LENGTHS = 10
"""Bytes up to the end of the header's length field, which that length does not include."""


class Frame(NamedTuple):
    """A line of the user's source and its function, "" outside of functions."""

    file: str
    line: Natural
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


Stack = tuple[Frame, ...]
"""Frames, innermost first."""


class SourceFile(StrictStruct, frozen=True):
    """A file of source.

    Attributes:
        name: relative to the spec's folder, or to a folder of installed packages.
        place: "spec" or "installed", the kind of that folder.
        digest: SHA-256 of the file.
        text: the lines to show, by number.
    """

    name: str
    place: Place
    digest: str
    text: Mapping[Natural, Line]


class SharedMemory(StrictStruct, frozen=True):
    """A part of the shared memory of a block.

    Attributes:
        what: "scratch", "reduction", "barrier" or "other".
        name: the kernel parameter for it, "" if there is none.
        type: its shape and dtype, "f16[2, 64, 64]"; for barriers their number, "[2]"; "" for none.
        bytes: its size, without alignment.
        offset: its offset in dynamic shared memory; None if unknown.
        stack: stack number of the code that allocates it, from 1; 0 for none.
    """

    what: str
    name: str
    type: str
    bytes: Natural
    offset: Natural | None = None
    stack: Natural = 0


class KernelLines(StrictStruct, frozen=True):
    """The source lines of a kernel.

    Attributes:
        name: the kernel.
        code: SHA-256 of its machine code, the section `.text.<name>` of its cubin.
        ptx: SHA-256 of its PTX.
        ptx_lines: the PTX line of each machine instruction; 0 for none.
        ptx_stacks: the stack number of each PTX line, from 1; 0 for none.
        shared_memory: the parts of its shared memory.
    """

    name: str
    code: str
    ptx: str
    ptx_lines: tuple[Natural, ...]
    ptx_stacks: tuple[Natural, ...]
    shared_memory: tuple[SharedMemory, ...] = ()

    @property
    def stacks(self) -> tuple[int, ...]:
        """The stack number of each machine instruction, 0 for none.

        A PTX line without a location, such as a brace around inline assembly or a move that LLVM
        adds, has the location before it, as in the assembler. Lines before the first location have
        the first location, which is the kernel's.
        """
        first = next(filter(None, self.ptx_stacks), 0)
        inherited = [first, *self.ptx_stacks[1:]]
        for line in range(1, len(inherited)):
            inherited[line] = inherited[line] or inherited[line - 1]
        known = len(inherited)
        return tuple(inherited[line - 1] if 0 < line <= known else 0 for line in self.ptx_lines)


class SourceLines(StrictStruct, frozen=True):
    """The source lines of an artifact's kernels.

    Attributes:
        kernels: the kernels with source lines, which are Mosaic's.
        stacks: the stacks that stack numbers refer to; number 1 comes first.
        files: the files of the frames.
    """

    kernels: tuple[KernelLines, ...]
    stacks: tuple[Stack, ...]
    files: tuple[SourceFile, ...]
    schema: Literal[2] = 2

    def of(self, kernel: str, code: str) -> KernelLines | None:
        """Return the lines of a kernel, None if they are for other machine code."""
        wanted = (kernel, code)
        return next((each for each in self.kernels if (each.name, each.code) == wanted), None)

    def stack(self, number: int) -> Stack:
        """Return a stack by its number, () for 0."""
        return self.stacks[number - 1] if 0 < number <= len(self.stacks) else ()

    def file(self, name: str) -> SourceFile | None:
        """Return a file by its name."""
        return next((each for each in self.files if each.name == name), None)

    def text(self, frame: Frame) -> str:
        """Return the source line of a frame, "" if the record lacks it."""
        file = self.file(frame.file)
        return "" if file is None else file.text.get(frame.line, "")


def to_json(lines: SourceLines) -> bytes:
    """Return the record as canonical JSON."""
    return canonical_json(msgspec.to_builtins(lines, str_keys=True))


def from_json(data: bytes) -> SourceLines:
    """Parse a record of source lines.

    Raises:
        CorruptError: it is not a record of this schema.
    """
    if len(data) > MAX_BYTES:
        raise CorruptError(f"source lines of {len(data)} bytes: too many")
    try:
        lines = msgspec.json.decode(data, type=SourceLines)
    except (ValueError, RecursionError) as error:
        raise CorruptError(
            f"the source lines of an artifact are damaged, or not of schema {SCHEMA}: {error}"
        ) from error
    names = {file.name for file in lines.files}
    if unknown := {frame.file for stack in lines.stacks for frame in stack} - names:
        raise CorruptError(f"the source lines of an artifact lack the file {min(unknown)!r}")
    return lines


class Row(NamedTuple):
    """An address, in bytes from the start of the kernel, and the line that starts there."""

    address: int
    line: int


def ptx_rows(elf: Elf) -> tuple[Row, ...]:
    """Return the rows by address, () if the cubin has none; lines are numbered as in `Cubin.ptx`.

    In a cubin, the PTX begins with an empty line for each comment that the assembler removed.
    `Cubin.ptx` omits these lines, and its first line is 1.

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
    """Return the PTX line of each instruction, 0 for none."""
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
        """Yield the address and line of each row, in program order."""
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
