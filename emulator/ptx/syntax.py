"""The parts of a PTX module: kernels, instructions and their operands (PTX ISA 9.0, 4 and 5).

Registers are numbered within their kernel. A name that is declared again in an inner scope gets
another number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple


class Register(NamedTuple):
    """A register by its number; `type` is its declared type, such as "b32" or "pred"."""

    number: int
    type: str
    negated: bool = False


class Immediate(NamedTuple):
    """A constant: the bits of an integer, or of a float that was written as 0f or 0d."""

    bits: int
    width: int | None = None  # 32 and 64 for 0f and 0d; None for integers, which fit any type


class Symbol(NamedTuple):
    """The address of a variable or parameter, plus an offset in bytes."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Special:
    """A special register, such as "%tid.x"."""

    name: str


@dataclass(frozen=True, slots=True)
class Label:
    """The target of a branch: the index of an instruction."""

    name: str
    target: int


@dataclass(frozen=True, slots=True)
class Sink:
    """`_`, which discards a result."""


class Vector(NamedTuple):
    """`{a, b, ...}`."""

    elements: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """`a|b`, two results of one instruction."""

    first: Operand
    second: Operand


class Address(NamedTuple):
    """`[base + offset]`, or `[base, {coordinates}]` for a tensor."""

    base: Operand
    offset: int = 0
    coordinates: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class Arguments:
    """`(a, b)`, the arguments of a call."""

    names: tuple[Operand, ...]


Operand = (
    Register | Immediate | Symbol | Special | Label | Sink | Vector | Pair | Address | Arguments
)


@cache
def _parts(opcode: str) -> tuple[str, ...]:
    return tuple(opcode.split("."))


class Instruction(NamedTuple):
    """One instruction; `line` is its line number, from 1, and `text` is its text."""

    opcode: str
    operands: tuple[Operand, ...]
    guard: Register | None
    line: int
    text: str

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the opcode between dots."""
        return _parts(self.opcode)

    @property
    def results(self) -> tuple[Operand, ...]:
        """The operand that the instruction sets, if any; matrix products also read it."""
        first = self.operands[:1]
        if not first or not isinstance(first[0], Register | Vector | Pair):
            return ()
        return () if self.opcode.startswith(_WITHOUT_RESULT) else first

    @property
    def sources(self) -> tuple[Operand, ...]:
        """The operands that the instruction reads, and the addresses that it writes to."""
        return self.operands[len(self.results) :]


_WITHOUT_RESULT = ("bar", "nanosleep", "tcgen05.dealloc")
"""Instructions whose first operand may be a register that they read."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable; `space` is "shared", "local", "global", "const" or "param"."""

    name: str
    space: str
    size: int
    alignment: int
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Kernel:
    """An entry: its parameters in order, its registers by number, its instructions in order."""

    name: str
    parameters: tuple[Variable, ...]
    variables: tuple[Variable, ...]
    registers: Sequence[Register]
    instructions: Sequence[Instruction]


@dataclass(frozen=True, slots=True)
class Module:
    """A PTX file."""

    kernels: tuple[Kernel, ...]
    variables: tuple[Variable, ...]

    def kernel(self, name: str) -> Kernel:
        """Return the entry of this name.

        Raises:
            KeyError: there is no such entry.
        """
        return {kernel.name: kernel for kernel in self.kernels}[name]


def register_numbers(operand: Operand) -> list[int]:
    """Return the numbers of the registers in an operand."""
    if isinstance(operand, Register):
        return [operand.number]
    inner: tuple[Operand, ...] = ()
    if isinstance(operand, Vector):
        inner = operand.elements
    elif isinstance(operand, Pair):
        inner = (operand.first, operand.second)
    elif isinstance(operand, Address):
        inner = (operand.base, *operand.coordinates)
    return [number for element in inner for number in register_numbers(element)]
