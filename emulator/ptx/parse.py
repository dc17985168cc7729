"""Parses PTX: variables, registers, labels, instructions; rejects other parts with their line."""

from __future__ import annotations

import re

from pallasc.emulator.ptx.syntax import (
    EMPTY,
    Block,
    Declaration,
    Inner,
    Instruction,
    Instructions,
    Item,
    Kernel,
    Label,
    Module,
    Operands,
    Place,
    Register,
    Scope,
    Statement,
    Variable,
    by_name,
    is_register_name,
    item_of,
    renamed,
    unexpected,
)
from pallasc.errors import UnsupportedError

_BLOCK_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_COMMENT = re.compile(r'("[^"]*")|//.*')
_PIECE = re.compile(r"[{}]|[%$_A-Za-z][\w$]*\s*:(?!:)|[^{};][^;]*;|;")
"""A brace, a label, or a statement with its semicolon."""
_VARIABLE = re.compile(
    r"(?P<words>(?:\.\w+\s+(?:\d+\s+)?)+)(?P<name>[\w$.%]+)\s*(?P<sizes>(?:\[\s*\w*\s*\]\s*)*)"
)
_FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"')
_SIZES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}
_NUMBER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|\d+)")


def read_variable(text: str, space: str, line: int) -> Variable:
    """Parse `.align 8 .b8 name[16] = {...}` or a parameter.

    Raises:
        UnsupportedError: its type or its initial value is unknown.
    """
    declared, _, initial = text.partition("=")
    found = _VARIABLE.fullmatch(declared.strip())
    if found is None:
        raise unexpected(text.strip(), line)
    alignment, width = 0, 1
    words = found["words"].split()
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == ".align" and ".ptr" not in words:  # `.ptr .align` is the target's
            alignment = int(following)
        elif word.startswith(".") and (digits := re.sub(r"\D", "", word)):
            width = _SIZES.get(digits, 0)
            if not width:
                raise unexpected(word, line)
    count = 1
    for size in re.findall(r"\[\s*(\w*)\s*\]", found["sizes"]):
        count *= int(size, 0) if size else 0
    data = _initial(initial, width, line) if initial else b""
    return Variable(found["name"], space, width * count, alignment or width, data)


def _initial(text: str, width: int, line: int) -> bytes:
    """Parse the initial value of a variable: a number or a list of numbers (PTX ISA 9.0, 5.4.4)."""
    if rest := _NUMBER.sub("", text).strip(" ,{}U"):
        raise unexpected(rest, line)
    values = [int(number, 0) % (1 << 8 * width) for number in _NUMBER.findall(text)]
    return b"".join(value.to_bytes(width, "little") for value in values)


_new = tuple.__new__
"""Constructs most instructions: calling the class takes twice as long."""


class _Lines:
    """The lines of a file without block comments, and the number of lines taken so far."""

    def __init__(self, text: str) -> None:
        if "/*" in text:  # line numbers stay the same
            text = _BLOCK_COMMENT.sub(lambda each: " " + "\n" * each[0].count("\n"), text)
        self.lines = text.split("\n")
        self.taken = 0

    def next(self) -> str | None:
        """Take a line without its comment, None at the end."""
        if self.taken >= len(self.lines):
            return None
        self.taken += 1
        return _COMMENT.sub(r"\1", self.lines[self.taken - 1]).strip()

    def more(self) -> str:
        """Take the next line of a statement.

        Raises:
            UnsupportedError: there is none.
        """
        if (line := self.next()) is None:
            raise UnsupportedError("the PTX ends in the middle of a statement")
        return line

    def until(self, text: str, mark: str) -> str:
        """Take lines until one has a mark; return the text before it."""
        while mark not in text:
            text += f" {self.more()}"
        text, _, rest = text.partition(mark)
        self.give_back(rest)
        return text

    def give_back(self, rest: str) -> None:
        """Return the rest of the last line."""
        if rest.strip():
            self.taken -= 1
            self.lines[self.taken] = rest


