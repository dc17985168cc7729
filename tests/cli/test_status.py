"""The lines of the live display: what they say, and that they fit on every screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pallasc.cli.terminal.screen import Status, status_lines, width

COUNTS = {"hit": 88, "compiled": 23, "failed": 1, "missing": 0, "skipped": 0}


def _status(pretended: Any, running_s: Sequence[float] = (3.2, 14.9), **changes: Any) -> Status:
    running = [
        (pretended.variant("matmul", m=m, n=4096, k=4096, dtype="bf16", activation="silu"), s)
        for m, s in enumerate(running_s)
    ]
    fields = {"done": 112, "total": 200, "counts": COUNTS, "running": running, "jobs": 2}
    return Status(**{**fields, "compiled_s": [4.0, 4.4], **changes})


def _texts(status: Status, columns: int, rows: int = 24) -> list[str]:
    return ["".join(text for text, _ in line) for line in status_lines(status, columns, rows)]


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
                "  14 s  matmul[m=1,n=4096,k=4096…ctivation=silu]@h100-sxm",
                "   3 s  matmul[m=0,n=4096,k=4096…ctivation=silu]@h100-sxm",
            ],
        ),
        (
            30,
            [
                "112/200  56 %  about 3 min ",
                "88 hits, 23 compiled, 1 fai",
                "  14 s  matmul[m=…@h100-sxm",
                "   3 s  matmul[m=…@h100-sxm",
            ],
        ),
    ],
)
def test_the_status_is_a_bar_the_counts_and_the_slowest(
    columns: int, lines: list[str], pretended: Any
) -> None:
    assert _texts(_status(pretended), columns) == lines


def test_before_anything_runs_one_line_says_so(pretended: Any) -> None:
    counts = dict.fromkeys(COUNTS, 0)
    before = _status(pretended, (), done=0, total=4, counts=counts, compiled_s=[])
    assert _texts(before, 80) == ["[0/4] getting ready"]
    assert _texts(before._replace(total=0), 80) == ["getting ready"]
    assert len(_texts(_status(pretended, done=0, total=4, counts=counts), 80)) == 4


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"compiled_s": []}, "━━━━━━━━━━━━━━━━━━━━━━──────────────────  112/200  56 %"),
        ({"done": 0}, "────────────────────────────────────────  0/200  0 %  about 7 min left"),
        ({"done": 199, "running": []}, f"{'━' * 39}─  199/200  99 %  a few seconds left"),
        ({"done": 200}, f"{'━' * 40}  200/200  100 %"),
        ({"done": 0, "total": 0}, f"{'─' * 40}  0/0  0 %"),
        ({"total": 11200, "compiled_s": []}, f"{'─' * 40}  112/11,200  1 %"),
    ],
)
def test_the_bar_is_full_only_at_the_end(
    changes: dict[str, Any], line: str, pretended: Any
) -> None:
    assert _texts(_status(pretended, **changes), 200)[0] == line


def test_failures_are_counted_from_the_first_one_on(pretended: Any) -> None:
    counts = {**COUNTS, "hit": 1, "failed": 0}
    assert _texts(_status(pretended, counts=counts), 80)[1] == "1 hit, 23 compiled, 2 running"


@pytest.mark.parametrize(
    ("rows", "lines"), [(24, 6), (7, 6), (6, 5), (4, 3), (3, 2), (2, 1), (1, 1)]
)
def test_the_status_never_fills_the_screen(rows: int, lines: int, pretended: Any) -> None:
    status = _status(pretended, running_s=[1.0] * 9)
    assert len(_texts(status, 80, rows)) == lines
    assert _texts(status, 80)[1].endswith("9 running")


@pytest.mark.parametrize("columns", [*range(1, 100), 200])
def test_no_line_comes_near_the_edge(columns: int, pretended: Any) -> None:
    running = [(pretended.variant("行列の積", m="漢字" * 30), 7200.0), (pretended.variant(), 1.0)]
    lines = _texts(_status(pretended, running=running), columns)
    assert max(map(width, lines)) <= max(1, columns - 3)
