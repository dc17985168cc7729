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