class _Body:
    """Parses the body of one kernel.

    Instructions are parsed when first accessed. With `by_name`, their registers may lack number and
    type.
    """

    def __init__(self, lines: _Lines, files: dict[int, str], *, by_name: bool) -> None:
        self._lines = lines
        self._files = files
        self._operands = Operands()
        self._outer = self._scope = Scope()
        self._by_name = by_name
        self.variables: list[Variable] = []
        self._code = Instructions(self._later)
        self._place: Place | None = None

    def read(self) -> tuple[list[Register], Instructions]:
        """Parse up to the closing brace; return the registers and the instructions."""
        lines, outer = self._lines.lines, self._outer
        statements, numbers, places = self._code.statements, self._code.lines, self._code.places
        at = self._lines.taken
        while at < len(lines):
            item = item_of(lines[at])
            at += 1
            if type(item) is Statement and self._scope is outer:
                statements.append(item)  # inlined `code.state`, which takes twice as long
                numbers.append(at)
                places.append(self._place)
            elif item is not EMPTY:
                self._lines.taken = at
                if self._pieces(lines[at - 1]) if item is None else self._item(item, at):
                    code = self._code
                    del self._code  # which keeps this body alive, to parse the rest
                    return self._operands.registers, code
                at = self._lines.taken
        raise UnsupportedError("the PTX ends in the middle of a statement")

    def _pieces(self, line: str) -> bool:
        """Process a line piece by piece; return True at the end of the body."""
        number, text = self._lines.taken, _COMMENT.sub(r"\1", line).strip()
        if text.startswith((".loc ", ".loc\t")):
            self._loc(text)
            return False
        while text:
            piece = _PIECE.match(text)
            if piece is None:
                text += f" {self._lines.more()}"
                continue
            text = text[piece.end() :].lstrip()
            item = item_of(piece[0])
            if item is None:
                self._directive(piece[0].rstrip("; "), number)
            elif self._item(item, number):
                self._lines.give_back(text)
                return True
        return False

    def _item(self, item: Item, number: int) -> bool:
        """Process an item; return True at the end of the body."""
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
        elif item.text == "{":
            self._scope = Scope(scope)
        elif item.text == "}":
            if scope.parent is None:
                return True
            self._scope = scope.parent
        else:
            scope.labels[item.text] = len(self._code)
        return False

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

    def _directive(self, text: str, number: int) -> None:
        word = text.partition(" ")[0].partition("\t")[0]
        if word in (".shared", ".local", ".param"):
            space = "shared" if word == ".shared" else "local"
            self.variables.append(read_variable(text.removeprefix(word), space, number))
        elif word not in ("", ".pragma"):
            raise unexpected(word, number)

    def _loc(self, text: str) -> None:
        file, line, column = map(int, re.findall(r"\d+", text)[:3])
        self._place = Place(self._files.get(file, ""), line, column) if line else None


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
        self._lines = _Lines(text)
        self._files: dict[int, str] = {}
        self._variables: list[Variable] = []

    def module(self) -> Module:
        version = target = ""
        kernels: list[Kernel] = []
        lines = self._lines
        while (text := lines.next()) is not None:
            number = lines.taken
            words = [w for w in text.split() if w not in (".visible", ".extern", ".weak")]
            first = words[0] if words else ""
            if first == ".version":
                version = words[1]
            elif first == ".target":
                target = words[1].rstrip(",")
            elif first == ".file" and (file := _FILE.match(text)):
                self._files[int(file[1])] = file[2]
            elif first == ".section":
                lines.until(text, "}")
            elif first == ".entry":
                kernels.append(self._entry(lines.until(text, "{"), number))
            elif first == ".func":
                lines.until(text, ";")
            elif first in (".global", ".const", ".shared"):
                declared = lines.until(text.partition(first)[2], ";")
                self._variables.append(read_variable(declared, first[1:], number))
            elif first not in ("", ".address_size"):
                raise unexpected(first, number)
        return Module(version, target, tuple(kernels), tuple(self._variables))

    def _entry(self, header: str, number: int) -> Kernel:
        name, _, rest = header.partition(".entry")[2].strip().partition("(")
        parameters, _, directives = rest.rpartition(")")
        name, _, unlisted = name.partition(" ")
        sizes: dict[str, tuple[int, int, int]] = {}
        for word, numbers in re.findall(r"(\S+)\s+([\d,\s]*)", f"{unlisted}{directives} "):
            if not word.startswith("."):
                raise unexpected(word, number)
            x, y, z = [*map(int, re.findall(r"\d+", numbers)), 1, 1, 1][:3]
            sizes[word] = (x, y, z)
        body = _Body(self._lines, self._files, by_name=self._by_name)
        registers, code = body.read()
        declared = [each.strip().removeprefix(".param") for each in parameters.split(",")]
        return Kernel(
            name.strip(),
            tuple(read_variable(each, "param", number) for each in declared if each),
            tuple(body.variables),
            registers,
            code,
            sizes.get(".maxntid") or sizes.get(".reqntid"),
            sizes.get(".reqnctapercluster"),
        )
