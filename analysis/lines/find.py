"""Find the source lines of variants by compiling them again, and store them with the artifacts.

The lines of the PTX come from a compilation with locations (`compiler/lowering/line_tables`). Its
PTX and machine code must match the artifact's byte for byte. The lines of the machine code then
follow from the assembler's line table in the artifact's cubin, which maps each instruction to a PTX
line.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pallasc.analysis.lines.files import Files
from pallasc.analysis.lines.products import with_products
from pallasc.analysis.lines.stored import put_source_lines
from pallasc.cache.store import Store
from pallasc.compiler.lowering.user_lines import Part
from pallasc.compiler.toolchain.setup import Setup
from pallasc.compiler.workers.pool import Tables, find_lines
from pallasc.errors import CompileError, Location, PallascError
from pallasc.specs.artifacts.artifact import Artifact, KernelResources
from pallasc.specs.artifacts.cubin import Elf, parse_elf
from pallasc.specs.artifacts.source_lines import (
    KernelLines,
    SharedMemory,
    SourceLines,
    Stack,
    lines_of_code,
    ptx_rows,
)
from pallasc.specs.canonical import digest
from pallasc.specs.spec import Variant

_RESOLUTION_NS = 20_000_000
"""Resolution of file timestamps."""


class Compiled(NamedTuple):
    """A variant, its artifact, and the artifact's action key."""

    variant: Variant
    artifact: Artifact
    action_key: str


def find_source_lines(
    compiled: Sequence[Compiled],
    setup: Setup,
    store: Store,
    *,
    jobs: int = 1,
    timeout_s: float | None = None,
) -> list[SourceLines | PallascError]:
    """Return the source lines of variants, or the error for each without; found lines are stored.

    Args:
        compiled: the variants; their sources must not have changed since compilation.
        setup: the toolchain that compiled them.
        store: contains the artifacts; the lines are stored there.
        jobs: number of concurrent compilations.
        timeout_s: time limit for each.

    Raises:
        ToolError: a compiling process cannot be started.
    """
    since_ns = time.time_ns() - _RESOLUTION_NS
    toolchain = setup.record(setup.context(store).digests)
    found: list[SourceLines | PallascError] = [CompileError(_OTHER_TOOLCHAIN) for _ in compiled]
    fitting = [n for n, each in enumerate(compiled) if each.artifact.toolchain == toolchain]
    texts = [_texts(compiled[number].artifact) for number in fitting]
    code = [_code(compiled[number].artifact) for number in fitting]
    kernels = [(compiled[n].variant, ptx) for n, ptx in zip(fitting, texts, strict=True)]
    answers = find_lines(kernels, setup, store, code=code, jobs=jobs, timeout_s=timeout_s)
    for number, answer in zip(fitting, answers, strict=True):
        found[number] = _answered(compiled[number], answer, since_ns, store)
    return found


_OTHER_TOOLCHAIN = (
    "its source lines cannot be found: it was compiled with another toolchain than the installed "
    "one. Build it again, or install the toolchain that compiled it."
)


def _answered(
    compiled: Compiled, answer: Tables | PallascError, since_ns: int, store: Store
) -> SourceLines | PallascError:
    if isinstance(answer, PallascError):
        return answer
    try:
        lines = source_lines(compiled.artifact, answer, Files(compiled.variant.base_dir, since_ns))
    except PallascError as error:
        return error
    put_source_lines(store, compiled.action_key, lines)
    return lines


def source_lines(artifact: Artifact, tables: Tables, files: Files) -> SourceLines:
    """Return the source lines of an artifact from the tables of its PTX.

    Raises:
        CompileError: a file with such a line cannot be read, or has changed meanwhile.
        CorruptError: a cubin is damaged.
    """
    stacks: dict[Stack, int] = {}
    kernels = []
    for kernel in _mosaic(artifact):
        table = tables[kernel.ptx or ""]
        used = sorted({*table.numbers} - {0})
        numbers = {each: _number(table.stacks[each - 1], files, stacks) for each in used}
        own = tuple(numbers.values())
        elf = parse_elf(artifact.blob(kernel.cubin))
        text = code_of(elf, kernel.name)
        told = lines_of_code(ptx_rows(elf), len(text))
        ptx = artifact.blob(kernel.ptx or "").decode()
        kernels.append(
            KernelLines(
                name=kernel.name,
                code=digest(text),
                ptx=kernel.ptx or "",
                ptx_lines=tuple(with_products(text, ptx, told)),
                ptx_stacks=tuple(numbers.get(number, 0) for number in table.numbers),
                shared_memory=tuple(_memory(part, own, files, stacks) for part in table.memory),
            )
        )
    return SourceLines(tuple(kernels), tuple(stacks), files.files())


def _number(places: Sequence[Location], files: Files, stacks: dict[Stack, int]) -> int:
    """Return the number of a stack, 0 for an empty one."""
    stack = tuple(files.frame(place.file, place.line) for place in places)
    return stacks.setdefault(stack, len(stacks) + 1) if stack else 0


def _memory(part: Part, own: Sequence[int], files: Files, stacks: dict[Stack, int]) -> SharedMemory:
    """Return a part of shared memory; what JAX allocates per kernel gets the call's stack."""
    number = _number(part.stack, files, stacks)
    if not number and part.what in ("scratch", "barrier", "tensor memory address"):
        by_number = {number: stack for stack, number in stacks.items()}
        number = min(own, key=lambda each: len(by_number.get(each, ())), default=0)
    return SharedMemory(part.what, part.name, part.type, part.bytes, part.offset, number)


def _mosaic(artifact: Artifact) -> list[KernelResources]:
    """Return the kernels that have PTX, which are Mosaic's."""
    return [kernel for kernel in artifact.kernels if kernel.ptx is not None]


def _texts(artifact: Artifact) -> dict[str, str]:
    return {k.ptx: artifact.blob(k.ptx).decode() for k in _mosaic(artifact) if k.ptx}


def _code(artifact: Artifact) -> Mapping[str, str]:
    """Return the digests of the machine code of kernels, by PTX digest."""
    return {
        kernel.ptx: digest(code_of(parse_elf(artifact.blob(kernel.cubin)), kernel.name))
        for kernel in _mosaic(artifact)
        if kernel.ptx
    }


def code_of(elf: Elf, kernel: str) -> bytes:
    """Return the machine code of a kernel, b"" if the cubin does not contain it."""
    section = elf.section(f".text.{kernel}")
    return b"" if section is None else section.content
