"""The live display on real terminals: the operating system's, read by a model, and tmux."""

from __future__ import annotations

import codecs
import fcntl
import os
import re
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "programs" / "pretended_build.py"
DEADLINE_S = 600
CUT = re.compile(r"\x1b(\[[\d;]*)?\Z")
"""A sequence whose end is still to be read."""


class RealTerminal:
    """The pretended build in a process of its own, on a terminal of the operating system."""

    def __init__(self, columns: int, environment: dict[str, str], folder: Path, paper: Any) -> None:
        self._outer, inner = os.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._text = self._rest = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._paper = paper(columns)
        self._process = subprocess.Popen(
            [sys.executable, "-P", PROGRAM, folder / "orders"],
            env=environment,
            cwd=folder,
            stderr=inner,
        )
        os.close(inner)

    @property
    def raw(self) -> str:
        return self._text

    def shown(self) -> list[str]:
        while select.select([self._outer], [], [], 0.02)[0]:
            try:
                piece = os.read(self._outer, 65536)
            except OSError:  # the other end is closed
                break
            text = self._decoder.decode(piece)  # it may end within a letter, or a sequence
            self._text += text
            text = self._rest + text
            whole = CUT.sub("", text)
            self._rest = text[len(whole) :]
            self._paper.feed(whole)
        return self._paper.shown

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._outer)


def _without_control(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOCTTY)


class Tmux:
    """The same in tmux, which is a terminal with a screen to look at."""

    def __init__(self, columns: int, environment: dict[str, str], folder: Path, paper: Any) -> None:
        self._folder = tempfile.TemporaryDirectory()  # a socket's path must be short
        words = [f"{name}={value}" for name, value in environment.items() if name != "TERM"]
        program = [sys.executable, "-P", str(PROGRAM), str(folder / "orders")]
        command = shlex.join(["env", "-i", "TERM=screen", *words, *program])
        kept = f"trap : INT; {command}"  # the shell itself outlives an interrupt
        size = ["-x", str(columns), "-y", "24"]
        where = ["-c", str(folder)]
        self._tmux("-f", os.devnull, "new-session", "-d", *size, *where, f"{kept}; read wait")

    def _tmux(self, *arguments: str) -> str:
        result = subprocess.run(
            ["tmux", "-u", "-S", f"{self._folder.name}/socket", *arguments],
            env={**os.environ, "SHELL": "/bin/sh", "LC_ALL": "C.UTF-8"},
            capture_output=True,
            text=True,
            check=True,
        )
        return result.stdout

    @property
    def raw(self) -> str:
        return self._tmux("capture-pane", "-p", "-e")

    def shown(self) -> list[str]:
        lines = [line.rstrip() for line in self._tmux("capture-pane", "-p").splitlines()]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def interrupt(self) -> None:
        self._tmux("send-keys", "C-c")

    def resize(self, columns: int) -> None:
        """Change the width, and wait until programs inside are told of it, which tmux puts off."""
        self._tmux("resize-window", "-x", str(columns), "-y", "24")
        tty = self._tmux("display-message", "-p", "#{pane_tty}").strip()
        deadline = time.monotonic() + DEADLINE_S
        with open(tty, "rb", buffering=0, opener=_without_control) as terminal:
            while os.get_terminal_size(terminal.fileno()).columns != columns:
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def close(self) -> None:
        self._tmux("kill-server")
        self._folder.cleanup()


NEEDS_TMUX = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
TERMINALS = [RealTerminal, pytest.param(Tmux, marks=NEEDS_TMUX)]
Open = Callable[..., tuple[Any, Callable[[str], None]]]


@pytest.fixture
def open_build(tmp_path: Path, paper: Any) -> Iterator[Open]:
    """Start the pretended build on a terminal; return that, and how to order the next step."""
    (tmp_path / "kernels.py").write_text("def add(x):\n    return x.no\n")
    os.mkfifo(tmp_path / "orders")
    with ExitStack() as opened:

        def start(kind: Any, columns: int, **environment: str) -> Any:
            kept = ("PATH", "PYTHONPATH", "HOME", "LD_LIBRARY_PATH", "PYTHONDONTWRITEBYTECODE")
            here = {name: os.environ[name] for name in kept if name in os.environ}
            here |= {"TERM": "xterm", "LANG": "C.UTF-8", **environment}
            terminal = kind(columns, here, tmp_path, paper)
            opened.callback(terminal.close)
            # For reading too, since that does not wait for the other end.
            orders = os.open(tmp_path / "orders", os.O_RDWR)
            opened.callback(os.close, orders)

            def order(text: str) -> None:
                os.write(orders, f"{text}\n".encode())

            return terminal, order

        yield start


