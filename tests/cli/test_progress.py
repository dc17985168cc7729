"""Progress without a terminal: a line each, hits many at a time, a heartbeat that backs off."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

import pytest

from pallasc.cli.output.progress import Progress, heartbeat, stderr_progress
from pallasc.cli.output.text import Screen
from pallasc.compiler.builds.report import Event, Tick


class Writes(io.StringIO):
    """A stream that keeps every write apart."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, text: str) -> int:
        self.writes.append(text)
        return super().write(text)


@pytest.fixture
def stream() -> Writes:
    return Writes()


@pytest.mark.parametrize(
    ("make", "lines"),
    [
        (lambda p: p.hit(), "[ 3/24] hit       add@h100-sxm\n"),
        (
            lambda p: p.compiled(),
            "[ 3/24] compiled  add@h100-sxm  1.24 s, 9,512 bytes, 40 registers\n",
        ),
        (
            lambda p: p.failed(output="a\nb\n"),
            "[ 3/24] failed    add@h100-sxm\n    it broke.\n    output:\n    a\n    b\n",
        ),
    ],
)
def test_each_result_is_one_line_and_a_failure_says_why(
    make: Callable[[Any], Any], lines: str, stream: Writes, pretended: Any
) -> None:
    with Progress(Screen(stream)) as progress:
        progress(pretended.started())
        progress(pretended.finished(make(pretended)))
    assert stream.getvalue() == lines


def test_a_line_keeps_its_whole_length(stream: Writes, pretended: Any) -> None:
    of = pretended.variant(name="n" * 300)
    with Progress(Screen(stream)) as progress:
        progress(pretended.finished(pretended.compiled(of)))
    (line,) = stream.getvalue().splitlines()
    assert "n" * 300 + "@h100-sxm  1.24 s" in line


def test_a_log_in_colour_colours_the_status(stream: Writes, pretended: Any) -> None:
    with Progress(Screen(stream, colour=True)) as progress:
        progress(pretended.finished(pretended.hit()))
        progress(pretended.finished(pretended.compiled()))
    assert stream.getvalue() == (
        "[ 3/24] \x1b[36mhit\x1b[0m       add@h100-sxm\n"
        "[ 3/24] \x1b[32mcompiled\x1b[0m  add@h100-sxm  1.24 s, 9,512 bytes, 40 registers\n"
    )


def test_an_id_cannot_leave_its_line(stream: Writes, pretended: Any) -> None:
    with Progress(Screen(stream)) as progress:
        progress(pretended.finished(pretended.hit(pretended.variant(name="a\n::b\x1b[2K"))))
    assert stream.getvalue() == "[ 3/24] hit       a : :b@h100-sxm\n"


def test_hits_can_be_left_out(stream: Writes, pretended: Any) -> None:
    with Progress(Screen(stream), hits=False) as progress:
        progress(pretended.finished(pretended.hit()))
        progress(pretended.finished(pretended.compiled()))
    assert [line.split()[2] for line in stream.getvalue().splitlines()] == ["compiled"]


def test_thousands_of_hits_are_a_few_writes_in_order(stream: Writes, pretended: Any) -> None:
    with Progress(Screen(stream), clock=pretended.Clock()) as progress:
        for number in range(2000):
            progress(pretended.finished(pretended.hit(), number + 1, 2000))
    assert [text.count("\n") for text in stream.writes] == [512, 512, 512, 464]
    lines = stream.getvalue().splitlines()
    assert lines == [f"[{n:>4}/2000] hit       add@h100-sxm" for n in range(1, 2001)]


def test_hits_do_not_wait_for_more_than_a_second(stream: Writes, pretended: Any) -> None:
    clock = pretended.Clock()
    progress = Progress(Screen(stream), clock=clock)
    progress(pretended.finished(pretended.hit()))
    assert stream.writes == []
    clock.now_s += 1.5
    progress(pretended.finished(pretended.hit()))
    assert [text.count("\n") for text in stream.writes] == [2]


@pytest.mark.parametrize(
    "then",
    [
        lambda p: p.started(),
        lambda p: p.finished(p.compiled()),
        lambda p: Tick(((p.variant(), 1.0),), 3, 24),
    ],
)
def test_hits_come_before_whatever_happens_next(
    then: Callable[[Any], Event | Tick], stream: Writes, pretended: Any
) -> None:
    progress = Progress(Screen(stream))
    progress(pretended.finished(pretended.hit()))
    progress(then(pretended))
    assert stream.getvalue().startswith("[ 3/24] hit       add@h100-sxm\n")


def test_a_text_said_meanwhile_comes_after_the_hits_before_it(
    stream: Writes, pretended: Any
) -> None:
    progress = Progress(Screen(stream))
    progress(pretended.finished(pretended.hit()))
    progress.say("warning: the store\nis odd")
    assert stream.getvalue() == "[ 3/24] hit       add@h100-sxm\nwarning: the store\nis odd\n"


def test_an_exception_leaves_no_hit_untold(stream: Writes, pretended: Any) -> None:
    def build() -> None:
        with Progress(Screen(stream)) as progress:
            progress(pretended.finished(pretended.hit()))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build()
    assert stream.getvalue() == "[ 3/24] hit       add@h100-sxm\n"


