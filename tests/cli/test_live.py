"""The live display: what stands on a terminal, drawn by a model of one, by a real one, by tmux."""

from __future__ import annotations

import fcntl
import io
import os
import re
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pallasc.cli.live import Live
from pallasc.cli.screen import Screen
from pallasc.compiler.report import Tick

PROGRAM = Path(__file__).parent / "programs" / "pretended_build.py"
DEADLINE_S = 5
_PIECE = re.compile(r"\x1b\[(?P<code>\d*(?:;\d+)*)(?P<what>[AKm])|(?P<letter>[^\x1b])", re.DOTALL)


class Paper:
    """A terminal as far as the live display uses one; it refuses everything else."""

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


class Terminal(io.StringIO):
    """A stream that is a terminal of the size that the environment says."""

    def __init__(self) -> None:
        super().__init__()
        self.paper = Paper(columns=120)
        self.writes: list[str] = []

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.writes.append(text)
        self.paper.feed(text.replace("\n", "\r\n"))
        return len(text)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("LINES", "24")
    return Terminal()


def test_hits_of_a_small_build_are_lines(terminal: Terminal, pretended: Any) -> None:
    with Live(Screen(terminal, live=True), clock=pretended.Clock()) as live:
        for number in range(3):
            live(pretended.finished(pretended.hit(), number + 1, 3))
    assert terminal.paper.shown == ["hit       add@h100-sxm"] * 3


def test_hits_of_a_large_build_are_counted(terminal: Terminal, pretended: Any) -> None:
    clock = pretended.Clock()
    with Live(Screen(terminal, live=True), clock=clock) as live:
        for number in range(500):
            clock.now_s += 0.001
            live(pretended.finished(pretended.hit(), number + 1, 1000))
        assert terminal.paper.shown == [
            f"{'━' * 20}{'─' * 20}  500/1,000  50 %",
            "500 hits, 0 compiled, 0 running",
        ]
        assert len(terminal.writes) == 3
    assert terminal.paper.shown == []


def test_a_quick_look_through_the_store_shows_nothing(terminal: Terminal, pretended: Any) -> None:
    with Live(Screen(terminal, live=True), clock=pretended.Clock()) as live:
        for number in range(500):
            live(pretended.finished(pretended.hit(), number + 1, 500))
    assert terminal.writes == []


def test_hits_that_were_not_asked_for_are_not_shown(terminal: Terminal, pretended: Any) -> None:
    with Live(Screen(terminal, live=True), hits=False, clock=pretended.Clock()) as live:
        live(pretended.finished(pretended.hit(), 1, 2))
    assert terminal.writes == []


def test_results_scroll_by_above_the_status(terminal: Terminal, pretended: Any) -> None:
    clock = pretended.Clock()
    with Live(Screen(terminal, live=True), clock=clock) as live:
        live(pretended.started(done=0, total=2))
        clock.now_s += 1
        live(pretended.finished(pretended.failed(output="last\nwords"), 1, 2))
        assert terminal.paper.shown == [
            "failed    add@h100-sxm",
            "    it broke.",
            "    output:",
            "    last",
            "    words",
            f"{'━' * 20}{'─' * 20}  1/2  50 %",
            "0 hits, 0 compiled, 1 failed, 1 running",
            "  1 s  add@h100-sxm",
        ]
    assert terminal.paper.shown[-1] == "    words"
    assert (terminal.paper.row, terminal.paper.column) == (5, 0)


def test_what_runs_is_known_between_ticks(terminal: Terminal, pretended: Any) -> None:
    clock = pretended.Clock()
    first, second = pretended.variant(m=1), pretended.variant(m=2)
    with Live(Screen(terminal, live=True), clock=clock) as live:
        live(Tick(((first, 5.0),), 0, 3, (), 2))
        clock.now_s += 2
        live(pretended.started(second, 0, 3))
        assert terminal.paper.shown[-2:] == ["  7 s  add[m=1]@h100-sxm", "  0 s  add[m=2]@h100-sxm"]
        clock.now_s += 1
        live(pretended.finished(pretended.compiled(first), 1, 3))
        assert terminal.paper.shown[-2:] == [
            "0 hits, 1 compiled, 1 running",
            "  1 s  add[m=2]@h100-sxm",
        ]


