"""Small pieces of text: tables, counts, durations, files, and what a stream can show."""

import fcntl
import io
import os
import struct
import termios
from pathlib import Path

import pytest

from pallasc.cli.output.progress import time_left_s
from pallasc.cli.output.text import (
    Screen,
    can_redraw,
    duration,
    is_ci,
    relative_file,
    wants_colour,
    workspace_root,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (119.4, "119 s"),
        (119.6, "2 min 00 s"),
        (3599.4, "59 min 59 s"),
        (3600, "1 h 00 min"),
        (7500, "2 h 05 min"),
    ],
)
def test_a_duration_is_as_fine_as_it_deserves(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("left", "compiled_s", "running_s", "jobs", "expected"),
    [
        (10, [], [3.0], 2, None),
        (0, [2.0], [], 2, None),
        (10, [2.0, 4.0], [], 2, 15.0),
        (10, [3.0], [1.0, 2.0], 2, 13.5),
        (10, [3.0], [100.0, 1.0], 2, 13.0),
        (1, [3.0], [1.0], 8, 2.0),
        (3, [4.0], [], 8, 4.0),
        (2, [4.0], [4.0, 0.0], 8, 4.0),
        (1, [3.0], [50.0], 2, None),
    ],
)
def test_the_time_left_is_work_over_jobs_but_not_less_than_the_newest_needs(
    left: int, compiled_s: list[float], running_s: list[float], jobs: int, expected: float | None
) -> None:
    found = time_left_s(left=left, compiled_s=compiled_s, running_s=running_s, jobs=jobs)
    assert found == (None if expected is None else pytest.approx(expected))


# ---- files as the CI service names them


def test_the_repository_is_where_the_ci_service_says_or_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GITHUB_WORKSPACE", "CI_PROJECT_DIR", "WORKSPACE"):
        assert workspace_root({name: str(tmp_path / "x")}) == tmp_path.resolve() / "x"
    monkeypatch.chdir(tmp_path)
    assert workspace_root({}) == workspace_root({"GITHUB_WORKSPACE": ""}) == tmp_path.resolve()
    assert [is_ci({"CI": text}) for text in ("true", "1", "False", "")] == [
        True,
        True,
        False,
        False,
    ]
    assert not is_ci({})


def test_a_file_below_it_is_relative_and_links_do_not_hide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path / "src")
    root = tmp_path.resolve()
    assert relative_file("kernels.py", root) == "src/kernels.py"
    assert relative_file("../kernels.py", root) == "kernels.py"
    assert relative_file("/usr/lib/x.py", root) is None
    assert relative_file(f"{tmp_path}-2/x.py", root) is None
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "src")
    assert relative_file(str(link / "x.py"), workspace_root({"WORKSPACE": str(link)})) == "x.py"
    (tmp_path / "y.py").symlink_to("/elsewhere.py")
    assert relative_file(str(tmp_path / "y.py"), root) == "y.py"


# ---- what a stream can show


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "colour", "redraw"),
    [
        ({}, True, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False, True),
        ({"NO_COLOR": ""}, True, True),
        ({"TERM": "dumb"}, False, False),
        ({"CI": "true"}, True, False),
        ({"CI": "false"}, True, True),
    ],
)
def test_colours_and_a_live_display_need_a_terminal_that_has_them(
    environment: dict[str, str], colour: bool, redraw: bool
) -> None:
    assert wants_colour(Terminal(), environment) is colour
    assert can_redraw(Terminal(), environment) is redraw
    assert not wants_colour(io.StringIO(), environment)
    assert not can_redraw(io.StringIO(), environment)


def test_the_size_is_that_of_the_terminal_at_this_moment_or_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "123")
    monkeypatch.setenv("LINES", "45")
    outer, inner = os.openpty()
    with open(inner, "w", encoding="utf-8") as stream:
        screen = Screen(stream, live=True)
        assert screen.size() == Screen(io.StringIO()).size() == (123, 45)
        for columns, rows in ((100, 30), (50, 10)):
            fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            assert screen.size() == (columns, rows)
    os.close(outer)
