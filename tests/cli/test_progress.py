"""Progress: lines and a heartbeat without a terminal, a live display on one, at chosen times."""

import io
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from pallasc.cache.manifests import Diagnostic
from pallasc.cli.output.progress import Live, Progress, heartbeat, status_lines, stderr_progress
from pallasc.cli.output.text import Screen
from pallasc.compiler.builds.report import Tick

COMPILED = "compiled  add@h100-sxm  1.24 s, 9,512 bytes, 40 registers"


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


@pytest.fixture
def clock(pretended: Any) -> Any:
    return pretended.Clock()


def test_each_result_is_one_line_and_a_failure_says_why(stream: Writes, pretended: Any) -> None:
    miss = Diagnostic("lower", "UserWarning", "k.py:4", "cache miss", 2)
    long = pretended.variant(name="n" * 300)
    with Progress(Screen(stream)) as progress:
        progress(pretended.started())
        progress(pretended.finished(pretended.hit(pretended.variant(name="a\n::b\x1b[2K"))))
        progress(pretended.finished(replace(pretended.hit(), diagnostics=(miss,))))
        progress(pretended.finished(pretended.compiled(long), done=24))
        progress(pretended.finished(pretended.failed(output="a\nb\n")))
    assert stream.getvalue().splitlines() == [
        "[ 3/24] hit       a : :b@h100-sxm",
        "[ 3/24] hit       add@h100-sxm  2 warnings",
        f"[24/24] compiled  {'n' * 300}@h100-sxm  1.24 s, 9,512 bytes, 40 registers",
        "[ 3/24] failed    add@h100-sxm",
        "    it broke.",
        "    output:",
        "    a",
        "    b",
    ]


def test_hits_can_be_left_out(stream: Writes, pretended: Any) -> None:
    with Progress(Screen(stream), hits=False) as progress:
        progress(pretended.finished(pretended.hit()))
        progress(pretended.finished(pretended.compiled()))
    assert stream.getvalue() == f"[ 3/24] {COMPILED}\n"


def test_thousands_of_hits_are_a_few_writes_in_order(
    stream: Writes, pretended: Any, clock: Any
) -> None:
    with Progress(Screen(stream), clock=clock) as progress:
        for number in range(2000):
            progress(pretended.finished(pretended.hit(), number + 1, 2000))
    assert [text.count("\n") for text in stream.writes] == [512, 512, 512, 464]
    lines = stream.getvalue().splitlines()
    assert lines == [f"[{n:>4}/2000] hit       add@h100-sxm" for n in range(1, 2001)]


@pytest.mark.parametrize("step_s", [0.1, 0.7, 1.0])
def test_a_variant_that_takes_long_is_named_less_and_less_often(
    step_s: float, stream: Writes, pretended: Any, clock: Any
) -> None:
    progress = Progress(Screen(stream), clock=clock)
    progress(pretended.started())
    began_s, told = clock.now_s, []
    while clock.now_s < began_s + 400:
        clock.now_s += step_s
        before = len(stream.writes)
        progress(Tick(((pretended.variant(), clock.now_s - began_s),), 2, 24, (), 2))
        if len(stream.writes) > before:
            told.append(clock.now_s - began_s)
    wanted = [10, 30, 70, 130, 190, 250, 310, 370]
    assert len(told) == len(wanted)
    assert all(0 <= at - due < 10 * step_s for at, due in zip(told, wanted, strict=True))
    assert "compiling 1: add@h100-sxm 10 s" in stream.getvalue()


def test_a_quiet_build_prints_only_what_went_wrong(
    stream: Writes, pretended: Any, clock: Any
) -> None:
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
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with stderr_progress() as progress:
        assert type(progress) is Progress
        progress(pretended.started())
        progress(pretended.finished(pretended.compiled()))
    assert "rich" not in sys.modules


# ---- the live display, drawn by a model of a terminal


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


@pytest.fixture
def live(terminal: Terminal, clock: Any) -> Live:
    return Live(Screen(terminal, live=True), clock=clock)


def test_hits_of_a_small_build_are_lines_unless_nobody_asked_for_them(
    terminal: Terminal, live: Live, pretended: Any, clock: Any
) -> None:
    with Live(Screen(terminal, live=True), hits=False, clock=clock) as quiet:
        quiet(pretended.finished(pretended.hit(), 1, 2))
    assert terminal.writes == []
    with live:
        for number in range(3):
            live(pretended.finished(pretended.hit(), number + 1, 3))
    assert terminal.paper.shown == ["hit       add@h100-sxm"] * 3


