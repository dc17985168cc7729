"""The parts of a PTX module: kernels, statements and parsed instructions.

Registers are numbered within their kernel; names that are declared again in an inner scope have
separate numbers. PTX ISA 9.0, chapters 4 and 5. Most lines occur repeatedly, within a kernel and in
similar kernels, so that each text is analyzed once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import NamedTuple, overload


class Register(NamedTuple):
    """A register by its number; `type` is its declared type, such as "b32" or "pred".

    `name` is unique in the kernel: in an inner scope, it includes the number.
    """

    number: int
    type: str
    name: str
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
    """The target of a branch: the number of an instruction."""

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


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's source, from a `.loc` directive."""

    file: str
    line: int
    column: int = 0


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
    place: Place | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the opcode between dots."""
        return _parts(self.opcode)


_PLAIN_NAME = re.compile(r"%(?!clock64|pm\d|envreg\d)[a-z]+\d+")


def is_register_name(name: str) -> bool:
    """Return True if a name is always a register's, following the convention of compilers."""
    return _PLAIN_NAME.fullmatch(name) is not None


_ADDRESSES = re.compile(r"\[[^\]]*\]")
_VECTORS = re.compile(r"(\[[^\]]*\])|\{[^}]*\}")
"""Text in brackets, which is kept, or in braces outside brackets."""
_NAMES = re.compile(r"[%$A-Za-z][\w$]*|_[\w$]+")


@dataclass(eq=False)
class Statement:
    """An instruction as written on a line, before its operands are parsed.

    Attributes:
        source: its text, up to the semicolon.
        results: the names in its first operand, unless that is an address.
        is_branch: its operands are labels.
        by_name: its operands and its guard, after they were parsed independently of the kernel.
    """

    source: str
    negated: bool
    guard: str | None
    opcode: str
    operands: str
    results: tuple[str, ...]
    is_branch: bool = False
    by_name: tuple[tuple[Operand, ...], Register | None] | None = None

    @cached_property
    def text(self) -> str:
        """Its text, with single spaces."""
        return " ".join(self.source.split())

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names in its operands: of registers, and of other things."""
        return names_in(self.operands)

    @cached_property
    def scalar_names(self) -> tuple[str, ...]:
        """The names in its operands, except those in vectors."""
        return names_in(_VECTORS.sub(r"\1", self.operands)) if "{" in self.operands else self.names

    @cached_property
    def address_names(self) -> tuple[str, ...]:
        """The names in its addresses."""
        return names_in(" ".join(_ADDRESSES.findall(self.operands)))


def names_in(text: str) -> tuple[str, ...]:
    """Return the names in a text."""
    return tuple(_NAMES.findall(text))


class Instructions(Sequence[Instruction]):
    """The instructions of a kernel in order; most are parsed when first accessed.

    Attributes:
        statements: the statement of each instruction.
        lines: the line number of each instruction.
        places: the user's source line of each instruction.
    """

    def __init__(self, read: Callable[[Statement, int, Place | None], Instruction]) -> None:
        self._read = read
        self._known: dict[int, Instruction] = {}
        self.statements: list[Statement] = []
        self.lines: list[int] = []
        self.places: list[Place | None] = []

    def __len__(self) -> int:
        return len(self.statements)

    @overload
    def __getitem__(self, number: int) -> Instruction: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Instruction]: ...
    def __getitem__(self, number: int | slice) -> Instruction | Sequence[Instruction]:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        found = self._known.get(number)
        if found is None:
            place = self.places[number]
            found = self._read(self.statements[number], self.lines[number], place)
            self._known[number] = found
        return found

    def state(self, statement: Statement, line: int, place: Place | None) -> None:
        """Append an instruction that is parsed later."""
        self.statements.append(statement)
        self.lines.append(line)
        self.places.append(place)


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
    """An entry: its parameters in order, its registers by number, its instructions in order.

    If its instructions are parsed when accessed, its registers are completed as they are.
    """

    name: str
    parameters: tuple[Variable, ...]
    variables: tuple[Variable, ...]
    registers: Sequence[Register]
    instructions: Instructions
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


def registers_in(operand: Operand) -> list[Register]:
    """Return the registers in an operand."""
    if isinstance(operand, Register):
        return [operand]
    inner: tuple[Operand, ...] = ()
    if isinstance(operand, Vector):
        inner = operand.elements
    elif isinstance(operand, Pair):
        inner = (operand.first, operand.second)
    elif isinstance(operand, Address):
        inner = (operand.base, *operand.coordinates)
    found = []
    for element in inner:
        if isinstance(element, Register):
            found.append(element)
        else:
            found += registers_in(element)
    return found


def register_numbers(operand: Operand) -> list[int]:
    """Return the numbers of the registers in an operand."""
    return [register.number for register in registers_in(operand)]


_MOST_LINES = 1 << 16
_INSTRUCTION = re.compile(
    r"""\s*(?:@(?P<negated>!)?(?P<guard>[%$_A-Za-z][\w$]*)\s+)?
    (?P<opcode>[a-z][\w.:]*\w)
    (?:\s+(?P<operands>[^;:"/]*))?;\s*""",
    re.VERBOSE,
)
"""An instruction on one line, without strings, comments, or `::` in operands."""
_REGISTERS = re.compile(
    r"\.reg\s+\.(\w+)\s+([%$_A-Za-z][\w$]*(?:<\d+>)?(?:,\s*[%$\w]+(?:<\d+>)?)*);"
)
_LABEL = re.compile(r"\s*([%$_A-Za-z][\w$]*)\s*:\s*")


class Declaration(NamedTuple):
    """A declaration of registers; `%r<9>` declares all registers with a prefix."""

    type: str
    names: tuple[str, ...]


class Block(NamedTuple):
    """A block on one line: the registers that it declares, and its instructions."""

    registers: tuple[Declaration, ...]
    statements: tuple[Statement, ...]


class Mark(NamedTuple):
    """A brace, the name of a label, or "" for an empty line."""

    text: str


EMPTY = Mark("")


Item = Statement | Declaration | Block | Mark


@lru_cache(_MOST_LINES)
def item_of(line: str) -> Item | None:
    """Classify a line or a statement, None if it is something else."""
    text = line.strip()
    if text in ("", "{", "}"):
        return Mark(text) if text else EMPTY
    if (match := _INSTRUCTION.fullmatch(text)) is not None:
        return _statement(match, text)
    if (match := _REGISTERS.fullmatch(text)) is not None:
        return Declaration(match[1], tuple(map(str.strip, match[2].split(","))))
    if (match := _LABEL.fullmatch(text)) is not None:
        return Mark(match[1])
    if text.startswith("{ ") and text.endswith("; }") and text.count("{") == text.count("}"):
        return _block(text[2:-3])
    return None


def _statement(match: re.Match[str], text: str) -> Statement:
    negated, guard, opcode, operands = match.groups("")
    end = operands.find("}" if operands[:1] == "{" else ",")
    first = operands[:end] if end > 0 else operands
    if first[:1] == "%" and first[1:].isalnum():
        results: tuple[str, ...] = (first,)
    else:
        results = () if first[:1] == "[" else names_in(first)
    is_branch = opcode.startswith(("bra", "brx"))
    return Statement(text[:-1], bool(negated), guard or None, opcode, operands, results, is_branch)


def _block(text: str) -> Block | None:
    registers, statements = [], []
    for each in text.split(";"):
        item = item_of(f"{each};")
        if isinstance(item, Declaration):
            registers.append(item)
        elif isinstance(item, Statement):
            statements.append(item)
        else:
            return None
    return Block(tuple(registers), tuple(statements))
