"""Parses PTX: variables, registers, labels, instructions; rejects other parts with their line."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pallasc.emulator.ptx.operands import Inner, Operands, Scope, Token, Tokens, by_name, renamed
from pallasc.emulator.ptx.syntax import (
    EMPTY,
    Block,
    Declaration,
    Instruction,
    Instructions,
    Item,
    Kernel,
    Label,
    Module,
    Operand,
    Place,
    Register,
    Statement,
    Variable,
    is_register_name,
    item_of,
)
from pallasc.errors import UnsupportedError

_SIZES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}


def read_variable(tokens: Tokens, space: str) -> Variable:
    """Parse `.align 8 .b8 name[16] = {...};` or a parameter, without the token that ends it."""
    alignment, width, is_pointer = 0, 1, False
    token = tokens.next()
    while token.text.startswith("."):
        is_pointer = is_pointer or token.text == ".ptr"
        if token.text == ".align":
            stated = tokens.integer()
            alignment = alignment if is_pointer else stated  # `.ptr .align` is the target's
        elif token.text not in (".ptr", ".global", ".shared", ".const", ".visible"):
            width = _SIZES.get(re.sub(r"\D", "", token.text), 0)
            if not width:
                raise tokens.refusal(token)
        token = tokens.next()
    count = 1
    while tokens.accept("["):
        count *= 0 if tokens.peek().text == "]" else tokens.integer()
        tokens.expect("]")
    data = _initial(tokens, width) if tokens.accept("=") else b""
    if space != "param":
        tokens.expect(";")
    return Variable(token.text, space, width * count, alignment or width, data)


def _initial(tokens: Tokens, width: int) -> bytes:
    """Parse the initial value of a variable: a number or a list of numbers (PTX ISA 9.0, 5.4.4)."""
    if not tokens.accept("{"):
        return (tokens.integer() % (1 << 8 * width)).to_bytes(width, "little")
    values = []
    while not tokens.accept("}"):
        values.append(tokens.integer() % (1 << 8 * width))
        tokens.accept(",")
    return b"".join(value.to_bytes(width, "little") for value in values)


_new = tuple.__new__
"""Constructs most instructions: calling the class takes twice as long."""


class Body:
    """Parses the body of one kernel.

    An instruction on a separate line is parsed when first accessed. With `by_name`, its registers
    may lack number and type.
    """

    def __init__(
        self, tokens: Tokens, name: str, files: Mapping[int, str], *, by_name: bool
    ) -> None:
        self._tokens = tokens
        self._name = name
        self._files = files
        self._operands = Operands(tokens)
        self._outer = self._scope = Scope()
        self._by_name = by_name
        self._variables: list[Variable] = []
        self._code = Instructions(self._later)
        self._place: Place | None = None

    def read(self, parameters: list[Variable], sizes: dict[str, tuple[int, int, int]]) -> Kernel:
        """Parse `{ ... }`."""
        self._tokens.expect("{")
        self._read()
        code = self._code
        del self._code  # which keeps this body alive, to parse the rest
        return Kernel(
            self._name,
            tuple(parameters),
            tuple(self._variables),
            self._operands.registers,
            code,
            sizes.get(".maxntid") or sizes.get(".reqntid"),
            sizes.get(".reqnctapercluster"),
        )

    def _read(self) -> None:
        tokens = self._tokens
        while True:
            self._lines()
            token = tokens.peek()
            if tokens.accept("}"):
                if self._scope.parent is None:
                    return
                self._scope = self._scope.parent
            elif tokens.accept("{"):
                self._scope = Scope(self._scope)
            elif token.text.startswith("."):
                tokens.next()
                self._directive(token, self._scope)
            elif tokens.follows(":"):
                tokens.next()
                tokens.next()
                self._scope.labels[token.text] = len(self._code)
            elif not tokens.accept(";"):
                self._of_tokens(self._scope)

    def _lines(self) -> None:
        """Read whole lines, up to one that must be parsed token by token."""
        tokens = self._tokens
        start, lines = tokens.lines()
        code, outer, place = self._code, self._outer, self._place
        statements, numbers, places = code.statements, code.lines, code.places
        for number, item in enumerate(map(item_of, lines), start):
            if type(item) is Statement and self._scope is outer:
                statements.append(item)  # inlined `code.state`, which takes twice as long
                numbers.append(number)
                places.append(place)
            elif item is not EMPTY and not self._item(item, number):
                tokens.go_to(number)
                return

    def _item(self, item: Item | None, number: int) -> bool:
        """Process a line; return False if it must be parsed token by token."""
        scope = self._scope
        if isinstance(item, Statement):
            self._take(item, number, scope)
        elif isinstance(item, Declaration):
            self._declare(item, scope)
        elif isinstance(item, Block):
            inner = Scope(scope)
            for each in item.registers:
                self._declare(each, inner)
            for statement in item.statements:
                self._take(statement, number, inner)
        elif item is None or (item.text == "}" and scope is self._outer):
            return False
        elif item.text == "{":
            self._scope = Scope(scope)
        elif item.text == "}":
            self._scope = scope.parent or self._outer
        else:
            scope.labels[item.text] = len(self._code)
        return True

    def _take(self, statement: Statement, number: int, scope: Scope) -> None:
        """Add an instruction of an inner scope."""
        own = scope.names
        if (
            statement.is_branch
            or not self._by_name
            or scope.parent is not self._outer
            or statement.guard in own
            or not own.keys().isdisjoint(statement.names)
        ):
            statement = Inner(statement, scope)
        self._code.state(statement, number, self._place)

    def _later(self, statement: Statement, number: int, place: Place | None) -> Instruction:
        """Parse an instruction when it is first accessed."""
        inner = statement if isinstance(statement, Inner) else None
        statement, scope = (inner.outer, inner.scope) if inner else (statement, self._outer)
        if statement.is_branch:
            return self._branch(statement, number, place, scope)
        if scope is not self._outer:
            return self._instruction(statement, number, place, scope)
        if self._by_name and (known := statement.by_name or by_name(statement)) is not None:
            operands, guard = known
            fields = (statement.opcode, operands, guard, number, statement.text, place)
            return _new(Instruction, fields)
        return self._instruction(statement, number, place, self._outer)

    def _instruction(
        self, statement: Statement, number: int, place: Place | None, scope: Scope
    ) -> Instruction:
        guard = self._guard(statement, number, scope)
        read = by_name(statement) if self._by_name and scope.parent is self._outer else None
        operands = None if read is None else renamed(read[0], scope.names)
        if operands is None:
            operands = self._operands.all_of(statement.operands, scope, number)
        fields = (statement.opcode, operands, guard, number, statement.text, place)
        return _new(Instruction, fields)

    def _branch(
        self, statement: Statement, number: int, place: Place | None, scope: Scope
    ) -> Instruction:
        label = statement.operands.strip()
        if (target := scope.place_of(label)) is None:
            raise UnsupportedError(f"PTX line {number}: no label for a branch")
        operands, guard = (Label(label, target),), self._guard(statement, number, scope)
        fields = (statement.opcode, operands, guard, number, statement.text, place)
        return _new(Instruction, fields)

    def _guard(self, statement: Statement, number: int, scope: Scope) -> Register | None:
        name, negated = statement.guard, statement.negated
        if name is None:
            return None
        return self._operands.guard(name, scope, number, negated=negated)

    def _declare(self, item: Declaration, scope: Scope) -> None:
        declare = self._operands.declare
        for name in item.names:
            prefix, _, count = name.rstrip(">").partition("<")
            if scope is not self._outer:
                for each in [f"{prefix}{n}" for n in range(int(count))] if count else [name]:
                    declare(each, item.type, scope)
            elif count:
                scope.ranges[prefix] = item.type
                self._by_name &= is_register_name(f"{prefix}0")
            else:
                declare(name, item.type, scope)
                self._by_name &= is_register_name(name)

    def _directive(self, token: Token, scope: Scope) -> None:
        tokens = self._tokens
        if token.text == ".reg":
            self._registers(scope)
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

    def _registers(self, scope: Scope) -> None:
        tokens = self._tokens
        register_type = tokens.next().text[1:]
        while True:
            name = tokens.next().text
            if tokens.accept("<"):
                name += f"<{tokens.integer()}>"
                tokens.expect(">")
            self._declare(Declaration(register_type, (name,)), scope)
            if tokens.accept(";"):
                return
            tokens.expect(",")

    def _of_tokens(self, scope: Scope) -> None:
        tokens = self._tokens
        start = tokens.peek()
        first = tokens.position
        guard = None
        if tokens.accept("@"):
            negated = tokens.accept("!")
            guard = self._operands.guard(tokens.next().text, scope, start.line, negated=negated)
        opcode = tokens.next()
        if opcode.kind != "word":
            raise tokens.refusal(opcode)
        if opcode.text.startswith(("bra", "brx")):
            tokens.skip_until(";")
            branch = item_of(f"{tokens.text_since(first)};")
            if not isinstance(branch, Statement):
                raise tokens.refusal(opcode)
            self._take(branch, start.line, scope)
            return
        operands: list[Operand] = []
        while not tokens.accept(";"):
            if operands:
                tokens.expect(",")
            operands.append(self._operands.next(scope))
        text = tokens.text_since(first)
        self._code.append(
            Instruction(opcode.text, tuple(operands), guard, start.line, text, self._place)
        )


def parse(text: str) -> Module:
    """Parse a PTX file.

    Raises:
        UnsupportedError: a part of it is not supported; the message has its line.
    """
    module = _Parser(text, by_name=False).module()
    for kernel in module.kernels:
        kernel.instructions[:]
    return module


def read(text: str) -> Module:
    """Parse a PTX file, but parse its instructions only when accessed, or reject them then.

    Registers may lack number and type, and are identified by name.

    Raises:
        UnsupportedError: a part other than an instruction is not supported; the message has its
            line.
    """
    return _Parser(text, by_name=True).module()


class _Parser:
    def __init__(self, text: str, *, by_name: bool) -> None:
        self._by_name = by_name
        self._tokens = Tokens(text)
        self._files: dict[int, str] = {}
        self._variables: list[Variable] = []

    def module(self) -> Module:
        tokens = self._tokens
        version = target = ""
        kernels: list[Kernel] = []
        while tokens.has_more():
            token = tokens.next()
            if token.text == ".version":
                version = tokens.next_on_line()
            elif token.text == ".target":
                target = tokens.rest_of_line(token.line)[0]
            elif token.text == ".address_size":
                tokens.rest_of_line(token.line)
            elif token.text == ".file":
                self._file(token)
            elif token.text == ".section":
                tokens.skip_section()
            elif token.text in (".visible", ".extern", ".weak"):
                continue
            elif token.text == ".entry":
                kernels.append(self._entry())
            elif token.text == ".func":
                tokens.skip_until(";")
            elif token.text in (".global", ".const", ".shared"):
                self._variables.append(read_variable(tokens, token.text[1:]))
            else:
                raise tokens.refusal(token)
        return Module(version, target, tuple(kernels), tuple(self._variables))

    def _file(self, token: Token) -> None:
        number, name, *_ = self._tokens.rest_of_line(token.line)
        self._files[int(number)] = name.strip('"')

    def _entry(self) -> Kernel:
        tokens = self._tokens
        name = tokens.next().text
        parameters = []
        if tokens.accept("("):
            while not tokens.accept(")"):
                tokens.expect(".param")
                parameters.append(read_variable(tokens, "param"))
                tokens.accept(",")
        sizes: dict[str, tuple[int, int, int]] = {}
        while tokens.peek().text != "{":
            token = tokens.next()
            if not token.text.startswith("."):
                raise tokens.refusal(token)
            numbers = [int(t) for t in tokens.rest_of_line(token.line) if t.isdigit()]
            if token.text in (".maxntid", ".reqntid", ".reqnctapercluster"):
                x, y, z = [*numbers, 1, 1][:3]
                sizes[token.text] = (x, y, z)
        body = Body(tokens, name, self._files, by_name=self._by_name)
        return body.read(parameters, sizes)
