"""The companion record of an artifact: the user's source lines of its machine code and PTX.

An artifact has no source lines, so that it is the same wherever its source lies. They stand in a
record beside it, which holds only for code with the digests in it. The record, schema 1, is
canonical JSON (`specs/canonical.py`); `n` is a whole number:

* `schema`: 1
* `files`: the files that frames are in: `[{"name", "place", "digest", "text"}]`. `place` is
  "spec", and `name` relative to the spec's folder, or "installed", and `name` relative to a folder
  of installed packages; `digest` is the SHA-256 of the whole file, `text` the part of it that is
  shown: `[[n, [line, …]], …]`, `n` the number of the first line
* `frames`: `[[file, line, function], …]`, `file` a number in `files`, from 0; `function` may be ""
* `stacks`: `[[frame, …], …]`, the innermost frame first
* `kernels`: one entry for each kernel with source lines, Mosaic's:
  * `name`: of the kernel, `code`: SHA-256 of its machine code, `ptx`: SHA-256 of its PTX
  * `ptx_lines`: the line of the PTX that each instruction is from, 0 for none, as runs
  * `ptx_stacks`: the stack of each line of the PTX, from 1, 0 for none, as runs
  * `shared_memory`: see `SharedMemory`: `[{"what", "name", "type", "bytes", "offset", "stack"}]`

Runs are `[count, value, count, value, …]`. Neither times nor absolute paths are in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, NamedTuple, cast

from pallasc.errors import CorruptError
from pallasc.specs.canonical import canonical_json
from pallasc.specs.untrusted_json import (
    as_list,
    as_object,
    as_text,
    as_whole,
    fault,
    parse_json,
)

SCHEMA = 1
MAX_BYTES = 64 * 2**20
_MOST_RUNS = 2**24
Place = Literal["spec", "installed"]


class Frame(NamedTuple):
    """A line of the user's source, and the function that it is in, "" outside of functions."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


Stack = tuple[Frame, ...]
"""Frames, the innermost first."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of source.

    Attributes:
        name: relative to the spec's folder, or to a folder of installed packages.
        place: which of both.
        digest: SHA-256 of the file.
        text: the lines that are shown, by their number.
    """

    name: str
    place: Place
    digest: str
    text: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """A part of the shared memory of a block.

    Attributes:
        what: "scratch", "reduction", "barrier", "tensor memory address", "profile", "alignment" or
            "other".
        name: the parameter that it is given as, "" where there is none.
        type: its shape and dtype, "f16[2, 64, 64]"; of barriers how many, "[2]"; "" for none.
        bytes: its size, without alignment.
        offset: where it begins in dynamic shared memory; None where that is not known.
        stack: the number of the stack of what allocates it, from 1; 0 for none.
    """

    what: str
    name: str
    type: str
    bytes: int
    offset: int | None = None
    stack: int = 0


@dataclass(frozen=True, slots=True)
class KernelLines:
    """The source lines of a kernel.

    Attributes:
        name: of the kernel.
        code: SHA-256 of its machine code, the section `.text.<name>` of its cubin.
        ptx: SHA-256 of its PTX.
        ptx_lines: the line of the PTX that each instruction of the machine code is from; 0 for
            none.
        ptx_stacks: the number of the stack of each line of the PTX, from 1; 0 for none.
        shared_memory: who takes how many bytes.
    """

    name: str
    code: str
    ptx: str
    ptx_lines: tuple[int, ...]
    ptx_stacks: tuple[int, ...]
    shared_memory: tuple[SharedMemory, ...] = ()

    @property
    def stacks(self) -> tuple[int, ...]:
        """The number of the stack of each instruction of the machine code, 0 for none.

        Lines of PTX without a location of their own belong to the location before them, as to the
        assembler: braces around inline assembly, moves that LLVM adds. What comes before the first
        location, the kernel's own, belongs to it.
        """
        first = next(filter(None, self.ptx_stacks), 0)
        inherited = [first, *self.ptx_stacks[1:]]
        for line in range(1, len(inherited)):
            inherited[line] = inherited[line] or inherited[line - 1]
        known = len(inherited)
        return tuple(inherited[line - 1] if 0 < line <= known else 0 for line in self.ptx_lines)


@dataclass(frozen=True, slots=True)
class SourceLines:
    """The source lines of an artifact's kernels.

    Attributes:
        kernels: the kernels with source lines.
        stacks: the stacks that their numbers name; number 1 comes first.
        files: the files that frames are in.
    """

    kernels: tuple[KernelLines, ...]
    stacks: tuple[Stack, ...]
    files: tuple[SourceFile, ...] = field(repr=False)

    def of(self, kernel: str, code: str) -> KernelLines | None:
        """Return the lines of a kernel with this machine code, None where they are of another."""
        wanted = (kernel, code)
        return next((each for each in self.kernels if (each.name, each.code) == wanted), None)

    def stack(self, number: int) -> Stack:
        """Return a stack by its number, () for 0."""
        return self.stacks[number - 1] if 0 < number <= len(self.stacks) else ()

    def file(self, name: str) -> SourceFile | None:
        """Return a file by its name."""
        return next((each for each in self.files if each.name == name), None)

    def text(self, frame: Frame) -> str:
        """Return the source line of a frame, "" where the record does not have it."""
        file = self.file(frame.file)
        return "" if file is None else file.text.get(frame.line, "")


