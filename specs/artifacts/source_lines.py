"""The companion record of an artifact: the source lines of its machine code and PTX.

An artifact has no source lines, so it does not depend on the location of its source. The source
lines are in a separate record, which is valid only for code with the digests in it.

The record, schema 2, is canonical JSON (`specs/canonical.py`) with the fields of `SourceLines`; a
frame is a list `[file, line, function]`. The record has no times and no absolute paths. Records of
schema 1, which had runs instead of lists of numbers, are no longer read.

`lines_of_code` reads the PTX line of each instruction from a cubin. The section
`.nv_debug_line_sass` has these lines, as a line number program (DWARF 3, 6.2) whose only file is
the PTX in `.nv_debug_ptx_txt`. Its addresses are relative to the start of the kernel's code.
"""

import io
import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from pallasc.errors import CorruptError
from pallasc.specs.artifacts.cubin import Elf
from pallasc.specs.canonical import Natural, StrictStruct, canonical_json

SCHEMA = 2
MAX_BYTES = 16 * 2**20
Place = Literal["spec", "installed"]
Line = Annotated[str, Meta(pattern=r"\A[^\n\r]*\Z")]

INSTRUCTION_BYTES = 16
"""Size of each instruction on all architectures that Mosaic compiles for."""
PTX_LINES = ".nv_debug_line_sass"
_PTX = ".nv_debug_ptx_txt"
_HEAD = struct.Struct("<IHIBBbBB")
_AFTER_LENGTHS = 10
"""Offset in a unit of the byte after the field `header_length`, whose value counts from here."""


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
        adds, takes the location of the line before it, as the assembler does. Lines before the
        first location have the first location, which is the kernel's.
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
        CorruptError: `data` is not a record of this schema.
    """
    if len(data) > MAX_BYTES:
        raise CorruptError(f"source lines of {len(data)} bytes: too many")
    try:
        lines = msgspec.json.decode(data, type=SourceLines)
    except (ValueError, RecursionError) as error:
        raise CorruptError(
            f"the source lines of an artifact are damaged, or not of schema {SCHEMA}: {error}",
            hint="If this is a bundle, create it again with pallasc bundle create --lines.",
        ) from error
    names = {file.name for file in lines.files}
    if unknown := {frame.file for stack in lines.stacks for frame in stack} - names:
        raise CorruptError(f"the source lines of an artifact lack the file {min(unknown)!r}")
    return lines


def lines_of_code(elf: Elf, code_bytes: int) -> list[int]:
    """Return the PTX line of each instruction of a cubin's only kernel; 0 for none.

    In a cubin, the PTX begins with an empty line for each comment that the assembler removed.
    `Cubin.ptx` omits these lines, and its first line is 1.

    Raises:
        CorruptError: the line number program is damaged.
    """
    text, table = elf.section(_PTX), elf.section(PTX_LINES)
    content = text.content if text else b""
    empty = len(content) - len(content.lstrip(b"\0"))
    try:
        rows = sorted(_rows(table.content if table else b""), key=itemgetter(0))
    except (IndexError, OverflowError, struct.error) as error:
        raise CorruptError("the line table of a cubin ends inside an entry") from error
    starts = [address for address, _ in rows]
    lines = [0, *(max(0, line - empty) for _, line in rows)]
    instructions = range(0, code_bytes - INSTRUCTION_BYTES + 1, INSTRUCTION_BYTES)
    return [lines[bisect_right(starts, address)] for address in instructions]


def _rows(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield addresses, in bytes from the start of the code, and the lines that start there."""
    start = 0
    while start < len(data):
        length, version, header, unit, _, base, span, first = _HEAD.unpack_from(data, start)
        if version not in (2, 3) or span == 0:
            raise CorruptError(f"a cubin has a line table of version {version}")
        lengths = data[start + _HEAD.size : start + _HEAD.size + first - 1]
        end = start + 4 + length
        if end > len(data):
            raise IndexError(end)
        program = io.BytesIO(data[start + _AFTER_LENGTHS + header : end])
        yield from _run(program, unit, base, span, first, lengths)
        start = end


def _run(
    program: io.BytesIO, unit: int, base: int, span: int, first: int, lengths: bytes
) -> Iterator[tuple[int, int]]:
    """Yield the address and line of each row, in program order."""
    address, line = 0, 1
    while byte := program.read(1):
        opcode = byte[0]
        if opcode >= first:
            address += (opcode - first) // span * unit
            line += base + (opcode - first) % span
            yield address, line
        elif opcode == 0:
            size = _leb128(program)
            extended = program.read(size)
            if len(extended) < size:
                raise IndexError(size)
            if extended[0] == 1:  # the end of a sequence
                address, line = 0, 1
            elif extended[0] == 2:
                address = int.from_bytes(extended[1:], "little")
        elif opcode == 1:
            yield address, line
        elif opcode == 2:
            address += _leb128(program) * unit
        elif opcode == 3:
            line += _leb128(program, is_signed=True)
        elif opcode == 8:
            address += (255 - first) // span * unit
        elif opcode == 9:
            address += struct.unpack("<H", program.read(2))[0]
        else:
            for _ in range(lengths[opcode - 1]):
                _leb128(program)


def _leb128(program: io.BytesIO, *, is_signed: bool = False) -> int:
    result = shift = 0
    while True:
        byte = program.read(1)[0]
        result |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return result - (1 << shift) if is_signed and byte & 0x40 else result
