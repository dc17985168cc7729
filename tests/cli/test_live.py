"""The live display, drawn by a model of a terminal, at times that the tests choose."""

from __future__ import annotations

import io
from typing import Any

import pytest

from pallasc.cli.output.progress import Live
from pallasc.cli.output.text import Screen
from pallasc.compiler.builds.report import Tick


class Terminal(io.StringIO):
    """A stream that is a terminal of the size that the environment says."""

    def __init__(self, paper: Any) -> None:
        super().__init__()
        self.paper = paper
        self.writes: list[str] = []

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.writes.append(text)
        self.paper.feed(text.replace("\n", "\r\n"))
        return len(text)


@pytest.fixture
def terminal(paper: Any, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("LINES", "24")
    return Terminal(paper(120))


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
            "500 hits",
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
            "1 failed, 1 running",
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
            "1 compiled, 1 running",
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
    terminal: Terminal, paper: Any, pretended: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = pretended.Clock()
    of = pretended.variant("n" * 90)
    with Live(Screen(terminal, live=True), clock=clock) as live:
        live(pretended.started(of, 0, 2))
        live.say("above")
        wide, terminal.paper = terminal.paper, paper(50)
        terminal.paper.feed("\r\n".join(wide.shown))
        assert len(terminal.paper.lines) > len(wide.lines)
        monkeypatch.setenv("COLUMNS", "50")
        clock.now_s += 1
        live(Tick(((of, 1.0),), 0, 2))
        assert terminal.paper.shown == [
            "above",
            f"{'─' * 37}  0/2  0 %",
            "1 running",
            f"  1 s  {'n' * 39}…",
        ]


def test_ending_twice_writes_once(terminal: Terminal, pretended: Any) -> None:
    live = Live(Screen(terminal, live=True), clock=pretended.Clock())
    live(pretended.started(done=0, total=2))
    live.end()
    told = len(terminal.writes)
    live.end()
    assert len(terminal.writes) == told
    assert terminal.paper.shown == []
