"""Finds the source lines of variants by compiling them again, and stores them.

The lines of the PTX come from a compilation with locations (`compiler/lowering/line_tables`). Its
PTX and machine code must match the artifact's byte for byte. The lines of the machine code then
follow from the assembler's line table in the artifact's cubin, which maps each instruction to a PTX
line.
"""

from __future__ import annotations

import ast
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pallasc.analysis.lines import OWN, code_of, put_source_lines, read_source_lines
from pallasc.cache.store import Store
from pallasc.compiler.lowering import Part
from pallasc.compiler.toolchain.modules import site_folders
from pallasc.compiler.toolchain.setup import Setup, prepare
from pallasc.compiler.workers.pool import Tables, find_capacity, find_lines
from pallasc.errors import CompileError, Location, PallascError
from pallasc.specs.artifacts.artifact import Artifact, KernelResources
from pallasc.specs.artifacts.cubin import parse_elf
from pallasc.specs.artifacts.source_lines import (
    INSTRUCTION_BYTES,
    Frame,
    KernelLines,
    Place,
    SharedMemory,
    SourceFile,
    SourceLines,
    Stack,
    lines_of_code,
)
from pallasc.specs.canonical import digest
from pallasc.specs.spec import Variant

_RESOLUTION_NS = 20_000_000
"""Resolution of file timestamps."""
_OTHER_TOOLCHAIN = (
    "its source lines cannot be found: it was compiled with another toolchain than the installed "
    "one. Build it again, or install the toolchain that compiled it."
)

Found = SourceLines | PallascError
"""Source lines, or the error that explains why there are none."""


class Compiled(NamedTuple):
    """A variant, its artifact, and the artifact's action key."""

    variant: Variant
    artifact: Artifact
    action_key: str


