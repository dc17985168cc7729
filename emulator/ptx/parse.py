"""Parses PTX, and rejects unsupported parts with their line."""

from __future__ import annotations

from pallasc.emulator.ptx.body import Body
from pallasc.emulator.ptx.syntax import Kernel, Module, Variable
from pallasc.emulator.ptx.tokens import Token, Tokens
from pallasc.emulator.ptx.variables import read_variable


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
