"""The parts of a PTX module: kernels, statements, parsed instructions and their operands.

Registers are numbered within their kernel; names that are declared again in an inner scope have
separate numbers. PTX ISA 9.0, chapters 4 and 5. Most lines occur repeatedly, within a kernel and in
similar kernels, so that each text is analyzed once. Operands that do not depend on their kernel are
parsed once for all kernels: their registers have a name, but no number or type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from typing import NamedTuple, overload

from pallasc.errors import UnsupportedError


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


OPERANDS = re.compile(r"\[[^\]]*\]|\{[^}]*\}|\([^)]*\)[^,]*|[^,\s\[{(][^,]*")
_NAME = re.compile(r"[%$_A-Za-z][\w$]*(?:\.[\w$]+)*")
_DIGITS = "0123456789"
_DECIMAL = re.compile(r"-?(?:0|[1-9]\d*)")
_COORDINATES = r"%\w+(?:,\s*%\w+)*"
_SIMPLE_ADDRESS = re.compile(
    r"\[(?P<base>%\w+)(?:\+(?P<offset>-?(?:0|[1-9]\d*)))?"
    rf"(?:,\s*\{{(?P<coordinates>{_COORDINATES})\}}\s*)?\]"
)
_INTEGER = r"-?(?:0[xX][0-9a-fA-F]+|\d+)"
_NUMBER = re.compile(rf"{_INTEGER}U?")
_EXPRESSION = re.compile(r"(?=.*[&|^~+])(?:0[xX][0-9a-fA-F]+|[\d\s()&|^~+-])+")  # PTX ISA 4.5.6
_FLOAT = re.compile(r"0(?:[fF](?P<single>[0-9a-fA-F]{8})|[dD](?P<double>[0-9a-fA-F]{16}))")
_WITH_OFFSET = re.compile(rf"(?P<base>[^\s+]+?)\s*(?:(?:\+\s*|(?=-))(?P<offset>{_INTEGER})U?)?")
_SPECIAL = re.compile(
    r"%(?:tid|ntid|ctaid|nctaid|clusterid|nclusterid|cluster_ctaid|cluster_nctaid)\.[xyz]"
    r"|%(?:laneid|warpid|nwarpid|smid|nsmid|gridid|clock|clock_hi|clock64|globaltimer"
    r"|globaltimer_lo|globaltimer_hi|cluster_ctarank|cluster_nctarank|is_explicit_cluster"
    r"|lanemask_(?:eq|le|lt|ge|gt)|dynamic_smem_size|total_smem_size|aggr_smem_size)"
)


@dataclass(slots=True)
class Scope:
    """The declarations between two braces, and the operands parsed there."""

    parent: Scope | None = None
    names: dict[str, Register] = field(default_factory=dict)
    ranges: dict[str, str] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    operands: dict[str, Operand] = field(default_factory=dict)

    def own_name(self, name: str) -> str:
        """Return the unique name, in the kernel, of a register named in this scope."""
        scope: Scope | None = self
        while scope is not None:
            if (register := scope.names.get(name)) is not None:
                return register.name
            scope = scope.parent
        return name

    def place_of(self, label: str) -> int | None:
        """Return the number of the instruction after a label, None if there is no such label."""
        scope: Scope | None = self
        while scope is not None:
            if label in scope.labels:
                return scope.labels[label]
            scope = scope.parent
        return None


def _value_of(expression: str, line: int) -> int:
    """Return the value of a constant expression such as `(0xf0 & 0xcc) ^ 0xaa`."""
    try:
        return int(eval(expression, {"__builtins__": {}}))  # numbers and operators alone
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError) as error:
        raise unexpected(expression, line) from error


def unexpected(text: str, line: int) -> UnsupportedError:
    """Return the error for a part that is not understood."""
    return UnsupportedError(f"PTX line {line}: unexpected {text!r}")


class Operands:
    """Parses the operands of one kernel.

    Attributes:
        registers: the kernel's registers so far, by number.
    """

    def __init__(self) -> None:
        self.registers: list[Register] = []

    def declare(self, name: str, register_type: str, scope: Scope) -> Register:
        """Return a new register; in an inner scope, its name includes its number to be unique."""
        number = len(self.registers)
        own = name if scope.parent is None else f"{name}@{number}"
        register = scope.names[name] = Register(number, register_type, own)
        self.registers.append(register)
        return register

    def all_of(self, text: str | None, scope: Scope, line: int) -> tuple[Operand, ...]:
        """Return the operands in a text."""
        if not text:
            return ()
        known = scope.operands
        found = []
        for each in OPERANDS.findall(text):
            operand = known.get(each)
            if operand is None:
                operand = known[each] = self.from_text(each.rstrip(), scope, line)
            found.append(operand)
        return tuple(found)

    def known(self, text: str, scope: Scope, line: int) -> Operand:
        """Return an operand by its text; each text is parsed once per scope."""
        operand = scope.operands.get(text)
        if operand is None:
            operand = scope.operands[text] = self.from_text(text.rstrip(), scope, line)
        return operand

    def from_text(self, text: str, scope: Scope, line: int) -> Operand:
        """Parse an operand."""
        first = text[0]
        if first == "%":
            prefix = text.rstrip(_DIGITS)
            if prefix in scope.ranges and prefix != text and text not in scope.names:
                return self.declare(text, scope.ranges[prefix], scope)
        if first == "[":
            if (address := _SIMPLE_ADDRESS.fullmatch(text)) is not None:
                base = self.known(address["base"], scope, line)
                names = (address["coordinates"] or "").replace(",", " ").split()
                coordinates = tuple([self.known(name, scope, line) for name in names])
                if isinstance(base, Register):
                    return Address(base, int(address["offset"] or 0), coordinates)
        elif first == "{":
            parts = text[1:-1].split(",")
            if all(map(_NAME.fullmatch, map(str.strip, parts))):
                return Vector(tuple([self.known(part.strip(), scope, line) for part in parts]))
        elif _DECIMAL.fullmatch(text):
            return Immediate(int(text))
        elif _NAME.fullmatch(text):
            return self.named(text, scope)
        return self._rare(text, scope, line)

    def _rare(self, text: str, scope: Scope, line: int) -> Operand:
        """Parse an operand that is not a register, a plain number, or a simple address."""
        first, inner = text[0], text[1:-1]
        if _NUMBER.fullmatch(text):
            return Immediate(int(text.rstrip("U"), 0))
        if _EXPRESSION.fullmatch(text):
            return Immediate(_value_of(text, line))
        if first == "[":
            return self._address(inner, scope, line)
        if first == "{":
            return Vector(self.all_of(inner.strip(), scope, line))
        if first == "(":
            return Arguments(self.all_of(inner.strip(), scope, line))
        if "|" in text:
            one, other = (self.known(each.strip(), scope, line) for each in text.split("|", 1))
            return Pair(one, other)
        if first == "!":
            return self.guard(text[1:].strip(), scope, line, negated=True)
        if (number := _FLOAT.fullmatch(text)) is not None:
            single, double = number.groups()
            return Immediate(int(single or double, 16), 32 if single else 64)
        found = _WITH_OFFSET.fullmatch(text)
        if found is not None and found["offset"] and _NAME.fullmatch(found["base"]):
            return Symbol(found["base"], int(found["offset"], 0))
        raise unexpected(text, line)

    def _address(self, text: str, scope: Scope, line: int) -> Address:
        start, comma, rest = text.partition(",")
        found = _WITH_OFFSET.fullmatch(start.strip())
        if found is None or (comma and not rest.strip().startswith("{")):
            raise unexpected(f"[{text}]", line)
        base = self.known(found["base"], scope, line)
        coordinates = self.all_of(rest.strip()[1:-1].strip(), scope, line)
        return Address(base, int(found["offset"] or "0", 0), coordinates)

    def guard(self, name: str, scope: Scope, line: int, *, negated: bool) -> Register:
        """Return the guard of an instruction, or a negated predicate."""
        operand = self.named(name, scope)
        if not isinstance(operand, Register):
            raise unexpected(name, line)
        return operand._replace(negated=True) if negated else operand

    def named(self, name: str, scope: Scope) -> Operand:
        """Resolve a name to an operand."""
        if name == "_":
            return Sink()
        if name == "WARP_SZ":
            return Immediate(32)
        found: Scope | None = scope
        prefix = name.rstrip(_DIGITS)
        while found is not None:
            if name in found.names:
                return found.names[name]
            if prefix != name and prefix in found.ranges:
                return self.declare(name, found.ranges[prefix], found)
            found = found.parent
        if name.startswith("%"):
            if not _SPECIAL.fullmatch(name):
                raise UnsupportedError(f"the special register {name} is not known")
            return Special(name)
        return Symbol(name)


_MOST_OPERANDS = 1 << 16


def by_name(statement: Statement) -> tuple[tuple[Operand, ...], Register | None] | None:
    """Return the operands and the guard of a statement; None if they depend on the kernel.

    All registers of the kernel's outermost scope must have plain names.
    """
    if statement.by_name is None:
        guard = statement.guard
        try:
            found = tuple([_operand_of(o.rstrip()) for o in OPERANDS.findall(statement.operands)])
        except UnsupportedError:
            return None  # it is rejected later, with its line
        condition = None if guard is None else Register(-1, "", guard, statement.negated)
        statement.by_name = found, condition
    return statement.by_name


@lru_cache(_MOST_OPERANDS)
def _operand_of(text: str) -> Operand:
    return _Named().from_text(text, Scope(), 0)


def renamed(
    operands: tuple[Operand, ...], names: Mapping[str, Register]
) -> tuple[Operand, ...] | None:
    """Return operands with registers of an inner scope; None if they depend on the kernel."""
    found = []
    for operand in operands:
        each: Operand = operand
        if isinstance(operand, Symbol | Register):
            each = names.get(operand.name, operand)
        elif isinstance(operand, Vector):
            if (elements := renamed(operand.elements, names)) is None:
                return None
            each = Vector(elements)
        elif isinstance(operand, Address) and isinstance(operand.base, Symbol | Register):
            base = names.get(operand.base.name, operand.base)
            each = Address(base, operand.offset, operand.coordinates)
        is_negated = isinstance(operand, Register) and operand.negated
        has_more = isinstance(operand, Address) and operand.coordinates
        if is_negated or has_more or isinstance(operand, Pair | Arguments):
            return None
        found.append(each)
    return tuple(found)


class _Named(Operands):
    def known(self, text: str, scope: Scope, line: int) -> Operand:
        return _operand_of(text)

    def named(self, name: str, scope: Scope) -> Operand:
        return Register(-1, "", name) if is_register_name(name) else super().named(name, scope)


class Inner(Statement):
    """An instruction of an inner scope, with its registers' names in the kernel.

    Attributes:
        outer: the instruction as written.
        scope: the inner scope.
    """

    def __init__(self, outer: Statement, scope: Scope) -> None:
        guard = None if outer.guard is None else scope.own_name(outer.guard)
        results = tuple(map(scope.own_name, outer.results))
        super().__init__(
            outer.source,
            outer.negated,
            guard,
            outer.opcode,
            outer.operands,
            results,
            outer.is_branch,
        )
        self.outer, self.scope = outer, scope

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names in its operands."""
        return tuple(map(self.scope.own_name, self.outer.names))

    @cached_property
    def scalar_names(self) -> tuple[str, ...]:
        """The names in its operands, except those in vectors."""
        return tuple(map(self.scope.own_name, self.outer.scalar_names))

    @cached_property
    def address_names(self) -> tuple[str, ...]:
        """The names in its addresses."""
        return tuple(map(self.scope.own_name, self.outer.address_names))
