"""Signals that end a run: the first one counts, those after it cut nothing short."""

import io
import os
import signal
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import captured

from pallasc.cli.main import as_interrupts
from pallasc.cli.output.progress import Live
from pallasc.cli.output.text import Screen

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# A command that is stopped and stopped again: while it puts things away, after it, and at the end.
STOPPED = """
import atexit, os, sys
first, second = map(int, sys.argv[1:])
import pallasc.compiler.builds.collect
from pallasc.cli.main import main
from pallasc.cli import main as exits

exits._DEAF_S = 3600.0  # a busy machine may take longer between the two

def again(place, kill=os.kill, this=os.getpid(), number=second, write=os.write):
    kill(this, number)
    write(1, f"still there {place}\\n".encode())

def load_specs(*_, **__):
    try:
        os.kill(os.getpid(), first)
    finally:
        again("in the run")

class Last:
    def __del__(self, again=again):
        again("at the very end")

pallasc.compiler.builds.collect.load_specs = load_specs
sys.last = Last()
atexit.register(again, "at exit")
code = main(["list", "kernels.yaml"])
again("after the run")
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("first", "second"), [*zip(SIGNALS, (*SIGNALS[1:], SIGNALS[0]), strict=True), SIGNALS[:1] * 2]
)
def test_a_second_signal_does_not_cut_the_first_one_short(first: int, second: int) -> None:
    command = [sys.executable, "-P", "-c", STOPPED, str(int(first)), str(int(second))]
    result = captured(command)
    places = ["in the run", "after the run", "at exit", "at the very end"]
    assert result.stdout.splitlines() == [f"still there {place}" for place in places]
    assert (result.returncode, result.stderr.strip()) == (130, "interrupted")


@pytest.fixture
def handlers() -> Iterator[dict[int, object]]:
    """Put the handlers of this process back."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield before
    for number, handler in before.items():
        signal.signal(number, handler)


def test_without_a_signal_everything_is_as_it_was_and_what_is_ignored_stays_so(
    handlers: dict[int, object],
) -> None:
    with as_interrupts():
        assert all(signal.getsignal(number) != handlers[number] for number in SIGNALS)
    assert {number: signal.getsignal(number) for number in SIGNALS} == handlers
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with as_interrupts():
        os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_an_interrupt_that_a_finalizer_drops_comes_again(handlers: dict[int, object]) -> None:
    class Finalized:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    def wait() -> None:
        with as_interrupts():
            Finalized()
            time.sleep(20)

    with pytest.raises(KeyboardInterrupt):
        wait()
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_a_timer_of_the_caller_goes_on() -> None:
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        signal.setitimer(signal.ITIMER_REAL, 3600)
        with as_interrupts():
            pass
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# Interrupts a process where it begins to import a module.
INTERRUPTING = """
import os, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""
CONSOLE_SCRIPT = "import sys; from pallasc.__main__ import main; sys.exit(main())"


@pytest.mark.parametrize(
    ("module", "start"),
    [
        ("pallasc.cli", ["-c", CONSOLE_SCRIPT]),
        ("click", ["-m", "pallasc"]),
        ("pallasc.errors", ["-c", CONSOLE_SCRIPT]),
        ("pallasc.cli.list", ["-m", "pallasc"]),
    ],
)
def test_an_interrupt_while_modules_are_imported_gives_no_traceback(
    module: str, start: list[str], tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTING.format(module=module))
    variables = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = captured([sys.executable, "-P", *start, "targets"], env=variables)
    assert (result.returncode, result.stderr, result.stdout) == (130, "\ninterrupted\n", "")
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"pallasc": "pallasc.__main__:main"}


class Interrupting(io.StringIO):
    """A terminal, read by a model; what is drawn on it first brings a signal."""

    def __init__(self, paper: Any) -> None:
        super().__init__()
        self.paper = paper
        self.is_first = True

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.paper.feed(text.replace("\n", "\r\n"))
        if self.is_first:
            self.is_first = False
            os.kill(os.getpid(), signal.SIGTERM)
        return len(text)


def test_an_interrupt_while_the_status_is_drawn_leaves_none_behind(
    handlers: object, pretended: Any, paper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    terminal = Interrupting(paper(80))

    def build() -> None:
        with as_interrupts(), Live(Screen(terminal, live=True), clock=pretended.Clock()) as live:
            live(pretended.finished(pretended.compiled(), 1, 2))
            live(pretended.started(done=1, total=2))

    with pytest.raises(KeyboardInterrupt):
        build()
    assert terminal.paper.shown == ["compiled  add@h100-sxm  1.24 s, 9,512 bytes, 40 registers"]