def to_json(lines: SourceLines) -> bytes:
    """Return the record as canonical JSON."""
    frames = sorted({frame for stack in lines.stacks for frame in stack})
    numbers = {frame: number for number, frame in enumerate(frames)}
    files = {file.name: number for number, file in enumerate(lines.files)}
    return canonical_json(
        {
            "schema": SCHEMA,
            "files": [
                {
                    "name": file.name,
                    "place": file.place,
                    "digest": file.digest,
                    "text": _excerpts(file.text),
                }
                for file in lines.files
            ],
            "frames": [[files[frame.file], frame.line, frame.function] for frame in frames],
            "stacks": [[numbers[frame] for frame in stack] for stack in lines.stacks],
            "kernels": [
                {
                    "name": kernel.name,
                    "code": kernel.code,
                    "ptx": kernel.ptx,
                    "ptx_lines": _runs(kernel.ptx_lines),
                    "ptx_stacks": _runs(kernel.ptx_stacks),
                    "shared_memory": [asdict(part) for part in kernel.shared_memory],
                }
                for kernel in lines.kernels
            ],
        }
    )


def from_json(data: bytes) -> SourceLines:
    """Return the source lines in a record.

    Raises:
        CorruptError: it is not a record of this schema.
    """
    if len(data) > MAX_BYTES:
        raise CorruptError(f"source lines of {len(data)} bytes: too many")
    body = parse_json(data)
    try:
        return _source_lines(as_object(body))
    except (LookupError, TypeError, ValueError) as error:
        raise CorruptError(
            f"the source lines of an artifact are damaged: {fault(error)}"
        ) from error


def _source_lines(body: Mapping[str, object]) -> SourceLines:
    if body["schema"] != SCHEMA:
        raise ValueError(f"schema {body['schema']!r} instead of {SCHEMA}")
    files = tuple(map(_file, as_list(body["files"])))
    frames = [_frame(as_list(frame), files) for frame in as_list(body["frames"])]
    stacks = tuple(
        tuple(frames[_natural(number)] for number in as_list(stack))
        for stack in as_list(body["stacks"])
    )
    room = _Room()
    kernels = tuple(_kernel(as_object(kernel), room) for kernel in as_list(body["kernels"]))
    return SourceLines(kernels, stacks, files)


def _file(value: object) -> SourceFile:
    file = as_object(value)
    place = as_text(file["place"])
    if place not in ("spec", "installed"):
        raise ValueError(f"a file lies in {place!r}")
    text: dict[int, str] = {}
    for excerpt in map(as_list, as_list(file["text"])):
        first, shown = excerpt
        text.update(enumerate(map(_line, as_list(shown)), _natural(first)))
    return SourceFile(as_text(file["name"]), cast(Place, place), as_text(file["digest"]), text)


def _line(value: object) -> str:
    line = as_text(value)
    if "\n" in line or "\r" in line:
        raise ValueError("a line of source has several lines")
    return line


def _frame(frame: Sequence[object], files: Sequence[SourceFile]) -> Frame:
    file, line, function = frame
    return Frame(files[_natural(file)].name, _natural(line), as_text(function))


def _kernel(kernel: Mapping[str, object], room: _Room) -> KernelLines:
    return KernelLines(
        name=as_text(kernel["name"]),
        code=as_text(kernel["code"]),
        ptx=as_text(kernel["ptx"]),
        ptx_lines=room.unrolled(kernel["ptx_lines"]),
        ptx_stacks=room.unrolled(kernel["ptx_stacks"]),
        shared_memory=tuple(
            _shared_memory(as_object(part)) for part in as_list(kernel["shared_memory"])
        ),
    )


def _shared_memory(part: Mapping[str, object]) -> SharedMemory:
    offset = part["offset"]
    return SharedMemory(
        what=as_text(part["what"]),
        name=as_text(part["name"]),
        type=as_text(part["type"]),
        bytes=_natural(part["bytes"]),
        offset=None if offset is None else _natural(offset),
        stack=_natural(part["stack"]),
    )


def _natural(value: object) -> int:
    number = as_whole(value)
    if number < 0:
        raise ValueError(f"{number} is negative")
    return number


def _excerpts(text: Mapping[int, str]) -> list[list[object]]:
    """Return numbered lines as runs of consecutive ones."""
    found: list[tuple[int, list[str]]] = []
    for number in sorted(text):
        if not found or found[-1][0] + len(found[-1][1]) != number:
            found.append((number, []))
        found[-1][1].append(text[number])
    return [[first, shown] for first, shown in found]


def _runs(values: Iterable[int]) -> list[int]:
    groups = itertools.groupby(values)
    return [part for value, group in groups for part in (sum(1 for _ in group), value)]


class _Room:
    """How much the runs of a record may still come to: a few bytes can stand for any number."""

    def __init__(self) -> None:
        self._left = _MOST_RUNS

    def unrolled(self, runs: object) -> tuple[int, ...]:
        """Return the values of runs."""
        values = [_natural(value) for value in as_list(runs)]
        counts = values[::2]
        self._left -= sum(counts)
        if len(values) % 2 or self._left < 0:
            raise ValueError("runs of a wrong length")
        pairs = zip(counts, values[1::2], strict=True)
        return tuple(itertools.chain.from_iterable([value] * count for count, value in pairs))
