"""Parses PTX: variables, registers, labels and instructions. Errors name the line."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pallasc.emulator.ptx.syntax import (
    Address,
    Arguments,
    Immediate,
    Instruction,
    Kernel,
    Label,
    Module,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Variable,
    Vector,
)
from pallasc.errors import UnsupportedError

_OPERANDS = re.compile(r"\[[^\]]*\]|\{[^}]*\}|\([^)]*\)[^,]*|[^,\s\[{(][^,]*")
_NAME = re.compile(r"[%$_A-Za-z][\w$]*(?:\.[\w$]+)*")
_DIGITS = "0123456789"
_INTEGER = r"-?(?:0[xX][0-9a-fA-F]+|\d+)"
_PLAIN_NUMBER = re.compile(_INTEGER)
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
    """Return the error for text that the parser does not support."""
    return UnsupportedError(f"PTX line {line}: unexpected {text!r}")


def _value_of(expression: str, line: int) -> int:
    """Return the value of a constant expression such as `(0xf0 & 0xcc) ^ 0xaa`."""
    try:
        return int(eval(expression, {"__builtins__": {}}))  # see _EXPRESSION
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError) as error:
        raise unexpected(expression, line) from error


@dataclass(slots=True)
class Scope:
    """The declarations between two braces, and the operands parsed there.

    Attributes:
        registers: the kernel's registers so far, by number; shared by its scopes.
        parent: the enclosing scope.
        names: the registers declared here. In the outermost scope, a numbered register (declared as
            in `%r<9>`) is added at its first use.
        ranges: the types of numbered registers by their prefix.
        labels: the index of the instruction after each label.
        known: operands by their text.
    """

    registers: list[Register] = field(default_factory=list)
    parent: Scope | None = None
    names: dict[str, Register] = field(default_factory=dict)
    ranges: dict[str, str] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    known: dict[str, Operand] = field(default_factory=dict)

    def declare(self, name: str, register_type: str) -> Register:
        """Return a new register."""
        register = self.names[name] = Register(len(self.registers), register_type)
        self.registers.append(register)
        return register

    def declare_all(self, register_type: str, names: str) -> None:
        """Declare the registers in a directive such as `.reg .b32 %r<9>, %x;`."""
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
        """Return the index of the instruction after a label, None if there is no such label."""
        scope: Scope | None = self
        while scope is not None:
            if label in scope.labels:
                return scope.labels[label]
            scope = scope.parent
        return None

    def operands(self, text: str, line: int) -> tuple[Operand, ...]:
        """Return the operands in a text; each one is parsed once per scope.

        Raises:
            UnsupportedError: an operand is not supported.
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
_SIZES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}


def read_variable(text: str, space: str, line: int) -> Variable:
    """Parse `.align 8 .b8 name[16] = {...}` or a parameter.

    Raises:
        UnsupportedError: the type or the initial value is unknown.
    """
    declared, _, initial = text.partition("=")
    found = _VARIABLE.fullmatch(declared.strip())
    if found is None:
        raise unexpected(text.strip(), line)
    alignment, width = 0, 1
    words = found["words"].split()
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == ".align" and ".ptr" not in words:  # `.ptr .align` aligns the pointer's target
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
    if rest := _PLAIN_NUMBER.sub("", text).strip(" ,{}U"):
        raise unexpected(rest, line)
    values = [int(number, 0) % (1 << 8 * width) for number in _PLAIN_NUMBER.findall(text)]
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
            UnsupportedError: the file has ended.
        """
        if (line := self.next()) is None:
            raise UnsupportedError("the PTX ends in the middle of a statement")
        return line

    def until(self, text: str, mark: str) -> str:
        """Take lines up to the first `mark`; return the text before it."""
        while mark not in text:
            text += f" {self.more()}"
        text, _, rest = text.partition(mark)
        self.give_back(rest)
        return text

    def give_back(self, rest: str) -> None:
        """Put back the rest of the last line, for the next call."""
        if rest.strip():
            self.taken -= 1
            self.lines[self.taken] = rest


class _Body:
    """Parses the body of one kernel."""

    def __init__(self, lines: _Lines) -> None:
        self._lines = lines
        self._branches: list[tuple[int, str, Scope]] = []
        self.scope = Scope()
        self.variables: list[Variable] = []
        self.instructions: list[Instruction] = []

    def read(self) -> None:
        """Parse up to the closing brace.

        Raises:
            UnsupportedError: a part is not supported.
        """
        lines = self._lines
        while True:
            text = lines.more()
            number = lines.taken
            if text.startswith((".loc ", ".loc\t")):
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
        self.instructions.append(Instruction(opcode, operands, guard, number, source))

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


def parse(text: str) -> Module:
    """Parse a PTX file.

    Raises:
        UnsupportedError: a part of it is not supported; the message has its line.
    """
    lines = _Lines(text)
    kernels: list[Kernel] = []
    variables: list[Variable] = []
    while (line := lines.next()) is not None:
        number = lines.taken
        words = [word for word in line.split() if word not in (".visible", ".extern", ".weak")]
        first = words[0] if words else ""
        if first == ".section":
            lines.until(line, "}")
        elif first == ".entry":
            kernels.append(_entry(lines, lines.until(line, "{"), number))
        elif first == ".func":
            lines.until(line, ";")
        elif first in (".global", ".const", ".shared"):
            declared = lines.until(line.partition(first)[2], ";")
            variables.append(read_variable(declared, first[1:], number))
        elif first not in ("", ".version", ".target", ".address_size", ".file"):
            raise unexpected(first, number)
    return Module(tuple(kernels), tuple(variables))


def _entry(lines: _Lines, header: str, number: int) -> Kernel:
    name, _, rest = header.partition(".entry")[2].strip().partition("(")
    parameters, _, directives = rest.rpartition(")")
    name, _, unlisted = name.partition(" ")
    for word in re.findall(r"[^\s\d,]\S*", f"{unlisted}{directives}"):
        if not word.startswith("."):
            raise unexpected(word, number)
    body = _Body(lines)
    body.read()
    declared = [each.strip().removeprefix(".param") for each in parameters.split(",")]
    return Kernel(
        name.strip(),
        tuple(read_variable(each, "param", number) for each in declared if each),
        tuple(body.variables),
        body.scope.registers,
        body.instructions,
    )