def test_results_and_texts_scroll_by_above_the_status_which_ends_once(
    terminal: Terminal, live: Live, pretended: Any, clock: Any
) -> None:
    live(pretended.started(done=0, total=2))
    live.say("warning: the store\nis odd")
    assert terminal.paper.shown[:3] == ["warning: the store", "is odd", f"{'─' * 40}  0/2  0 %"]
    clock.now_s += 1
    live(pretended.finished(pretended.failed(output="last\nwords"), 1, 2))
    assert terminal.paper.shown[2:] == [
        "failed    add@h100-sxm",
        "    it broke.",
        "    output:",
        "    last",
        "    words",
        f"{'━' * 20}{'─' * 20}  1/2  50 %",
        "1 failed, 1 running",
        "  1 s  add@h100-sxm",
    ]
    live.end()
    assert terminal.paper.shown[-1] == "    words"
    assert (terminal.paper.row, terminal.paper.column) == (7, 0)
    told = len(terminal.writes)
    live.end()
    assert len(terminal.writes) == told


def test_it_is_drawn_at_most_ten_times_a_second_and_only_where_something_changed(
    terminal: Terminal, live: Live, pretended: Any, clock: Any
) -> None:
    with live:
        for _ in range(10):
            clock.now_s += 0.15
            live(Tick((), 1, 2))
        assert len(terminal.writes) == 1
        live(pretended.started(done=0, total=1000))
        for number in range(1000):
            clock.now_s += 0.002
            live(pretended.finished(pretended.compiled(), number + 1, 1000))
        assert 19 <= len(terminal.writes) <= 22
    assert terminal.paper.shown == [COMPILED] * 1000


# ---- its lines


COUNTS = {"hit": 88, "compiled": 23, "failed": 1, "missing": 0, "skipped": 0}


def _texts(
    columns: int, rows: int = 24, running_s: Sequence[float] = (3.2, 14.9), **changes: Any
) -> list[str]:
    name = "matmul[m={},n=4096,k=4096,dtype=bf16,activation=silu]@h100-sxm"
    running = [(name.format(m), s) for m, s in enumerate(running_s)]
    status = {"done": 112, "total": 200, "counts": COUNTS, "running": running}
    status = {**status, "time_left": "about 3 min left", **changes}
    return [line.plain for line in status_lines(**status, columns=columns, rows=rows)]  # type: ignore[arg-type]


def test_the_status_is_a_bar_the_counts_and_the_slowest() -> None:
    assert _texts(200) == [
        "━━━━━━━━━━━━━━━━━━━━━━──────────────────  112/200  56 %  about 3 min left",
        "88 hits, 23 compiled, 1 failed, 2 running",
        "  14 s  matmul[m=1,n=4096,k=4096,dtype=bf16,activation=silu]@h100-sxm",
        "   3 s  matmul[m=0,n=4096,k=4096,dtype=bf16,activation=silu]@h100-sxm",
    ]
    assert _texts(60)[0] == "━━━━━━━━━━━━━───────────  112/200  56 %  about 3 min left"
    assert _texts(30) == [
        "112/200  56 %  about 3 min…",
        "88 hits, 23 compiled, 1 fa…",
        "  14 s  matmul[m=1,n=4096,…",
        "   3 s  matmul[m=0,n=4096,…",
    ]
    counts = {**COUNTS, "hit": 1, "failed": 0}
    assert _texts(80, counts=counts)[1] == "1 hit, 23 compiled, 2 running"


def test_the_status_never_fills_the_screen_and_no_line_comes_near_its_edge() -> None:
    rows = (24, 7, 6, 4, 3, 2, 1)
    assert [len(_texts(80, n, [1.0] * 9)) for n in rows] == [6, 6, 5, 3, 2, 1, 1]
    assert _texts(80, running_s=[1.0] * 9)[1].endswith("9 running")
    running = [(f"行列の積[m={'漢字' * 30}]@h100-sxm", 7200.0), ("add@h100-sxm", 1.0)]
    for columns in [*range(1, 100), 200]:
        lines = _texts(columns, running=running)
        assert max(map(cell_len, lines)) <= max(1, columns - 3)
