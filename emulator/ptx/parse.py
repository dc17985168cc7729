"""Read PTX. What is not understood is refused, with its line."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

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
    Place,
    Register,
    Sink,
    Special,
    Symbol,
    Variable,
    Vector,
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
_DECIMAL = re.compile(r"-?(?:0|[1-9]\d*)")
_SIMPLE_ADDRESS = re.compile(r"\[(?P<base>%\w+)(?:\+(?P<offset>-?(?:0|[1-9]\d*)))?\]")
_SPECIAL = re.compile(
    r"%(?:tid|ntid|ctaid|nctaid|clusterid|nclusterid|cluster_ctaid|cluster_nctaid)\.[xyz]"
    r"|%(?:laneid|warpid|nwarpid|smid|nsmid|gridid|clock|clock_hi|clock64|globaltimer"
    r"|globaltimer_lo|globaltimer_hi|cluster_ctarank|cluster_nctarank|is_explicit_cluster"
    r"|lanemask_(?:eq|le|lt|ge|gt)|dynamic_smem_size|total_smem_size|aggr_smem_size)"
)
_SIZES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int
    line: int


@dataclass(slots=True)
class _Scope:
    parent: _Scope | None
    names: dict[str, Register] = field(default_factory=dict)
    ranges: dict[str, str] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    parameters: set[str] = field(default_factory=set)
    operands: dict[str, Operand] = field(default_factory=dict)


def parse(text: str) -> Module:
    """Return what a PTX file declares.

    Raises:
        UnsupportedError: something in it is not understood; the message has its line.
    """
    return _Parser(text).module()


def _tokens(text: str, line: int) -> list[_Token]:
    tokens, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise UnsupportedError(f"PTX line {line}: cannot read {text[position]!r}")
        kind = match.lastgroup or ""
        if kind != "space":
            tokens.append(_Token(kind, match.group(), position, line))
        position = match.end()
    return tokens


def _without_blocks(text: str) -> str:
    """Return a text without comments of several lines; its lines keep their numbers."""
    if "/*" not in text:
        return text
    return _BLOCK_COMMENT.sub(lambda comment: " " + "\n" * comment.group().count("\n"), text)


class _Parser:
    """Reads tokens from the first to the last; one file, used once.

    A line is taken apart when its first token is asked for. `next_line` and `skip_line` are for
    what reads whole lines instead.
    """

    def __init__(self, text: str) -> None:
        self._lines = _without_blocks(text).split("\n")
        self._line = 0
        self._tokens: list[_Token] = []
        self._at = 0
        self._files: dict[int, str] = {}
        self._variables: list[Variable] = []

    def module(self) -> Module:
        """Read the whole file."""
        version = target = ""
        kernels: list[Kernel] = []
        while self._has_more():
            token = self._next()
            if token.text == ".version":
                version = self._next_on_line()
            elif token.text == ".target":
                target = self._rest_of_line(token.line)[0]
            elif token.text == ".address_size":
                self._rest_of_line(token.line)
            elif token.text == ".file":
                self._file(token)
            elif token.text == ".section":
                self._skip_section()
            elif token.text in (".visible", ".extern", ".weak"):
                continue
            elif token.text == ".entry":
                kernels.append(self._entry())
            elif token.text == ".func":
                self._skip_until(";")
            elif token.text in (".global", ".const", ".shared"):
                self._variables.append(self._variable(token.text[1:]))
            else:
                raise self._refusal(token)
        return Module(version, target, tuple(kernels), tuple(self._variables))

    # Tokens.

    def _has_more(self) -> bool:
        """Tell whether there is another token, which is taken from the lines if necessary."""
        while self._at >= len(self._tokens):
            if self._line >= len(self._lines):
                return False
            self._line += 1
            self._tokens += _tokens(self._lines[self._line - 1], self._line)
        return True

    def next_line(self) -> str | None:
        """Return the next line, None in the middle of one."""
        if self._at < len(self._tokens) or self._line >= len(self._lines):
            return None
        return self._lines[self._line]

    def skip_line(self) -> int:
        """Go on behind the next line; return its number."""
        self._line += 1
        return self._line

    def _peek(self) -> _Token:
        if not self._has_more():
            raise UnsupportedError("the PTX ends in the middle of a statement")
        return self._tokens[self._at]

    def _next(self) -> _Token:
        token = self._peek()
        self._at += 1
        return token

    def _accept(self, text: str) -> bool:
        if self._has_more() and self._tokens[self._at].text == text:
            self._at += 1
            return True
        return False

    def _follows(self, text: str) -> bool:
        """Tell whether a token stands behind the next one, in its line."""
        behind = self._at + 1
        return behind < len(self._tokens) and self._tokens[behind].text == text

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            raise self._refusal(self._peek())

    def _refusal(self, token: _Token) -> UnsupportedError:
        return UnsupportedError(f"PTX line {token.line}: {token.text!r} is not understood here")

    def text_since(self, first: int) -> str:
        """Return the statement that begins with a token and ends with the last one, a semicolon."""
        tokens = self._tokens[first : self._at]
        start, end = tokens[0], tokens[-1]
        if start.line == end.line:
            return " ".join(self._lines[start.line - 1][start.start : end.start].split())
        whole = [self._lines[start.line - 1][start.start :]]
        whole += self._lines[start.line : end.line - 1]
        whole.append(self._lines[end.line - 1][: end.start])
        return " ".join(" ".join(whole).split())

    def _next_on_line(self) -> str:
        return self._rest_of_line(self._tokens[self._at - 1].line)[0]

    def _rest_of_line(self, line: int) -> list[str]:
        texts = []
        while self._at < len(self._tokens) and self._tokens[self._at].line == line:
            texts.append(self._next().text)
        return texts or [""]

    def _skip_until(self, text: str) -> None:
        while self._next().text != text:
            pass

    def _skip_section(self) -> None:
        self._skip_until("{")
        depth = 1
        while depth:
            depth += {"{": 1, "}": -1}.get(self._next().text, 0)

    def _integer(self) -> int:
        token = self._next()
        if token.kind != "number":
            raise self._refusal(token)
        return int(token.text.rstrip("U"), 0)

    def _file(self, token: _Token) -> None:
        number, name, *_ = self._rest_of_line(token.line)
        self._files[int(number)] = name.strip('"')

    # Declarations.

    def _variable(self, space: str) -> Variable:
        """Read `.align 8 .b8 name[16] = {...};` or a parameter, without what ends it."""
        alignment, width, is_pointer = 0, 1, False
        token = self._next()
        while token.text.startswith("."):
            is_pointer = is_pointer or token.text == ".ptr"
            if token.text == ".align":
                stated = self._integer()
                alignment = alignment if is_pointer else stated  # `.ptr .align`: of its target
            elif token.text not in (".ptr", ".global", ".shared", ".const", ".visible"):
                width = _SIZES.get(re.sub(r"\D", "", token.text), 0)
                if not width:
                    raise self._refusal(token)
            token = self._next()
        count = 1
        while self._accept("["):
            count *= 0 if self._peek().text == "]" else self._integer()
            self._expect("]")
        data = self._initial(width) if self._accept("=") else b""
        if space != "param":
            self._expect(";")
        return Variable(token.text, space, width * count, alignment or width, data)

    def _initial(self, width: int) -> bytes:
        self._expect("{")
        values = []
        while not self._accept("}"):
            values.append(self._integer() % (1 << 8 * width))
            self._accept(",")
        return b"".join(value.to_bytes(width, "little") for value in values)

    def _entry(self) -> Kernel:
        name = self._next().text
        parameters = []
        if self._accept("("):
            while not self._accept(")"):
                self._expect(".param")
                parameters.append(self._variable("param"))
                self._accept(",")
        sizes: dict[str, tuple[int, int, int]] = {}
        while self._peek().text != "{":
            token = self._next()
            if not token.text.startswith("."):
                raise self._refusal(token)
            numbers = [int(t) for t in self._rest_of_line(token.line) if t.isdigit()]
            if token.text in (".maxntid", ".reqntid", ".reqnctapercluster"):
                x, y, z = [*numbers, 1, 1][:3]
                sizes[token.text] = (x, y, z)
        return _Body(self, name).read(parameters, sizes)


class _Body:
    """Reads the body of one kernel."""

    def __init__(self, parser: _Parser, name: str) -> None:
        self._parser = parser
        self._name = name
        self._registers: list[Register] = []
        self._variables: list[Variable] = []
        self._instructions: list[Instruction] = []
        self._branches: list[tuple[int, _Scope]] = []
        self._place: Place | None = None

    def read(self, parameters: list[Variable], sizes: dict[str, tuple[int, int, int]]) -> Kernel:
        """Read `{ ... }`."""
        self._parser._expect("{")
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
        parser = self._parser
        while True:
            while (line := parser.next_line()) is not None and self._line(line.strip(), scope):
                pass
            if parser._accept("}"):
                return
            if parser._accept("{"):
                self._scope(_Scope(scope))
                continue
            token = parser._peek()
            if token.text.startswith("."):
                parser._at += 1
                self._directive(token, scope)
            elif parser._follows(":"):
                parser._at += 2
                scope.labels[token.text] = len(self._instructions)
            elif not parser._accept(";"):
                self._instruction(scope)

    def _line(self, line: str, scope: _Scope) -> bool:
        """Read a line that is a whole instruction, or a block of them; return False for others."""
        if not line:
            self._parser.skip_line()
            return True
        if line.startswith("{ ") and line.endswith("; }") and line.count("{") == line.count("}"):
            return self._block(line[2:-3].split(";"), scope)
        match = _PLAIN.fullmatch(line)
        if match is None:
            return False
        self._plain(match, line[:-1].rstrip(), scope, self._parser.skip_line())
        return True

    def _block(self, statements: list[str], scope: _Scope) -> bool:
        """Read a block in a line: declarations of single registers, and instructions."""
        texts = [statement.strip() for statement in statements]
        declared = [_DECLARATION.fullmatch(text) for text in texts]
        matches = [_PLAIN.fullmatch(f"{text};") for text in texts]
        if not all(a or b for a, b in zip(declared, matches, strict=True)):
            return False
        inner, number = _Scope(scope), self._parser.skip_line()
        for text, declaration, match in zip(texts, declared, matches, strict=True):
            if declaration is not None:
                name = declaration["name"]
                inner.names[name] = self._new(name, declaration["type"])
            elif match is not None:
                self._plain(match, text, inner, number)
        return True

    def _plain(self, match: re.Match[str], text: str, scope: _Scope, number: int) -> None:
        """Take in an instruction that stands in a line."""
        guard = None
        if (name := match["guard"]) is not None:
            operand = self._named(name, scope)
            if not isinstance(operand, Register):
                raise UnsupportedError(f"PTX line {number}: {name!r} is not understood here")
            guard = replace(operand, negated=match["negated"] is not None)
        opcode = match["opcode"]
        texts = _OPERANDS.findall(match["operands"] or "")
        operands = tuple([self._known(each, scope, number) for each in texts])
        if opcode.startswith(("bra", "brx")):
            self._branches.append((len(self._instructions), scope))
        joined = " ".join(text.split())
        self._instructions.append(Instruction(opcode, operands, guard, number, joined, self._place))

    def _known(self, text: str, scope: _Scope, number: int) -> Operand:
        """Return an operand by its text; each is read once in a scope."""
        operand = scope.operands.get(text)
        if operand is None:
            operand = scope.operands[text] = self._from_text(text.rstrip(), scope, number)
        return operand

    def _from_text(self, text: str, scope: _Scope, number: int) -> Operand:
        if text.isidentifier() or (text[0] == "%" and text[1:].isidentifier()):
            return self._named(text, scope)
        if _NAME.fullmatch(text):
            return self._named(text, scope)
        if _DECIMAL.fullmatch(text):
            return Immediate(int(text))
        if (address := _SIMPLE_ADDRESS.fullmatch(text)) is not None:
            base = self._known(address["base"], scope, number)
            if isinstance(base, Register):
                return Address(base, int(address["offset"] or 0))
        if text[0] == "{":
            parts = text[1:-1].split(",")
            if all(map(_NAME.fullmatch, map(str.strip, parts))):
                return Vector(tuple([self._known(part.strip(), scope, number) for part in parts]))
        return self._of_tokens(text, scope, number)

    def _of_tokens(self, text: str, scope: _Scope, number: int) -> Operand:
        """Return an operand that is read token by token."""
        parser = self._parser
        before = parser._tokens, parser._at
        parser._tokens, parser._at = [*_tokens(text, number), _Token("mark", ";", 0, number)], 0
        operand = self._operand(scope)
        if parser._at != len(parser._tokens) - 1:
            raise parser._refusal(parser._tokens[parser._at])
        parser._tokens, parser._at = before
        return operand

    def _directive(self, token: _Token, scope: _Scope) -> None:
        parser = self._parser
        if token.text == ".reg":
            self._declare(scope)
        elif token.text == ".loc":
            self._loc(token)
        elif token.text in (".shared", ".local"):
            self._variables.append(parser._variable(token.text[1:]))
        elif token.text == ".param":
            variable = parser._variable("local")
            scope.parameters.add(variable.name)
            self._variables.append(variable)
        elif token.text == ".pragma":
            parser._skip_until(";")
        else:
            raise parser._refusal(token)

    def _loc(self, token: _Token) -> None:
        texts = self._parser._rest_of_line(token.line)
        file, line, column = (int(text) for text in texts[:3])
        name = self._parser._files.get(file, "")
        self._place = Place(name, line, column) if line else None

    def _declare(self, scope: _Scope) -> None:
        parser = self._parser
        register_type = parser._next().text[1:]
        while True:
            name = parser._next().text
            if parser._accept("<"):
                parser._integer()
                parser._expect(">")
                scope.ranges[name] = register_type
            else:
                scope.names[name] = self._new(name, register_type)
            if parser._accept(";"):
                return
            parser._expect(",")

    def _new(self, name: str, register_type: str) -> Register:
        register = Register(len(self._registers), register_type, name)
        self._registers.append(register)
        return register

    def _instruction(self, scope: _Scope) -> None:
        parser = self._parser
        start = parser._peek()
        first = parser._at
        guard = None
        if parser._accept("@"):
            negated = parser._accept("!")
            operand = self._named(parser._next().text, scope)
            if not isinstance(operand, Register):
                raise parser._refusal(start)
            guard = replace(operand, negated=negated)
        opcode = parser._next()
        if opcode.kind != "word":
            raise parser._refusal(opcode)
        operands: list[Operand] = []
        while not parser._accept(";"):
            if operands:
                parser._expect(",")
            operands.append(self._operand(scope))
        text = parser.text_since(first)
        if opcode.text.split(".")[0] in ("bra", "brx"):
            self._branches.append((len(self._instructions), scope))
        self._instructions.append(
            Instruction(opcode.text, tuple(operands), guard, start.line, text, self._place)
        )

    def _operand(self, scope: _Scope) -> Operand:
        parser = self._parser
        if parser._accept("["):
            return self._address(scope)
        first = self._simple(scope)
        if parser._accept("|"):
            return Pair(first, self._simple(scope))
        return first

    def _simple(self, scope: _Scope) -> Operand:
        parser = self._parser
        token = parser._next()
        if token.text == "{":
            return Vector(self._until("}", scope))
        if token.text == "(":
            return Arguments(self._until(")", scope))
        if token.text == "!":
            operand = self._simple(scope)
            if isinstance(operand, Register):
                return replace(operand, negated=True)
            raise parser._refusal(token)
        if token.kind == "number":
            return Immediate(int(token.text.rstrip("U"), 0))
        if token.kind == "float":
            return Immediate(int(token.text[2:], 16), 32 if token.text[1] in "fF" else 64)
        if token.kind != "word":
            raise parser._refusal(token)
        operand = self._named(token.text, scope)
        if isinstance(operand, Symbol) and parser._accept("+"):
            return replace(operand, offset=parser._integer())
        return operand

    def _until(self, end: str, scope: _Scope) -> tuple[Operand, ...]:
        operands = []
        while not self._parser._accept(end):
            operands.append(self._simple(scope))
            self._parser._accept(",")
        return tuple(operands)

    def _address(self, scope: _Scope) -> Address:
        parser = self._parser
        base, offset = self._simple(scope), 0
        coordinates: tuple[Operand, ...] = ()
        if isinstance(base, Symbol):
            base, offset = replace(base, offset=0), base.offset
        if parser._accept("+") or parser._peek().kind == "number":
            offset += parser._integer()
        if parser._accept(","):
            parser._expect("{")
            coordinates = self._until("}", scope)
        parser._expect("]")
        return Address(base, offset, coordinates)

    def _named(self, name: str, scope: _Scope) -> Operand:
        if name == "_":
            return Sink()
        if name == "WARP_SZ":
            return Immediate(32)
        found: _Scope | None = scope
        prefix = name.rstrip("0123456789")
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
