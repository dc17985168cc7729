"""What a PTX module consists of, after scopes and labels are resolved.

Registers are numbered within their kernel; names that are declared again in an inner scope have
numbers of their own. PTX ISA 9.0, chapters 4 and 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class Register:
    """A register by its number; `type` is that of its declaration, such as "b32" or "pred"."""

    number: int
    type: str
    name: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Immediate:
    """A constant: the bits of an integer, or of a float that was written as 0f or 0d."""

    bits: int
    width: int | None = None  # 32 and 64 for 0f and 0d; None for integers, which fit any type


@dataclass(frozen=True, slots=True)
class Symbol:
    """The address of a variable or parameter, plus an offset in bytes."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Special:
    """A special register, such as "%tid.x"."""

    name: str


@dataclass(frozen=True, slots=True)
class Label:
    """The target of a branch: the number of an instruction."""

    name: str
    target: int


@dataclass(frozen=True, slots=True)
class Sink:
    """`_`, which drops a result."""


@dataclass(frozen=True, slots=True)
class Vector:
    """`{a, b, ...}`."""

    elements: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """`a|b`, two results of one instruction."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Address:
    """`[base + offset]`, or `[base, {coordinates}]` for a tensor."""

    base: Operand
    offset: int = 0
    coordinates: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class Arguments:
    """`(a, b)`, of a call."""

    names: tuple[Operand, ...]


Operand = (
    Register | Immediate | Symbol | Special | Label | Sink | Vector | Pair | Address | Arguments
)


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's source, from a `.loc` directive."""

    file: str
    line: int
    column: int = 0


@cache
def _parts(opcode: str) -> tuple[str, ...]:
    return tuple(opcode.split("."))


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction; `line` is its line in the text, from 1, and `text` what stands there."""

    opcode: str
    operands: tuple[Operand, ...]
    guard: Register | None
    line: int
    text: str
    place: Place | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """The opcode taken apart at its dots."""
        return _parts(self.opcode)


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
    registers: tuple[Register, ...]
    instructions: tuple[Instruction, ...]
    block: tuple[int, int, int] | None
    cluster: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Module:
    """A PTX file."""

    version: str
    target: str
    kernels: tuple[Kernel, ...]
    variables: tuple[Variable, ...]

    def kernel(self, name: str) -> Kernel:
        """Return the entry of this name.

        Raises:
            KeyError: there is none.
        """
        return next(iter([k for k in self.kernels if k.name == name] or [_missing(name)]))


def _missing(name: str) -> Kernel:
    raise KeyError(name)


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
