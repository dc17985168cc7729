"""The end of a build: failures are named again, and so is what is left."""

from __future__ import annotations

from typing import Any

import pytest

from pallasc.cli.output.build_text import unfinished
from pallasc.cli.output.outcome import build_run
from pallasc.errors import CompileError, Location


def _lines(pretended: Any, results: Any, **changes: Any) -> list[str]:
    return list(unfinished(build_run(pretended.report_of(results, **changes))))


def test_failures_are_named_again_where_there_is_much_else(pretended: Any) -> None:
    error = CompileError(
        "ValueError: odd\nand more", location=Location("/src/kernels.py", 5, 3), hint="Look."
    )
    results = [pretended.failed(pretended.variant(m=1), error), pretended.failed()]
    assert _lines(pretended, [pretended.hit()] * 18 + results) == []
    assert _lines(pretended, [pretended.hit()] * 19 + results) == [
        "failed:",
        "  add[m=1]@h100-sxm  /src/kernels.py:5:3: ValueError: odd",
        "  add@h100-sxm  it broke.",
    ]


@pytest.mark.parametrize(
    ("interrupted", "why"), [(True, "interrupted"), (False, "stopped after a failure")]
)
def test_what_is_left_is_named(interrupted: bool, why: str, pretended: Any) -> None:
    left = [pretended.skipped(pretended.variant(m=number)) for number in range(12)]
    lines = _lines(pretended, [pretended.hit(), *left], interrupted=interrupted)
    assert lines == [
        f"{why}: 12 of 13 left; finished variants are kept:",
        *(f"  add[m={number}]@h100-sxm" for number in range(10)),
        "  and 2 more",
    ]
