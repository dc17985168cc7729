"""The body of a kernel: registers, labels and instructions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pallasc.emulator.ptx.syntax import (
    Address,
    Arguments,
    Immediate,
    Instruction,
    Kernel,
    Label,
    Operand,
    Pair,
    Place,
    Register,
    Sink,
    Special,
    Symbol,
    Variable,
    Vector,
)
from pallasc.emulator.ptx.tokens import Token, Tokens
from pallasc.emulator.ptx.variables import read_variable
from pallasc.errors import UnsupportedError

_PLAIN = re.compile(
    r"""(?:@(?P<negated>!)?(?P<guard>[%$_A-Za-z][\w$]*)\s+)?
    (?P<opcode>[a-z][\w.:]*\w)
    (?:\s+(?P<operands>[^;:"/]*))?;""",
    re.VERBOSE,
)
"""An instruction that is a line: without strings, comments and what `::` is in operands."""
_OPERANDS = re.compile(r"\[[^\]]*\]|\{[^}]*\}|\([^)]*\)|[^,\s\[{(][^,]*")
_DECLARATION = re.compile(r"\.reg\s+\.(?P<type>\w+)\s+(?P<name>[%$_A-Za-z][\w$]*)")
_NAME = re.compile(r"[%$_A-Za-z][\w$]*(?:\.[\w$]+)*")
_DIGITS = "0123456789"
_DECIMAL = re.compile(r"-?(?:0|[1-9]\d*)")
_SIMPLE_ADDRESS = re.compile(r"\[(?P<base>%\w+)(?:\+(?P<offset>-?(?:0|[1-9]\d*)))?\]")
_SPECIAL = re.compile(
    r"%(?:tid|ntid|ctaid|nctaid|clusterid|nclusterid|cluster_ctaid|cluster_nctaid)\.[xyz]"
    r"|%(?:laneid|warpid|nwarpid|smid|nsmid|gridid|clock|clock_hi|clock64|globaltimer"
    r"|globaltimer_lo|globaltimer_hi|cluster_ctarank|cluster_nctarank|is_explicit_cluster"
    r"|lanemask_(?:eq|le|lt|ge|gt)|dynamic_smem_size|total_smem_size|aggr_smem_size)"
)


@dataclass(slots=True)
class _Scope:
    parent: _Scope | None
    names: dict[str, Register] = field(default_factory=dict)
    ranges: dict[str, str] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    parameters: set[str] = field(default_factory=set)
    operands: dict[str, Operand] = field(default_factory=dict)


class Body:
    """Reads the body of one kernel."""

    def __init__(self, tokens: Tokens, name: str, files: Mapping[int, str]) -> None:
        self._tokens = tokens
        self._name = name
        self._files = files
        self._registers: list[Register] = []
        self._variables: list[Variable] = []
        self._instructions: list[Instruction] = []
        self._branches: list[tuple[int, _Scope]] = []
        self._place: Place | None = None

    def read(self, parameters: list[Variable], sizes: dict[str, tuple[int, int, int]]) -> Kernel:
        """Read `{ ... }`."""
        self._tokens.expect("{")
        self._scope(_Scope(None))
        for number, scope in self._branches:
            self._instructions[number] = self._resolved(self._instructions[number], scope)
        return Kernel(
            self._name,
            tuple(parameters),
            tuple(self._variables),
            tuple(self._registers),
            tuple(self._instructions),
            sizes.get(".maxntid") or sizes.get(".reqntid"),
            sizes.get(".reqnctapercluster"),
        )

    def _scope(self, scope: _Scope) -> None:
        tokens = self._tokens
        while True:
            while (line := tokens.next_line()) is not None and self._line(line.strip(), scope):
                pass
            if tokens.accept("}"):
                return
            if tokens.accept("{"):
                self._scope(_Scope(scope))
                continue
            token = tokens.peek()
            if token.text.startswith("."):
                tokens.next()
                self._directive(token, scope)
            elif tokens.follows(":"):
                tokens.next()
                tokens.next()
                scope.labels[token.text] = len(self._instructions)
            elif not tokens.accept(";"):
                self._instruction(scope)

    def _line(self, line: str, scope: _Scope) -> bool:
        """Read a line that is a whole instruction, or a block of them; return False for others."""
        if not line:
            self._tokens.skip_line()
            return True
        if line.startswith("{ ") and line.endswith("; }") and line.count("{") == line.count("}"):
            return self._block(line[2:-3].split(";"), scope)
        match = _PLAIN.fullmatch(line)
        if match is None:
            return False
        self._plain(match, line[:-1].rstrip(), scope, self._tokens.skip_line())
        return True

    def _block(self, statements: list[str], scope: _Scope) -> bool:
        """Read a block in a line: declarations of single registers, and instructions."""
        texts = [statement.strip() for statement in statements]
        declared = [_DECLARATION.fullmatch(text) for text in texts]
        matches = [_PLAIN.fullmatch(f"{text};") for text in texts]
        if not all(a or b for a, b in zip(declared, matches, strict=True)):
            return False
        inner, number = _Scope(scope), self._tokens.skip_line()
        for text, declaration, match in zip(texts, declared, matches, strict=True):
            if declaration is not None:
                name = declaration["name"]
                inner.names[name] = self._new(name, declaration["type"])
            elif match is not None:
                self._plain(match, text, inner, number)
        return True

    def _plain(self, match: re.Match[str], text: str, scope: _Scope, number: int) -> None:
        """Take in an instruction that stands in a line."""
        negated, name, opcode, rest = match.groups()
        guard = None
        if name is not None:
            operand = self._named(name, scope)
            if not isinstance(operand, Register):
                raise UnsupportedError(f"PTX line {number}: unexpected {name!r}")
            guard = replace(operand, negated=negated is not None)
        known = scope.operands
        operands = []
        for each in _OPERANDS.findall(rest) if rest else ():
            if (found := known.get(each)) is None:
                found = known[each] = self._from_text(each.rstrip(), scope, number)
            operands.append(found)
        if opcode.startswith(("bra", "brx")):
            self._branches.append((len(self._instructions), scope))
        joined = " ".join(text.split())
        self._instructions.append(
            Instruction(opcode, tuple(operands), guard, number, joined, self._place)
        )

    def _known(self, text: str, scope: _Scope, number: int) -> Operand:
        """Return an operand by its text; each is read once in a scope."""
        operand = scope.operands.get(text)
        if operand is None:
            operand = scope.operands[text] = self._from_text(text.rstrip(), scope, number)
        return operand

    def _from_text(self, text: str, scope: _Scope, number: int) -> Operand:
        first = text[0]
        if first == "%":
            prefix = text.rstrip(_DIGITS)
            if prefix in scope.ranges and prefix != text and text not in scope.names:
                register = scope.names[text] = self._new(text, scope.ranges[prefix])
                return register
        if first == "[":
            if (address := _SIMPLE_ADDRESS.fullmatch(text)) is not None:
                base = self._known(address["base"], scope, number)
                if isinstance(base, Register):
                    return Address(base, int(address["offset"] or 0))
        elif first == "{":
            parts = text[1:-1].split(",")
            if all(map(_NAME.fullmatch, map(str.strip, parts))):
                return Vector(tuple([self._known(part.strip(), scope, number) for part in parts]))
        elif _DECIMAL.fullmatch(text):
            return Immediate(int(text))
        elif _NAME.fullmatch(text):
            return self._named(text, scope)
        return self._of_tokens(text, scope, number)

    def _of_tokens(self, text: str, scope: _Scope, number: int) -> Operand:
        """Return an operand that is read token by token."""
        with self._tokens.of(text, number):
            return self._operand(scope)

    def _directive(self, token: Token, scope: _Scope) -> None:
        tokens = self._tokens
        if token.text == ".reg":
            self._declare(scope)
        elif token.text == ".loc":
            self._loc(token)
        elif token.text in (".shared", ".local"):
            self._variables.append(read_variable(tokens, token.text[1:]))
        elif token.text == ".param":
            variable = read_variable(tokens, "local")
            scope.parameters.add(variable.name)
            self._variables.append(variable)
        elif token.text == ".pragma":
            tokens.skip_until(";")
        else:
            raise tokens.refusal(token)

    def _loc(self, token: Token) -> None:
        texts = self._tokens.rest_of_line(token.line)
        file, line, column = (int(text) for text in texts[:3])
        name = self._files.get(file, "")
        self._place = Place(name, line, column) if line else None

    def _declare(self, scope: _Scope) -> None:
        tokens = self._tokens
        register_type = tokens.next().text[1:]
        while True:
            name = tokens.next().text
            if tokens.accept("<"):
                tokens.integer()
                tokens.expect(">")
                scope.ranges[name] = register_type
            else:
                scope.names[name] = self._new(name, register_type)
            if tokens.accept(";"):
                return
            tokens.expect(",")

    def _new(self, name: str, register_type: str) -> Register:
        register = Register(len(self._registers), register_type, name)
        self._registers.append(register)
        return register

    def _instruction(self, scope: _Scope) -> None:
        tokens = self._tokens
        start = tokens.peek()
        first = tokens.position
        guard = None
        if tokens.accept("@"):
            negated = tokens.accept("!")
            operand = self._named(tokens.next().text, scope)
            if not isinstance(operand, Register):
                raise tokens.refusal(start)
            guard = replace(operand, negated=negated)
        opcode = tokens.next()
        if opcode.kind != "word":
            raise tokens.refusal(opcode)
        operands: list[Operand] = []
        while not tokens.accept(";"):
            if operands:
                tokens.expect(",")
            operands.append(self._operand(scope))
        text = tokens.text_since(first)
        if opcode.text.split(".")[0] in ("bra", "brx"):
            self._branches.append((len(self._instructions), scope))
        self._instructions.append(
            Instruction(opcode.text, tuple(operands), guard, start.line, text, self._place)
        )

    def _operand(self, scope: _Scope) -> Operand:
        tokens = self._tokens
        if tokens.accept("["):
            return self._address(scope)
        first = self._simple(scope)
        if tokens.accept("|"):
            return Pair(first, self._simple(scope))
        return first

    def _simple(self, scope: _Scope) -> Operand:
        tokens = self._tokens
        token = tokens.next()
        if token.text == "{":
            return Vector(self._until("}", scope))
        if token.text == "(":
            return Arguments(self._until(")", scope))
        if token.text == "!":
            operand = self._simple(scope)
            if isinstance(operand, Register):
                return replace(operand, negated=True)
            raise tokens.refusal(token)
        if token.kind == "number":
            return Immediate(int(token.text.rstrip("U"), 0))
        if token.kind == "float":
            return Immediate(int(token.text[2:], 16), 32 if token.text[1] in "fF" else 64)
        if token.kind != "word":
            raise tokens.refusal(token)
        operand = self._named(token.text, scope)
        if isinstance(operand, Symbol) and tokens.accept("+"):
            return replace(operand, offset=tokens.integer())
        return operand

    def _until(self, end: str, scope: _Scope) -> tuple[Operand, ...]:
        operands = []
        while not self._tokens.accept(end):
            operands.append(self._simple(scope))
            self._tokens.accept(",")
        return tuple(operands)

    def _address(self, scope: _Scope) -> Address:
        tokens = self._tokens
        base, offset = self._simple(scope), 0
        coordinates: tuple[Operand, ...] = ()
        if isinstance(base, Symbol):
            base, offset = replace(base, offset=0), base.offset
        if tokens.accept("+") or tokens.peek().kind == "number":
            offset += tokens.integer()
        if tokens.accept(","):
            tokens.expect("{")
            coordinates = self._until("}", scope)
        tokens.expect("]")
        return Address(base, offset, coordinates)

    def _named(self, name: str, scope: _Scope) -> Operand:
        if name == "_":
            return Sink()
        if name == "WARP_SZ":
            return Immediate(32)
        found: _Scope | None = scope
        prefix = name.rstrip(_DIGITS)
        while found is not None:
            if name in found.names:
                return found.names[name]
            if prefix != name and prefix in found.ranges:
                register = self._new(name, found.ranges[prefix])
                found.names[name] = register
                return register
            found = found.parent
        if name.startswith("%"):
            if not _SPECIAL.fullmatch(name):
                raise UnsupportedError(f"the special register {name} is not known")
            return Special(name)
        return Symbol(name)

    def _resolved(self, instruction: Instruction, scope: _Scope) -> Instruction:
        def target(operand: Operand) -> Operand:
            found: _Scope | None = scope
            while isinstance(operand, Symbol) and found is not None:
                if operand.name in found.labels:
                    return Label(operand.name, found.labels[operand.name])
                found = found.parent
            raise UnsupportedError(f"PTX line {instruction.line}: no label for a branch")

        return replace(instruction, operands=tuple(map(target, instruction.operands)))
