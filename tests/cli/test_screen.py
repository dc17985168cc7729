"""What a stream can show depends on the stream, on the environment and on its size just now."""

from __future__ import annotations

import fcntl
import io
import os
import struct
import termios
from collections.abc import Iterator
from typing import TextIO

import pytest

from pallasc.cli.output.text import Screen, can_redraw, wants_colour


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal() -> Iterator[TextIO]:
    """Return the program's end of a real terminal without a size."""
    outer, inner = os.openpty()
    with open(inner, "w", encoding="utf-8") as stream:
        yield stream
    os.close(outer)


def _resize(stream: TextIO, columns: int, rows: int) -> None:
    fcntl.ioctl(stream.fileno(), termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@pytest.mark.parametrize(
    ("terminal", "environment", "wanted"),
    [
        (True, {}, True),
        (True, {"TERM": "xterm"}, True),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
        (True, {"CI": "true"}, True),
        (False, {}, False),
    ],
)
def test_colour_is_for_terminals_unless_no_color_is_set(
    terminal: bool, environment: dict[str, str], wanted: bool
) -> None:
    assert wants_colour(Terminal() if terminal else io.StringIO(), environment) is wanted


@pytest.mark.parametrize(
    ("terminal", "environment", "can"),
    [
        (True, {}, True),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, True),
        (True, {"TERM": "dumb"}, False),
        (True, {"CI": "true"}, False),
        (True, {"CI": "1"}, False),
        (True, {"CI": "false"}, True),
        (True, {"CI": ""}, True),
        (False, {"TERM": "xterm"}, False),
    ],
)
def test_lines_are_drawn_again_where_somebody_looks_at_a_terminal(
    terminal: bool, environment: dict[str, str], can: bool
) -> None:
    assert can_redraw(Terminal() if terminal else io.StringIO(), environment) is can


def test_the_size_is_that_of_the_terminal_at_this_moment(
    terminal: TextIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "33")
    screen = Screen(terminal, live=True)
    _resize(terminal, 100, 30)
    assert screen.size() == (100, 30)
    _resize(terminal, 50, 10)
    assert screen.size() == (50, 10)


def test_a_terminal_without_a_size_has_that_of_the_environment(
    terminal: TextIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "123")
    monkeypatch.setenv("LINES", "45")
    assert Screen(terminal).size() == (123, 45)
    assert Screen(io.StringIO()).size() == (123, 45)


def test_paint_only_colours_where_there_are_colours() -> None:
    stream = io.StringIO()
    assert Screen(stream).paint("word", "red") == "word"
    assert Screen(stream, colour=True).paint("word", None) == "word"
    assert Screen(stream, colour=True).paint("word", "red") == "\x1b[31mword\x1b[0m"
    painted = Screen(stream, colour=True).paint_status("hit  hit@b200", "hit")
    assert painted == "\x1b[36mhit\x1b[0m  hit@b200"
