"""Parses operands of instructions: from the text between two commas, or token by token."""

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
from pallasc.emulator.ptx.tokens import Tokens
from pallasc.errors import UnsupportedError

OPERANDS = re.compile(r"\[[^\]]*\]|\{[^}]*\}|\([^)]*\)|[^,\s\[{(][^,]*")
_NAME = re.compile(r"[%$_A-Za-z][\w$]*(?:\.[\w$]+)*")
_DIGITS = "0123456789"
_DECIMAL = re.compile(r"-?(?:0|[1-9]\d*)")
_REGISTERS = r"%\w+(?:,\s*%\w+)*"
_SIMPLE_ADDRESS = re.compile(
    r"\[(?P<base>%\w+)(?:\+(?P<offset>-?(?:0|[1-9]\d*)))?"
    rf"(?:,\s*\{{(?P<coordinates>{_REGISTERS})\}}\s*)?\]"
)
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
    parameters: set[str] = field(default_factory=set)
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


class Operands:
    """Parses the operands of one kernel.

    Attributes:
        registers: the kernel's registers so far, by number.
    """

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
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
        with self._tokens.of(text, line):
            return self.next(scope)

    def guard(self, name: str, scope: Scope, line: int, *, negated: bool) -> Register:
        """Return the guard of an instruction."""
        operand = self.named(name, scope)
        if not isinstance(operand, Register):
            raise UnsupportedError(f"PTX line {line}: unexpected {name!r}")
        return operand._replace(negated=True) if negated else operand

    def next(self, scope: Scope) -> Operand:
        """Consume the tokens of an operand."""
        tokens = self._tokens
        if tokens.accept("["):
            return self._address(scope)
        first = self._simple(scope)
        if tokens.accept("|"):
            return Pair(first, self._simple(scope))
        return first

    def _simple(self, scope: Scope) -> Operand:
        tokens = self._tokens
        token = tokens.next()
        if token.text == "{":
            return Vector(self._until("}", scope))
        if token.text == "(":
            return Arguments(self._until(")", scope))
        if token.text == "!":
            operand = self._simple(scope)
            if isinstance(operand, Register):
                return operand._replace(negated=True)
            raise tokens.refusal(token)
        if token.kind == "number":
            return Immediate(int(token.text.rstrip("U"), 0))
        if token.kind == "float":
            return Immediate(int(token.text[2:], 16), 32 if token.text[1] in "fF" else 64)
        if token.kind != "word":
            raise tokens.refusal(token)
        operand = self.named(token.text, scope)
        if isinstance(operand, Symbol) and tokens.accept("+"):
            return Symbol(operand.name, tokens.integer())
        return operand

    def _until(self, end: str, scope: Scope) -> tuple[Operand, ...]:
        operands = []
        while not self._tokens.accept(end):
            operands.append(self._simple(scope))
            self._tokens.accept(",")
        return tuple(operands)

    def _address(self, scope: Scope) -> Address:
        tokens = self._tokens
        base, offset = self._simple(scope), 0
        coordinates: tuple[Operand, ...] = ()
        if isinstance(base, Symbol):
            base, offset = Symbol(base.name), base.offset
        if tokens.accept("+") or tokens.peek().kind == "number":
            offset += tokens.integer()
        if tokens.accept(","):
            tokens.expect("{")
            coordinates = self._until("}", scope)
        tokens.expect("]")
        return Address(base, offset, coordinates)

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
