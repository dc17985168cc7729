"""The tokens of a PTX file, line by line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

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
    """A piece of text: its kind, and where it stands."""

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
    """Return a text without comments of several lines; its lines keep their numbers."""
    if "/*" not in text:
        return text
    return _BLOCK_COMMENT.sub(lambda comment: " " + "\n" * comment.group().count("\n"), text)


class Tokens:
    """Goes through tokens from the first to the last; one file, used once.

    A line is taken apart when its first token is asked for. `lines` and `go_to` are for what reads
    whole lines instead.
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
        """Go through a text of its own within the block, which must take all of it."""
        before = self._tokens, self._at
        self._tokens, self._at = [*_tokens(text, line), Token("mark", ";", 0, line)], 0
        yield
        if self._at != len(self._tokens) - 1:
            raise self.refusal(self._tokens[self._at])
        self._tokens, self._at = before

    def has_more(self) -> bool:
        """Tell whether there is another token, which is taken from the lines if necessary."""
        while self._at >= len(self._tokens):
            if self._line >= len(self._lines):
                return False
            self._line += 1
            if line := self._lines[self._line - 1]:
                self._tokens += _tokens(line, self._line)
        return True

    def lines(self) -> tuple[int, list[str]]:
        """Take all lines that are left, none in the middle of one; return the first's number."""
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
        """Take the next token if it is this one; tell whether it was."""
        if self.has_more() and self._tokens[self._at].text == text:
            self._at += 1
            return True
        return False

    def follows(self, text: str) -> bool:
        """Tell whether a token stands behind the next one, in its line."""
        behind = self._at + 1
        return behind < len(self._tokens) and self._tokens[behind].text == text

    def expect(self, text: str) -> None:
        """Take the next token, which must be this one."""
        if not self.accept(text):
            raise self.refusal(self.peek())

    def refusal(self, token: Token) -> UnsupportedError:
        """Return the error for a token that is not understood."""
        return UnsupportedError(f"PTX line {token.line}: unexpected {token.text!r}")

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

    def next_on_line(self) -> str:
        """Take what is left of the line of the last token; return the first of it."""
        return self.rest_of_line(self._tokens[self._at - 1].line)[0]

    def rest_of_line(self, line: int) -> list[str]:
        """Take the tokens that are left of a line."""
        texts = []
        while self._at < len(self._tokens) and self._tokens[self._at].line == line:
            texts.append(self.next().text)
        return texts or [""]

    def skip_until(self, text: str) -> None:
        """Go on behind the next token with this text."""
        while self.next().text != text:
            pass

    def skip_section(self) -> None:
        """Go on behind a section in braces."""
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
