"""What a stream can show: whether lines can be redrawn, how much fits, colours."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import NamedTuple, TextIO

import click

from pallasc.cli.terminal.workspace import is_ci

STATUS_COLOURS = {
    "hit": "cyan",
    "lowered": "cyan",
    "shared": "cyan",
    "compiled": "green",
    "failed": "red",
    "missing": "yellow",
    "skipped": "yellow",
}

_ASCII = str.maketrans({"━": "=", "─": "-", "…": "~", "→": "->"})


class Screen(NamedTuple):
    """A stream and what it can show.

    Attributes:
        stream: where text goes.
        live: whether lines at the bottom can be redrawn.
        colour: whether words are coloured.
        ascii: whether it cannot show our bar and ellipsis.
    """

    stream: TextIO
    live: bool = False
    colour: bool = False
    ascii: bool = False

    def write(self, text: str) -> None:
        """Write text at once."""
        self.stream.write(text.translate(_ASCII) if self.ascii else text)
        self.stream.flush()

    def size(self) -> tuple[int, int]:
        """Return columns and rows as they are now; 80 and 24 where that is not known."""
        try:
            columns, rows = os.get_terminal_size(self.stream.fileno())
        except (OSError, ValueError):
            columns = rows = 0
        if columns and rows:  # a pseudo-terminal has 0 of both until somebody sets its size
            return columns, rows
        import shutil

        return shutil.get_terminal_size()  # from COLUMNS and LINES, if they are set

    @property
    def line_columns(self) -> int | None:
        """Columns that a line may take without being wrapped; None where lines stay whole."""
        # Some terminals wrap as soon as the last column is filled.
        return self.size()[0] - 1 if self.live else None

    def paint(self, text: str, colour: str | None) -> str:
        """Return text in a colour, where there are any."""
        return click.style(text, fg=colour) if self.colour and colour else text

    def paint_status(self, line: str, status: str) -> str:
        """Return a line that begins with a status, and the status in its colour."""
        end = len(status)
        return self.paint(line[:end], STATUS_COLOURS[status]) + line[end:]


def wants_colour(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Tell whether to colour: on a terminal, unless NO_COLOR is set (https://no-color.org)."""
    allowed = not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
    return stream.isatty() and allowed


def can_redraw(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Tell whether lines can be redrawn: on a terminal that somebody looks at.

    Several CI services give their jobs a terminal, and log all that is written to it.
    """
    if environment.get("TERM") == "dumb" or is_ci(environment):
        return False
    return stream.isatty()


def stderr_screen() -> Screen:
    """Return what this process's standard error output can show."""
    stream = sys.stderr
    return Screen(
        stream,
        live=can_redraw(stream, os.environ),
        colour=wants_colour(stream, os.environ),
        ascii=_is_narrow(stream.encoding or "ascii"),  # a StringIO has no encoding
    )


def _is_narrow(encoding: str) -> bool:
    try:
        "━─…".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return True
    return False