def _told_at(step_s: float, pretended: Any, stream: Writes, *, until_s: float) -> list[float]:
    """Return when something was said while one variant compiles, with a tick every `step_s`."""
    clock = pretended.Clock()
    progress = Progress(Screen(stream), clock=clock)
    progress(pretended.started())
    began_s, told = clock.now_s, []
    while clock.now_s < began_s + until_s:
        clock.now_s += step_s
        before = len(stream.writes)
        progress(Tick(((pretended.variant(), clock.now_s - began_s),), 2, 24, (), 2))
        if len(stream.writes) > before:
            told.append(clock.now_s - began_s)
    return told


@pytest.mark.parametrize("step_s", [0.1, 0.25, 0.5, 0.7, 1.0])
def test_a_variant_that_takes_long_is_named_less_and_less_often(
    step_s: float, stream: Writes, pretended: Any
) -> None:
    told = _told_at(step_s, pretended, stream, until_s=400)
    wanted = [10, 30, 70, 130, 190, 250, 310, 370]
    assert len(told) == len(wanted)
    assert all(0 <= at - due < 10 * step_s for at, due in zip(told, wanted, strict=True))
    assert "compiling 1: add@h100-sxm 10 s" in stream.getvalue()


def test_a_build_of_short_variants_is_one_line_a_variant(stream: Writes, pretended: Any) -> None:
    clock = pretended.Clock()
    progress = Progress(Screen(stream), clock=clock)
    for number in range(20):
        progress(pretended.started())
        for quarter in range(36):
            clock.now_s += 0.25
            progress(Tick(((pretended.variant(m=number), quarter / 4),), number, 20, (), 1))
        progress(pretended.finished(pretended.compiled(), number + 1, 20))
    lines = stream.getvalue().splitlines()
    assert [line.split("] ")[1].split()[0] for line in lines] == ["compiled"] * 20


def test_what_was_finished_puts_the_heartbeat_off_which_stays_slow(
    stream: Writes, pretended: Any
) -> None:
    clock = pretended.Clock()
    progress = Progress(Screen(stream), clock=clock)
    tick = Tick(((pretended.variant(), 1.0),), 3, 24)
    for step_s in (10, 20, 39):
        clock.now_s += step_s
        progress(tick)
    progress(pretended.finished(pretended.compiled()))
    for step_s in (39, 2):
        clock.now_s += step_s
        progress(tick)
    words = [line.split()[2] for line in stream.getvalue().splitlines()]
    assert words == ["compiling", "compiling", "compiled", "compiling"]


def test_getting_ready_is_said_less_and_less_often(stream: Writes, pretended: Any) -> None:
    clock = pretended.Clock()
    progress = Progress(Screen(stream), clock=clock)
    for _ in range(60):
        clock.now_s += 1
        progress(Tick((), 0, 4))
    assert stream.getvalue() == "[0/4] getting ready\n" * 2


def test_a_quiet_build_prints_only_what_went_wrong(stream: Writes, pretended: Any) -> None:
    clock = pretended.Clock()
    progress = Progress(Screen(stream), quiet=True, clock=clock)
    for result in (pretended.hit(), pretended.compiled(), pretended.skipped(), pretended.failed()):
        progress(pretended.finished(result))
        for _ in range(20):
            clock.now_s += 5
            progress(Tick(((pretended.variant(), 1.0),), 3, 24))
    progress.mention("reading a.py 2 s")
    progress.say("warning: the store is odd")
    progress.end()
    assert stream.getvalue().splitlines() == [
        "[ 3/24] failed    add@h100-sxm",
        "    it broke.",
        "warning: the store is odd",
    ]


@pytest.mark.parametrize(
    ("running_s", "compiled_s", "line"),
    [
        ([], [], "[ 12/200] waiting"),
        ([14.2], [], "[ 12/200] compiling 1: add[m=0]@h100-sxm 14 s"),
        (
            [3.0, 140.0],
            [],
            "[ 12/200] compiling 2: add[m=1]@h100-sxm 2 min 20 s, add[m=0]@h100-sxm 3 s",
        ),
        (
            [9.0, 1.0, 7.0, 8.0, 2.0],
            [],
            "[ 12/200] compiling 5: add[m=0]@h100-sxm 9 s, add[m=3]@h100-sxm 8 s, "
            "add[m=2]@h100-sxm 7 s, 2 more",
        ),
        (
            [14.2, 3.0],
            [2.0, 2.2],
            "[ 12/200] compiling 2: add[m=0]@h100-sxm 14 s, add[m=1]@h100-sxm 3 s; "
            "about 3 min left",
        ),
    ],
)
def test_the_heartbeat_names_the_slowest_and_what_is_left(
    running_s: list[float], compiled_s: list[float], line: str, pretended: Any
) -> None:
    running = tuple((pretended.variant(m=m), s) for m, s in enumerate(running_s))
    assert heartbeat(Tick(running, 12, 200, tuple(compiled_s), 2)) == line


def test_without_a_terminal_rich_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch, pretended: Any
) -> None:
    loaded = [name for name in sys.modules if name.partition(".")[0] == "rich"]
    for name in loaded:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with stderr_progress() as progress:
        assert type(progress) is Progress
        progress(pretended.started())
        progress(pretended.finished(pretended.compiled()))
    assert "rich" not in sys.modules
