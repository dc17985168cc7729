"""Parses PTX: variables, registers, labels, instructions; rejects other parts with their line."""

from __future__ import annotations

import re

from pallasc.emulator.ptx.operands import Scope, unexpected
from pallasc.emulator.ptx.syntax import (
    Instruction,
    Kernel,
    Label,
    Module,
    Operand,
    Place,
    Variable,
)
from pallasc.errors import UnsupportedError

_BLOCK_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_COMMENT = re.compile(r'("[^"]*")|//.*')
_PIECE = re.compile(r"[{}]|[%$_A-Za-z][\w$]*\s*:(?!:)|[^{};][^;]*;|;")
"""A brace, a label, or a statement with its semicolon."""
_LABEL = re.compile(r"([%$_A-Za-z][\w$]*)\s*:")
_INSTRUCTION = re.compile(
    r"(?:@(?P<negated>!)?(?P<guard>[%$_A-Za-z][\w$]*)\s+)?"
    r"(?P<opcode>[a-z][\w.:]*\w)(?:\s+(?P<operands>.*))?;",
    re.DOTALL,
)
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
        line = self.lines[self.taken - 1]
        return (_COMMENT.sub(r"\1", line) if "//" in line else line).strip()

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
    """Parses the body of one kernel."""

    def __init__(self, lines: _Lines, files: dict[int, str]) -> None:
        self._lines = lines
        self._files = files
        self._place: Place | None = None
        self._branches: list[tuple[int, str, Scope]] = []
        self.scope = Scope()
        self.variables: list[Variable] = []
        self.instructions: list[Instruction] = []

    def read(self) -> None:
        """Parse up to the closing brace.

        Raises:
            UnsupportedError: a part is not understood.
        """
        lines = self._lines
        while True:
            text = lines.more()
            number = lines.taken
            if text.startswith((".loc ", ".loc\t")):
                self._loc(text)
                continue
            while text:
                piece = _PIECE.match(text)
                if piece is None:
                    text += f" {lines.more()}"
                    continue
                text = text[piece.end() :].lstrip()
                if piece[0] == "}" and self.scope.parent is None:
                    lines.give_back(text)
                    self._resolve()
                    return
                self._piece(piece[0], number)

    def _piece(self, text: str, number: int) -> None:
        """Process a brace, a label, or a statement."""
        scope = self.scope
        if (found := _INSTRUCTION.fullmatch(text)) is not None:
            self._instruction(found, number)
        elif text == "{":
            self.scope = Scope(scope.registers, scope)
        elif text == "}":
            self.scope = scope.parent or scope
        elif (label := _LABEL.fullmatch(text)) is not None:
            scope.labels[label[1]] = len(self.instructions)
        else:
            self._directive(text.rstrip("; "), number)

    def _instruction(self, found: re.Match[str], number: int) -> None:
        negated, name, opcode, text = found.groups()
        guard = None
        if name is not None:
            guard = self.scope.guard(name, number, negated=negated is not None)
        operands: tuple[Operand, ...] = ()
        if opcode.startswith(("bra", "brx")):
            self._branches.append((len(self.instructions), (text or "").strip(), self.scope))
        elif text:
            operands = self.scope.operands(text, number)
        source = " ".join(found[0][:-1].split())
        self.instructions.append(Instruction(opcode, operands, guard, number, source, self._place))

    def _resolve(self) -> None:
        """Set the targets of the branches.

        Raises:
            UnsupportedError: a label does not exist.
        """
        for number, label, scope in self._branches:
            branch = self.instructions[number]
            if (target := scope.place_of(label)) is None:
                raise UnsupportedError(f"PTX line {branch.line}: no label for a branch")
            self.instructions[number] = branch._replace(operands=(Label(label, target),))

    def _directive(self, text: str, number: int) -> None:
        word, _, rest = text.replace("\t", " ").partition(" ")
        if word == ".reg":
            kind, _, names = rest.strip().removeprefix(".").partition(" ")
            self.scope.declare_all(kind, names)
        elif word in (".shared", ".local", ".param"):
            space = "shared" if word == ".shared" else "local"
            self.variables.append(read_variable(rest, space, number))
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
    lines, files = _Lines(text), dict[int, str]()
    kernels: list[Kernel] = []
    variables: list[Variable] = []
    while (line := lines.next()) is not None:
        number = lines.taken
        words = [word for word in line.split() if word not in (".visible", ".extern", ".weak")]
        first = words[0] if words else ""
        if first == ".file" and (file := _FILE.match(line)):
            files[int(file[1])] = file[2]
        elif first == ".section":
            lines.until(line, "}")
        elif first == ".entry":
            kernels.append(_entry(lines, files, lines.until(line, "{"), number))
        elif first == ".func":
            lines.until(line, ";")
        elif first in (".global", ".const", ".shared"):
            declared = lines.until(line.partition(first)[2], ";")
            variables.append(read_variable(declared, first[1:], number))
        elif first not in ("", ".version", ".target", ".address_size"):
            raise unexpected(first, number)
    return Module(tuple(kernels), tuple(variables))


def _entry(lines: _Lines, files: dict[int, str], header: str, number: int) -> Kernel:
    name, _, rest = header.partition(".entry")[2].strip().partition("(")
    parameters, _, directives = rest.rpartition(")")
    name, _, unlisted = name.partition(" ")
    sizes: dict[str, tuple[int, int, int]] = {}
    for word, numbers in re.findall(r"(\S+)\s+([\d,\s]*)", f"{unlisted}{directives} "):
        if not word.startswith("."):
            raise unexpected(word, number)
        x, y, z = [*map(int, re.findall(r"\d+", numbers)), 1, 1, 1][:3]
        sizes[word] = (x, y, z)
    body = _Body(lines, files)
    body.read()
    declared = [each.strip().removeprefix(".param") for each in parameters.split(",")]
    return Kernel(
        name.strip(),
        tuple(read_variable(each, "param", number) for each in declared if each),
        tuple(body.variables),
        body.scope.registers,
        body.instructions,
        sizes.get(".maxntid") or sizes.get(".reqntid"),
    )
