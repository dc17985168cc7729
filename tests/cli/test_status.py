"""The lines of the live display: what they say, and that they fit on every screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from rich.cells import cell_len

from pallasc.cli.output.progress import status_lines

COUNTS = {"hit": 88, "compiled": 23, "failed": 1, "missing": 0, "skipped": 0}


def _status(running_s: Sequence[float] = (3.2, 14.9), **changes: Any) -> dict[str, Any]:
    running = [
        (f"matmul[m={m},n=4096,k=4096,dtype=bf16,activation=silu]@h100-sxm", s)
        for m, s in enumerate(running_s)
    ]
    fields = {"done": 112, "total": 200, "counts": COUNTS, "running": running}
    return {**fields, "time_left": "about 3 min left", **changes}


def _texts(status: dict[str, Any], columns: int, rows: int = 24) -> list[str]:
    return [line.plain for line in status_lines(**status, columns=columns, rows=rows)]


@pytest.mark.parametrize(
    ("columns", "lines"),
    [
        (
            200,
            [
                "━━━━━━━━━━━━━━━━━━━━━━──────────────────  112/200  56 %  about 3 min left",
                "88 hits, 23 compiled, 1 failed, 2 running",
                "  14 s  matmul[m=1,n=4096,k=4096,dtype=bf16,activation=silu]@h100-sxm",
                "   3 s  matmul[m=0,n=4096,k=4096,dtype=bf16,activation=silu]@h100-sxm",
            ],
        ),
        (
            60,
            [
                "━━━━━━━━━━━━━───────────  112/200  56 %  about 3 min left",
                "88 hits, 23 compiled, 1 failed, 2 running",
                "  14 s  matmul[m=1,n=4096,k=4096,dtype=bf16,activation=s…",
                "   3 s  matmul[m=0,n=4096,k=4096,dtype=bf16,activation=s…",
            ],
        ),
        (
            30,
            [
                "112/200  56 %  about 3 min…",
                "88 hits, 23 compiled, 1 fa…",
                "  14 s  matmul[m=1,n=4096,…",
                "   3 s  matmul[m=0,n=4096,…",
            ],
        ),
    ],
)
def test_the_status_is_a_bar_the_counts_and_the_slowest(columns: int, lines: list[str]) -> None:
    assert _texts(_status(), columns) == lines


def test_before_anything_runs_one_line_says_so() -> None:
    counts = dict.fromkeys(COUNTS, 0)
    before = _status((), done=0, total=4, counts=counts, time_left="")
    assert _texts(before, 80) == ["[0/4] getting ready"]
    assert _texts({**before, "total": 0}, 80) == ["getting ready"]
    assert len(_texts(_status(done=0, total=4, counts=counts), 80)) == 4


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"time_left": ""}, "━━━━━━━━━━━━━━━━━━━━━━──────────────────  112/200  56 %"),
        ({"done": 0}, "────────────────────────────────────────  0/200  0 %  about 3 min left"),
        ({"done": 199, "running": []}, f"{'━' * 39}─  199/200  99 %  about 3 min left"),
        ({"done": 200, "time_left": ""}, f"{'━' * 40}  200/200  100 %"),
        ({"done": 0, "total": 0, "time_left": ""}, f"{'─' * 40}  0/0  0 %"),
        ({"total": 11200, "time_left": ""}, f"{'─' * 40}  112/11,200  1 %"),
    ],
)
def test_the_bar_is_full_only_at_the_end(changes: dict[str, Any], line: str) -> None:
    assert _texts(_status(**changes), 200)[0] == line


def test_failures_are_counted_from_the_first_one_on() -> None:
    counts = {**COUNTS, "hit": 1, "failed": 0}
    assert _texts(_status(counts=counts), 80)[1] == "1 hit, 23 compiled, 2 running"


@pytest.mark.parametrize(
    ("rows", "lines"), [(24, 6), (7, 6), (6, 5), (4, 3), (3, 2), (2, 1), (1, 1)]
)
def test_the_status_never_fills_the_screen(rows: int, lines: int) -> None:
    status = _status(running_s=[1.0] * 9)
    assert len(_texts(status, 80, rows)) == lines
    assert _texts(status, 80)[1].endswith("9 running")


@pytest.mark.parametrize("columns", [*range(1, 100), 200])
def test_no_line_comes_near_the_edge(columns: int) -> None:
    running = [(f"行列の積[m={'漢字' * 30}]@h100-sxm", 7200.0), ("add@h100-sxm", 1.0)]
    lines = _texts(_status(running=running), columns)
    assert max(map(cell_len, lines)) <= max(1, columns - 3)
