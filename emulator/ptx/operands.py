"""Tokens of a PTX file, and the operands of instructions.

Operands are parsed from the text between two commas, or token by token. Those that do not depend
on their kernel are parsed once for all kernels: their registers have a name, but no number or type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

from pallasc.emulator.ptx.syntax import (
    Address,
    Arguments,
    Immediate,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Statement,
    Symbol,
    Vector,
    is_register_name,
)
from pallasc.errors import UnsupportedError

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<string>"[^"]*")
    |(?P<float>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16})
    |(?P<number>-?(?:0[xX][0-9a-fA-F]+|\d+)U?)
    |(?P<word>[%$._A-Za-z][\w$]*(?:(?:::|\.)[\w$]+)*)
    |(?P<mark>[\[\]{}()<>,;:|@!+=-])""",
    re.VERBOSE | re.DOTALL,
)
_BLOCK_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


class Token(NamedTuple):
    """A token: its kind, text and position."""

    kind: str
    text: str
    start: int
    line: int


def _tokens(text: str, line: int) -> list[Token]:
    tokens, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise UnsupportedError(f"PTX line {line}: unexpected character {text[position]!r}")
        kind = match.lastgroup or ""
        if kind != "space":
            tokens.append(Token(kind, match[0], position, line))
        position = match.end()
    return tokens


def _without_blocks(text: str) -> str:
    """Remove block comments, keeping line numbers."""
    if "/*" not in text:
        return text
    return _BLOCK_COMMENT.sub(lambda comment: " " + "\n" * comment.group().count("\n"), text)


class Tokens:
    """Iterates over the tokens of one file, once.

    A line is tokenized when its first token is requested. `lines` and `go_to` are for callers that
    read whole lines instead.
    """

    def __init__(self, text: str) -> None:
        self._lines = _without_blocks(text).split("\n")
        self._line = 0
        self._tokens: list[Token] = []
        self._at = 0

    @property
    def position(self) -> int:
        """The number of the next token, for `text_since`."""
        return self._at

    @contextmanager
    def of(self, text: str, line: int) -> Iterator[None]:
        """Iterate over a separate text within the block, which must consume all of it."""
        before = self._tokens, self._at
        self._tokens, self._at = [*_tokens(text, line), Token("mark", ";", 0, line)], 0
        yield
        if self._at != len(self._tokens) - 1:
            raise self.refusal(self._tokens[self._at])
        self._tokens, self._at = before

    def has_more(self) -> bool:
        """Return True if there is another token; tokenizes the next lines if necessary."""
        while self._at >= len(self._tokens):
            if self._line >= len(self._lines):
                return False
            self._line += 1
            if line := self._lines[self._line - 1]:
                self._tokens += _tokens(line, self._line)
        return True

    def lines(self) -> tuple[int, list[str]]:
        """Take all remaining lines, or none within a line; return the number of the first."""
        start = self._line
        if self._at < len(self._tokens):
            return start, []
        self._line = len(self._lines)
        return start + 1, self._lines[start:]

    def go_to(self, number: int) -> None:
        """Go back to a line that was taken whole."""
        self._line = number - 1

    def peek(self) -> Token:
        """Return the next token."""
        if not self.has_more():
            raise UnsupportedError("the PTX ends in the middle of a statement")
        return self._tokens[self._at]

    def next(self) -> Token:
        """Take the next token."""
        token = self.peek()
        self._at += 1
        return token

    def accept(self, text: str) -> bool:
        """Take the next token if it has this text; return True if it did."""
        if self.has_more() and self._tokens[self._at].text == text:
            self._at += 1
            return True
        return False

    def follows(self, text: str) -> bool:
        """Return True if the token after the next one, on the same line, has this text."""
        behind = self._at + 1
        return behind < len(self._tokens) and self._tokens[behind].text == text

    def expect(self, text: str) -> None:
        """Take the next token, which must have this text."""
        if not self.accept(text):
            raise self.refusal(self.peek())

    def refusal(self, token: Token) -> UnsupportedError:
        """Return the error for an unexpected token."""
        return UnsupportedError(f"PTX line {token.line}: unexpected {token.text!r}")

    def text_since(self, first: int) -> str:
        """Return the statement from a token to the last one, a semicolon."""
        tokens = self._tokens[first : self._at]
        start, end = tokens[0], tokens[-1]
        if start.line == end.line:
            return " ".join(self._lines[start.line - 1][start.start : end.start].split())
        whole = [self._lines[start.line - 1][start.start :]]
        whole += self._lines[start.line : end.line - 1]
        whole.append(self._lines[end.line - 1][: end.start])
        return " ".join(" ".join(whole).split())

    def next_on_line(self) -> str:
        """Take the rest of the last token's line; return the first token of it."""
        return self.rest_of_line(self._tokens[self._at - 1].line)[0]

    def rest_of_line(self, line: int) -> list[str]:
        """Take the remaining tokens of a line."""
        texts = []
        while self._at < len(self._tokens) and self._tokens[self._at].line == line:
            texts.append(self.next().text)
        return texts or [""]

    def skip_until(self, text: str) -> None:
        """Skip to after the next token with this text."""
        while self.next().text != text:
            pass

    def skip_section(self) -> None:
        """Skip to after a section in braces."""
        self.skip_until("{")
        depth = 1
        while depth:
            depth += {"{": 1, "}": -1}.get(self.next().text, 0)

    def integer(self) -> int:
        """Take a number."""
        token = self.next()
        if token.kind != "number":
            raise self.refusal(token)
        return int(token.text.rstrip("U"), 0)


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
    return _Named(Tokens("")).from_text(text, Scope(), 0)


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