def obtain_source_lines(
    compiled: Sequence[Compiled],
    store: Store,
    *,
    jobs: int | None = None,
    timeout_s: float | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[Found]:
    """Return the source lines of variants, from the store or newly found.

    A variant is compiled again if the store has no lines, or lines of another version of the
    source.

    Args:
        compiled: the variants; their sources must not have changed since compilation.
        store: contains the artifacts; the lines are stored there.
        jobs: number of concurrent compilations; None for as many as fit the machine.
        timeout_s: time limit for each.
        say: called with a message before slow steps.

    Raises:
        ToolError: the compiler is missing, or a compiling process cannot be started.
    """
    stored = [
        read_source_lines(store, action_key, base_dir=variant.base_dir)
        for variant, _, action_key in compiled
    ]
    missing = [each for each, lines in zip(compiled, stored, strict=True) if lines is None]
    found: Iterator[Found] = iter(())
    if missing:
        noun = "variant" if len(missing) == 1 else "variants"
        say(f"compiling {len(missing)} {noun} again to find the source lines")
        jobs = jobs or find_capacity().jobs(len(missing))
        with prepare() as setup:
            found = iter(_compile_again(missing, setup, store, jobs, timeout_s))
    return [next(found) if lines is None else lines for lines in stored]


def _compile_again(
    compiled: Sequence[Compiled], setup: Setup, store: Store, jobs: int, timeout_s: float | None
) -> list[Found]:
    """Return the source lines of variants, which are stored, or the error for each without."""
    since_ns = time.time_ns() - _RESOLUTION_NS
    toolchain = setup.record(setup.context(store).digests)
    fitting = [each for each in compiled if each.artifact.toolchain == toolchain]
    texts, code = [], []
    for variant, artifact, _ in fitting:
        kernels = list(_mosaic(artifact))
        texts.append((variant, {ptx: artifact.blob(ptx).decode() for _, ptx in kernels}))
        code.append({ptx: digest(code_of(artifact, kernel)) for kernel, ptx in kernels})
    answers = iter(find_lines(texts, setup, store, code=code, jobs=jobs, timeout_s=timeout_s))
    return [
        _answered(each, next(answers), since_ns, store)
        if each.artifact.toolchain == toolchain
        else CompileError(_OTHER_TOOLCHAIN)
        for each in compiled
    ]


def _mosaic(artifact: Artifact) -> Iterator[tuple[KernelResources, str]]:
    """Yield the kernels that have PTX, which are Mosaic's, with the digest of the PTX."""
    return ((kernel, kernel.ptx) for kernel in artifact.kernels if kernel.ptx)


def _answered(
    compiled: Compiled, answer: Tables | PallascError, since_ns: int, store: Store
) -> Found:
    if isinstance(answer, PallascError):
        return answer
    try:
        lines = _source_lines(compiled.artifact, answer, Files(compiled.variant.base_dir, since_ns))
    except PallascError as error:
        return error
    put_source_lines(store, compiled.action_key, lines)
    return lines


def _source_lines(artifact: Artifact, tables: Tables, files: Files) -> SourceLines:
    """Return the source lines of an artifact from the tables of its PTX.

    Raises:
        CompileError: a source file cannot be read, or has changed meanwhile.
        CorruptError: a cubin is damaged.
    """
    stacks: dict[Stack, int] = {}
    kernels = []
    for kernel, ptx in _mosaic(artifact):
        table = tables[ptx]
        used = sorted({*table.numbers} - {0})
        numbers = {each: _number(table.stacks[each - 1], files, stacks) for each in used}
        code = code_of(artifact, kernel)
        told = lines_of_code(parse_elf(artifact.blob(kernel.cubin)), len(code))
        kernels.append(
            KernelLines(
                name=kernel.name,
                code=digest(code),
                ptx=ptx,
                ptx_lines=tuple(with_products(code, artifact.blob(ptx).decode(), told)),
                ptx_stacks=tuple(numbers.get(number, 0) for number in table.numbers),
                shared_memory=tuple(
                    _memory(part, [*numbers.values()], files, stacks) for part in table.memory
                ),
            )
        )
    return SourceLines(tuple(kernels), tuple(stacks), files.files())


def _number(places: Sequence[Location], files: Files, stacks: dict[Stack, int]) -> int:
    """Return the number of a stack, 0 for an empty one."""
    stack = tuple(files.frame(place.file, place.line) for place in places)
    return stacks.setdefault(stack, len(stacks) + 1) if stack else 0


def _memory(part: Part, own: Sequence[int], files: Files, stacks: dict[Stack, int]) -> SharedMemory:
    """Return a part of shared memory; parts that JAX allocates get the shortest stack in `own`."""
    number = _number(part.stack, files, stacks)
    if not number and part.what in ("scratch", "barrier"):
        known = list(stacks)
        number = min(own, key=lambda each: len(known[each - 1]), default=0)
    return SharedMemory(part.what, part.name, part.type, part.bytes, part.offset, number)


def with_products(code: bytes, ptx: str, lines: Sequence[int]) -> list[int]:
    """Return the PTX line of each instruction, with corrected lines for matrix instructions.

    The assembler assigns no line to `HGMMA` and similar instructions of Hopper: they would inherit
    the line of the instruction scheduled before them. Normally each `wgmma.mma_async` has one such
    instruction, in the same order. If a loop was unrolled or a branch duplicated, the nearest
    `wgmma.mma_async` is used. The low nine bits of an instruction are its operation, without the
    forms of its operands: 0x1f0 to 0x1f3 are nvdisasm's `HGMMA`, `IGMMA`, `BGMMA` and `QGMMA`.

    Args:
        code: the machine code.
        ptx: the PTX.
        lines: the line of each instruction in the assembler's line table.
    """
    found = list(lines)
    statements = [n for n, line in enumerate(ptx.splitlines(), 1) if "wgmma.mma_async." in line]
    products = [
        number
        for number in range(len(found))
        if 0x1F0 <= struct.unpack_from("<H", code, number * INSTRUCTION_BYTES)[0] & 0x1FF <= 0x1F3
    ]
    in_order = len(statements) == len(products)
    for index, number in enumerate(products if statements else ()):
        held = found[number]
        nearest = min(statements, key=lambda line: abs(line - held))
        found[number] = statements[index] if in_order else nearest
    return found


@dataclass(slots=True)
class Files:
    """The source files of one record: their names and the excerpts to show.

    A record has no absolute paths: a user's file is named relative to the spec's folder, an
    installed file relative to the packages folder. The record contains the text of the functions
    that its frames are in, so lines can be shown even if the source is missing or has changed.

    Args:
        base_dir: the spec's folder.
        since_ns: time before the first read; files changed later are rejected.
    """

    base_dir: str
    since_ns: int
    _read: dict[str, _Source] = field(default_factory=dict)

    def frame(self, path: str, line: int) -> Frame:
        """Return the frame for a line of a file.

        Raises:
            CompileError: the file cannot be read, or has changed since `since_ns`.
        """
        if path not in self._read:
            self._read[path] = self._open(path)
        source = self._read[path]
        source.used.add(line)
        inside = [name for first, last, name in source.functions if first <= line <= last]
        return Frame(source.name, line, ".".join(inside))

    def files(self) -> tuple[SourceFile, ...]:
        """Return the files of the frames requested so far, by name."""
        sources = sorted(self._read.values(), key=lambda source: source.name)
        return tuple(source.file() for source in sources)

    def _open(self, path: str) -> _Source:
        data, why = b"", ""
        try:
            data = Path(path).read_bytes()
            if os.stat(path).st_mtime_ns > self.since_ns:
                why = f"{os.path.basename(path)} changed while it was compiled again."
        except OSError as error:
            why = f"{error.strerror or error}: {path}"
        if why:
            raise CompileError(f"the source lines of its kernels cannot be found: {why}")
        try:
            functions = list(_functions(ast.parse(data)))
        except (SyntaxError, ValueError, RecursionError):
            functions = []
        return _Source(*_name(path, self.base_dir), data, functions)


@dataclass(slots=True)
class _Source:
    """A file; `functions` has each function's first line, last line, and name, outer ones first."""

    name: str
    place: Place
    data: bytes
    functions: list[tuple[int, int, str]]
    used: set[int] = field(default_factory=set)

    def file(self) -> SourceFile:
        # Not `splitlines`, which also splits at form feeds; Python's line numbers do not.
        text = self.data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
        shown = set(self.used)
        for first, last, _ in self.functions:
            if any(first <= line <= last for line in self.used):
                shown.update(range(first, last + 1))
        kept = {n: line for n, line in enumerate(text.split("\n"), 1) if n in shown}
        return SourceFile(self.name, self.place, digest(self.data), kept)


def _functions(node: ast.AST) -> Iterator[tuple[int, int, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([child.lineno, *(each.lineno for each in child.decorator_list)])
            yield first, child.end_lineno or child.lineno, child.name
        yield from _functions(child)


def _name(path: str, base_dir: str) -> tuple[str, Place]:
    """Return the name and place of a file in a record."""
    real, own = os.path.realpath(path), os.path.realpath(base_dir)
    for folder in sorted(site_folders(), key=len, reverse=True):
        for each in (path, real):
            if each.startswith(folder):
                return each.removeprefix(folder), "installed"
    if not real.startswith(own + os.sep) and real.startswith(f"{OWN}{os.sep}specs{os.sep}"):
        return f"pallasc/{Path(real).relative_to(OWN).as_posix()}", "installed"
    return Path(os.path.relpath(real, own)).as_posix(), "spec"