def test_it_is_drawn_at_most_ten_times_a_second(terminal: Terminal, pretended: Any) -> None:
    clock = pretended.Clock()
    with Live(Screen(terminal, live=True), clock=clock) as live:
        live(pretended.started(done=0, total=1000))
        for number in range(1000):
            clock.now_s += 0.002
            live(pretended.finished(pretended.compiled(), number + 1, 1000))
        assert 18 <= len(terminal.writes) <= 21
    assert (
        terminal.paper.shown == ["compiled  add@h100-sxm  1.24 s, 9,512 bytes, 40 registers"] * 1000
    )


def test_nothing_is_drawn_where_nothing_changed(terminal: Terminal, pretended: Any) -> None:
    clock = pretended.Clock()
    with Live(Screen(terminal, live=True), clock=clock) as live:
        for _ in range(10):
            clock.now_s += 0.15
            live(Tick((), 1, 2))
        assert len(terminal.writes) == 1


def test_a_text_said_meanwhile_stands_above_the_status(terminal: Terminal, pretended: Any) -> None:
    with Live(Screen(terminal, live=True), clock=pretended.Clock()) as live:
        live(pretended.started(done=0, total=2))
        live.say("warning: the store\nis odd")
        assert terminal.paper.shown[:3] == [
            "warning: the store",
            "is odd",
            f"{'─' * 40}  0/2  0 %",
        ]


def test_a_status_that_a_narrower_terminal_wrapped_is_removed(
    terminal: Terminal, pretended: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = pretended.Clock()
    of = pretended.variant("n" * 90)
    with Live(Screen(terminal, live=True), clock=clock) as live:
        live(pretended.started(of, 0, 2))
        live.say("above")
        wide, terminal.paper = terminal.paper, Paper(columns=50)
        terminal.paper.feed("\r\n".join(wide.shown))
        assert len(terminal.paper.lines) > len(wide.lines)
        monkeypatch.setenv("COLUMNS", "50")
        clock.now_s += 1
        live(Tick(((of, 1.0),), 0, 2))
        assert terminal.paper.shown == [
            "above",
            f"{'─' * 37}  0/2  0 %",
            "0 hits, 0 compiled, 1 running",
            f"  1 s  {'n' * 20}…{'n' * 9}@h100-sxm",
        ]


def test_ending_twice_writes_once(terminal: Terminal, pretended: Any) -> None:
    live = Live(Screen(terminal, live=True), clock=pretended.Clock())
    live(pretended.started(done=0, total=2))
    live.end()
    told = len(terminal.writes)
    live.end()
    assert len(terminal.writes) == told
    assert terminal.paper.shown == []


class RealTerminal:
    """The pretended build in a process of its own, on a terminal of the operating system."""

    def __init__(self, columns: int, environment: dict[str, str], folder: Path) -> None:
        self._outer, inner = os.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._text = b""
        self._paper = Paper(columns)
        self._process = subprocess.Popen(
            [sys.executable, "-P", PROGRAM, folder / "orders"],
            env=environment,
            cwd=folder,
            stderr=inner,
        )
        os.close(inner)

    @property
    def raw(self) -> str:
        return self._text.decode()

    def shown(self) -> list[str]:
        while select.select([self._outer], [], [], 0.02)[0]:
            try:
                piece = os.read(self._outer, 65536)
            except OSError:  # the other end is closed
                break
            self._text += piece
            self._paper.feed(piece.decode())
        return self._paper.shown

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._outer)


