"""A model of a terminal, as far as the live display uses one."""

import re

_PIECE = re.compile(r"\x1b\[(?P<code>\d*(?:;\d+)*)(?P<what>[AKm])|(?P<letter>[^\x1b])", re.DOTALL)


class Paper:
    """Endless rows of so many columns; a control that the display is not to use is refused."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.lines = [""]
        self.row = self.column = 0

    def feed(self, text: str) -> None:
        at = 0
        while at < len(text):
            piece = _PIECE.match(text, at)
            assert piece is not None, f"a sequence that no terminal was asked for: {text[at:]!r}"
            at = piece.end()
            self._take(piece)

    def _take(self, piece: re.Match[str]) -> None:
        letter, what = piece["letter"], piece["what"]
        if letter == "\r":
            self.column = 0
        elif letter == "\n":
            self._next_line()
        elif letter is not None:
            self._put(letter)
        elif what == "A":
            self.row -= int(piece["code"])
            assert self.row >= 0, "above the top"
        elif what == "K":
            assert piece["code"] == "2"
            self.lines[self.row] = ""

    def _put(self, letter: str) -> None:
        if self.column == self.columns:
            self._next_line()
            self.column = 0
        line = self.lines[self.row].ljust(self.column)
        self.lines[self.row] = line[: self.column] + letter + line[self.column + 1 :]
        self.column += 1

    def _next_line(self) -> None:
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append("")

    @property
    def shown(self) -> list[str]:
        lines = [line.rstrip() for line in self.lines]
        while lines and not lines[-1]:
            lines.pop()
        return lines
