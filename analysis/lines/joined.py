"""Joins machine code with the user's lines to show the cost of each source line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pallasc.analysis.sass.classes import classify
from pallasc.analysis.sass.disassembly import disassemble_all
from pallasc.analysis.sass.instructions import Code, Instruction
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.cubin import parse_elf
from pallasc.specs.artifacts.source_lines import (
    Frame,
    KernelLines,
    SharedMemory,
    SourceLines,
    Stack,
)
from pallasc.specs.canonical import digest

COUNTED = ("instructions", "tensor", "shared", "local", "waits", "registers")
"""Counts for each line: instructions; those that multiply matrices, access shared or local memory,
or wait at a barrier; and the maximum number of live registers."""

_WAITS = re.compile(r"BAR\.(?:SYNC|RED)|(?:WARPGROUP\.)?DEPBAR|SYNCS\.PHASECHK|UCGABAR_WAIT")


class Placed(NamedTuple):
    """An instruction and the user's frames it comes from, innermost first; () if there are none."""

    instruction: Instruction
    stack: Stack


@dataclass(slots=True)
class LineCosts:
    """The cost of a source line; see `COUNTED`."""

    counts: Counter[str] = field(default_factory=Counter)

    def add(self, instruction: Instruction) -> None:
        """Count an instruction."""
        self.counts["instructions"] += 1
        kind = classify(instruction)
        if kind in ("tensor", "shared", "local"):
            self.counts[kind] += 1
        self.counts["waits"] += is_wait(instruction)
        live = instruction.live_registers or 0
        self.counts["registers"] = max(self.counts["registers"], live)


@dataclass(frozen=True, slots=True)
class LocatedKernel:
    """A kernel of an artifact with its lines.

    Attributes:
        name: the kernel's name.
        origin: "mosaic" or "xla"; XLA's kernels have no user lines.
        instructions: the machine code in order; () if nvdisasm is missing.
        lines: the lines, None if there are none.
        shared_memory: the users of shared memory with their bytes, each with its stack.
    """

    name: str
    origin: str
    instructions: tuple[Placed, ...]
    lines: KernelLines | None
    shared_memory: tuple[tuple[SharedMemory, Stack], ...] = ()

    @property
    def located(self) -> int:
        """The number of instructions that have a line."""
        return sum(1 for each in self.instructions if each.stack)

    def costs(self) -> dict[Frame, LineCosts]:
        """Return the cost of each line, by the innermost frame."""
        found: dict[Frame, LineCosts] = {}
        for instruction, stack in self.instructions:
            if stack:
                found.setdefault(stack[0], LineCosts()).add(instruction)
        return found


def located_kernels(
    artifact: Artifact,
    lines: SourceLines,
    *,
    codes: Mapping[str, Mapping[str, Code]] | None = None,
) -> list[LocatedKernel]:
    """Return the kernels of an artifact with their lines; lines of other code are ignored.

    Args:
        artifact: the artifact.
        lines: its source lines.
        codes: the code of its kernels by cubin digest and name, as returned by `disassemble_all`,
            which is faster for many artifacts at once; by default it is disassembled here.

    Raises:
        ToolError: nvdisasm is not installed, or cannot be run.
        CorruptError: a cubin is damaged.
    """
    kernels = {(kernel.cubin, kernel.name): kernel for kernel in artifact.kernels}
    cubins = {cubin: artifact.blob(cubin) for cubin, _ in kernels}
    codes = disassemble_all(cubins) if codes is None else codes
    return [
        _located(name, kernel.origin, codes[cubin], fitting(cubins[cubin], name, lines), lines)
        for (cubin, name), kernel in kernels.items()
    ]


def fitting(cubin: bytes, kernel: str, lines: SourceLines) -> KernelLines | None:
    """Return the lines of a kernel, None if the record has none for its machine code."""
    section = parse_elf(cubin).section(f".text.{kernel}")
    return None if section is None else lines.of(kernel, digest(section.content))


def _located(
    name: str,
    origin: str,
    codes: Mapping[str, Code],
    known: KernelLines | None,
    lines: SourceLines,
) -> LocatedKernel:
    code = codes.get(name)
    instructions = () if code is None else tuple(_placed(code, known, lines))
    memory = () if known is None else known.shared_memory
    parts = tuple((part, lines.stack(part.stack)) for part in memory)
    return LocatedKernel(name, origin, instructions, known, parts)


def _placed(code: Code, known: KernelLines | None, lines: SourceLines) -> Iterator[Placed]:
    numbers = () if known is None else known.stacks
    for instruction in code.instructions:
        index = instruction.address // len(instruction.encoding)
        number = numbers[index] if index < len(numbers) else 0
        yield Placed(instruction, lines.stack(number))


def is_wait(instruction: Instruction) -> bool:
    """Return True if an instruction waits at a barrier, or for copies or matrix products."""
    return _WAITS.match(instruction.opcode) is not None