class Tmux:
    """The same in tmux, which is a terminal with a screen to look at."""

    def __init__(self, columns: int, environment: dict[str, str], folder: Path) -> None:
        self._socket = str(folder / "tmux")
        words = [f"{name}={value}" for name, value in environment.items() if name != "TERM"]
        program = [sys.executable, "-P", str(PROGRAM), str(folder / "orders")]
        command = shlex.join(["env", "-i", "TERM=screen", *words, *program])
        size = ["-x", str(columns), "-y", "24"]
        where = ["-c", str(folder)]
        self._tmux("-f", os.devnull, "new-session", "-d", *size, *where, f"{command}; read wait")

    def _tmux(self, *arguments: str) -> str:
        result = subprocess.run(
            ["tmux", "-S", self._socket, *arguments], capture_output=True, text=True, check=True
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
        self._tmux("resize-window", "-x", str(columns), "-y", "24")

    def close(self) -> None:
        self._tmux("kill-server")


NEEDS_TMUX = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
TERMINALS = [RealTerminal, pytest.param(Tmux, marks=NEEDS_TMUX)]
Open = Callable[..., tuple[Any, Callable[[str], None]]]


@pytest.fixture
def open_build(tmp_path: Path) -> Iterator[Open]:
    """Start the pretended build on a terminal; return that, and how to order the next step."""
    (tmp_path / "kernels.py").write_text("def add(x):\n    return x.no\n")
    os.mkfifo(tmp_path / "orders")
    with ExitStack() as opened:

        def start(kind: Any, columns: int, **environment: str) -> Any:
            kept = ("PATH", "PYTHONPATH", "HOME", "LD_LIBRARY_PATH", "PYTHONDONTWRITEBYTECODE")
            here = {name: os.environ[name] for name in kept if name in os.environ}
            here |= {"TERM": "xterm", "LANG": "C.UTF-8", **environment}
            terminal = kind(columns, here, tmp_path)
            opened.callback(terminal.close)
            orders = opened.enter_context(open(tmp_path / "orders", "w", encoding="utf-8"))

            def order(text: str) -> None:
                orders.write(f"{text}\n")
                orders.flush()

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
    """Return ids as the status names them: with their middle left out where they must be."""
    if columns == 80:
        return ["a_matmul_whose_name_alone_is_long[m…bf16,activation=silu_and]@h100-sxm"] * len(
            numbers
        )
    name = "a_matmul_whose_name_alone_is_long[m={},n=4096,dtype=bf16,activation=silu_and]@h100-sxm"
    return [name.format(number) for number in numbers]


def _first_status(columns: int) -> list[str]:
    return [
        f"{'━' * 30}{'─' * 10}  30/40  75 %",
        "30 hits, 0 compiled, 2 running",
        *(f"  1 s  {identifier}" for identifier in _ids(columns, 30, 31)),
    ]


def _results(columns: int) -> list[str]:
    short = "a_matmul_whose_name_alone_is_l…,activation=silu_and]@h100-sxm  1.50 s"
    facts = "  1.50 s, 9,512 bytes, 40 registers"
    names = _ids(columns, 30, 31)
    failed = "a_matmul_whose_name_alone_is_long[…bf16,activation=silu_and]@h100-sxm"
    return [
        f"compiled  {short if columns == 80 else names[0] + facts}",
        f"failed    {failed if columns == 80 else names[1]}",
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


@pytest.mark.parametrize("columns", [80, 200])
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
    assert shown[0].removeprefix("^C") == ("interrupted: 10 of 40 left; what is finished is kept:")
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
    assert found == ["hit"] * 30 + ["compiling", "compiled", "failed", "compiling"]


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
    narrow = _wait_for_end(terminal, "  1 s  a_matmul_whose_…_and]@h100-sxm")
    assert narrow[-2] == "30 hits, 1 compiled, 1 failed, 1 runn"
    terminal.resize(200)
    order("go on")
    shown = _wait_for_end(terminal, "40 variants")
    text = "\n".join(shown)
    print(text)
    assert [text.count(word) for word in ("running", "compiled  a_", "failed    a_")] == [0, 1, 1]
