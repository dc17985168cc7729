"""Operands of PTX instructions, and the names that are declared between two braces."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pallasc.emulator.ptx.syntax import (
    Address,
    Arguments,
    Immediate,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)
from pallasc.errors import UnsupportedError

_OPERANDS = re.compile(r"\[[^\]]*\]|\{[^}]*\}|\([^)]*\)[^,]*|[^,\s\[{(][^,]*")
_NAME = re.compile(r"[%$_A-Za-z][\w$]*(?:\.[\w$]+)*")
_DIGITS = "0123456789"
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


def unexpected(text: str, line: int) -> UnsupportedError:
    """Return the error for a part that is not understood."""
    return UnsupportedError(f"PTX line {line}: unexpected {text!r}")


def _value_of(expression: str, line: int) -> int:
    """Return the value of a constant expression such as `(0xf0 & 0xcc) ^ 0xaa`."""
    try:
        return int(eval(expression, {"__builtins__": {}}))  # numbers and operators alone
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError) as error:
        raise unexpected(expression, line) from error


@dataclass(slots=True)
class Scope:
    """The declarations between two braces, and the operands parsed there.

    Attributes:
        registers: the kernel's registers so far, by number; shared by its scopes.
        parent: the enclosing scope.
        names: the registers declared here; a numbered one of the outermost scope, such as `%r<9>`
            declares, only after its first use.
        ranges: the types of numbered registers by their prefix.
        labels: the number of the instruction after each label.
        known: operands by their text.
    """

    registers: list[Register] = field(default_factory=list)
    parent: Scope | None = None
    names: dict[str, Register] = field(default_factory=dict)
    ranges: dict[str, str] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    known: dict[str, Operand] = field(default_factory=dict)

    def declare(self, name: str, register_type: str) -> Register:
        """Return a new register; in an inner scope, its name includes its number to be unique."""
        number = len(self.registers)
        own = name if self.parent is None else f"{name}@{number}"
        register = self.names[name] = Register(number, register_type, own)
        self.registers.append(register)
        return register

    def declare_all(self, register_type: str, names: str) -> None:
        """Declare the registers of `.reg .b32 %r<9>, %x;`."""
        for name in map(str.strip, names.split(",")):
            prefix, _, count = name.rstrip(">").partition("<")
            if not count:
                self.declare(name, register_type)
            elif self.parent is None:
                self.ranges[prefix] = register_type
            else:
                for number in range(int(count)):
                    self.declare(f"{prefix}{number}", register_type)

    def place_of(self, label: str) -> int | None:
        """Return the number of the instruction after a label, None if there is no such label."""
        scope: Scope | None = self
        while scope is not None:
            if label in scope.labels:
                return scope.labels[label]
            scope = scope.parent
        return None

    def operands(self, text: str, line: int) -> tuple[Operand, ...]:
        """Return the operands in a text; each one is parsed once per scope.

        Raises:
            UnsupportedError: one is not understood.
        """
        return tuple([self._operand(each, line) for each in _OPERANDS.findall(text)])

    def _operand(self, text: str, line: int) -> Operand:
        operand = self.known.get(text)
        if operand is None:
            operand = self.known[text] = self._parsed(text.strip(), line)
        return operand

    def _parsed(self, text: str, line: int) -> Operand:
        first, inner = text[0], text[1:-1].strip()
        if _NAME.fullmatch(text):
            return self.named(text)
        if _NUMBER.fullmatch(text):
            return Immediate(int(text.rstrip("U"), 0))
        if _EXPRESSION.fullmatch(text):
            return Immediate(_value_of(text, line))
        if first == "[":
            return self._address(inner, line)
        if first == "{":
            return Vector(self.operands(inner, line))
        if first == "(":
            return Arguments(self.operands(inner, line))
        if "|" in text:
            one, other = (self._operand(each, line) for each in text.split("|", 1))
            return Pair(one, other)
        if first == "!":
            return self.guard(text[1:].strip(), line, negated=True)
        if (number := _FLOAT.fullmatch(text)) is not None:
            single, double = number.groups()
            return Immediate(int(single or double, 16), 32 if single else 64)
        found = _WITH_OFFSET.fullmatch(text)
        if found is not None and found["offset"] and _NAME.fullmatch(found["base"]):
            return Symbol(found["base"], int(found["offset"], 0))
        raise unexpected(text, line)

    def _address(self, text: str, line: int) -> Address:
        start, comma, rest = text.partition(",")
        found = _WITH_OFFSET.fullmatch(start.strip())
        rest = rest.strip()
        if found is None or (comma and not rest.startswith("{")):
            raise unexpected(f"[{text}]", line)
        base = self._operand(found["base"], line)
        return Address(base, int(found["offset"] or "0", 0), self.operands(rest[1:-1], line))

    def guard(self, name: str, line: int, *, negated: bool) -> Register:
        """Return the guard of an instruction, or a negated predicate."""
        operand = self.named(name)
        if not isinstance(operand, Register):
            raise unexpected(name, line)
        return operand._replace(negated=True) if negated else operand

    def named(self, name: str) -> Operand:
        """Resolve a name to an operand."""
        if name == "_":
            return Sink()
        if name == "WARP_SZ":
            return Immediate(32)
        scope: Scope | None = self
        prefix = name.rstrip(_DIGITS)
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            if prefix != name and prefix in scope.ranges:
                return scope.declare(name, scope.ranges[prefix])
            scope = scope.parent
        if name.startswith("%"):
            if not _SPECIAL.fullmatch(name):
                raise UnsupportedError(f"the special register {name} is not known")
            return Special(name)
        return Symbol(name)