def _wait(terminal: Any, wanted: Callable[[list[str]], bool]) -> list[str]:
    """Return what stands on the terminal as soon as it is what is wanted, or at the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not wanted(shown := terminal.shown()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return shown


def _wait_for(terminal: Any, lines: list[str]) -> None:
    assert _wait(terminal, lambda shown: shown == lines) == lines


def _wait_for_end(terminal: Any, text: str) -> list[str]:
    """Return what stands on the terminal once its last line has a text in it."""
    shown = _wait(terminal, lambda lines: text in "".join(lines[-1:]))
    assert text in shown[-1]
    return shown


def _ids(columns: int, *numbers: int) -> list[str]:
    """Return ids as the status names them: without their end where there is no room for it."""
    name = "a_matmul_whose_name_alone_is_long[m={},n=4096,dtype=bf16,activation=silu_and]@h100-sxm"
    ids = [name.format(number) for number in numbers]
    return [f"{own[:69]}…" if columns == 80 else own for own in ids]


def _first_status(columns: int) -> list[str]:
    return [
        f"{'━' * 30}{'─' * 10}  30/40  75 %",
        "30 hits, 2 running",
        *(f"  1 s  {identifier}" for identifier in _ids(columns, 30, 31)),
    ]


def _results(columns: int) -> list[str]:
    names = _ids(columns, 30, 31)
    return [
        f"compiled  {names[0]}  1.50 s, 9,512 bytes, 40 registers",
        f"failed    {names[1]}",
        "    kernels.py:2: ValueError: no kernel for",
        "    an odd shape",
        "        2 | return x.no",
    ]


def _second_status(columns: int) -> list[str]:
    return [
        f"{'━' * 32}{'─' * 8}  32/40  80 %  about 10 s left",
        "30 hits, 1 compiled, 1 failed, 1 running",
        f"  1 s  {_ids(columns, 32)[0]}",
    ]


@pytest.mark.parametrize("columns", [200])
@pytest.mark.parametrize("kind", TERMINALS)
def test_a_build_on_a_terminal_scrolls_by_above_its_status(
    kind: Any, columns: int, open_build: Open
) -> None:
    terminal, order = open_build(kind, columns)
    order("go on")
    _wait_for(terminal, _first_status(columns))
    order("go on")
    order("go on")
    _wait_for(terminal, _results(columns) + _second_status(columns))
    order("go on")
    shown = _wait_for_end(terminal, "40 variants")
    results = _results(columns)
    assert shown[: len(results)] == results
    assert shown[len(results)] == "failed:"
    assert shown[-1].startswith("40 variants in 1.2 s: 30 hits (93 %), 1 compiled, 1 failed")


@pytest.mark.parametrize("kind", TERMINALS)
def test_an_interrupt_removes_the_status_and_says_what_is_left(kind: Any, open_build: Open) -> None:
    terminal, order = open_build(kind, 80)
    order("go on")
    _wait_for(terminal, _first_status(80))
    terminal.interrupt()
    shown = _wait_for_end(terminal, "40 variants")
    assert shown[0].removeprefix("^C") == "interrupted: 10 of 40 left; finished variants are kept:"
    assert shown[-1] == "40 variants in 1.2 s: 30 hits (100 %), 10 skipped, 60 s saved"


@pytest.mark.parametrize("kind", TERMINALS)
def test_an_exception_removes_the_status(kind: Any, open_build: Open) -> None:
    terminal, order = open_build(kind, 80)
    order("go on")
    _wait_for(terminal, _first_status(80))
    order("crash")
    shown = _wait_for_end(terminal, "it crashed.")
    assert shown[0] == "Traceback (most recent call last):"
    assert "running" not in "".join(shown)


@pytest.mark.parametrize("kind", TERMINALS)
def test_colours_are_on_unless_no_color_is_set(kind: Any, open_build: Open) -> None:
    terminal, order = open_build(kind, 80)
    order("go on")
    _wait_for(terminal, _first_status(80))
    assert "\x1b[36m30 hits\x1b[" in terminal.raw


@pytest.mark.parametrize("kind", TERMINALS)
def test_without_colours_the_status_is_drawn_all_the_same(kind: Any, open_build: Open) -> None:
    terminal, order = open_build(kind, 80, NO_COLOR="1")
    order("go on")
    _wait_for(terminal, _first_status(80))
    assert re.search(r"\x1b\[[\d;]*m", terminal.raw) is None


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"CI": "true", "NO_COLOR": "1"}])
def test_a_dumb_terminal_and_a_ci_log_get_whole_lines(
    environment: dict[str, str], open_build: Open
) -> None:
    terminal, order = open_build(RealTerminal, 200, **environment)
    for _ in range(4):
        order("go on")
    shown = _wait_for_end(terminal, "40 variants")
    assert "\x1b" not in terminal.raw
    found = re.findall(r"^\[ ?\d+/40\] (\w+) ", "\n".join(shown), re.MULTILINE)
    assert [word for word in found if word != "compiling"] == ["hit"] * 30 + ["compiled", "failed"]


def test_a_tmux_window_that_becomes_narrower_and_wider_keeps_the_results(
    open_build: Open,
) -> None:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    terminal, order = open_build(Tmux, 200)
    order("go on")
    _wait_for(terminal, _first_status(200))
    terminal.resize(40)
    order("go on")
    order("go on")
    narrow = _wait_for_end(terminal, "  1 s  a_matmul_whose_name_alone_is")
    assert narrow[-2] == "30 hits, 1 compiled, 1 failed, 1 run…"
    terminal.resize(200)
    order("go on")
    shown = _wait_for_end(terminal, "40 variants")
    text = "\n".join(shown)
    assert [text.count(word) for word in ("compiled  a_", "failed    a_")] == [1, 1]
    assert text.count("running") <= 1  # of lines that tmux wrapped, one may stay
