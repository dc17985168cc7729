"""What stands out of a build: sections that are there only where they say something."""

from __future__ import annotations

from typing import Any

import pytest

from pallasc.cli.output.highlights import highlights
from pallasc.cli.output.outcome import build_run
from pallasc.errors import CompileError, Location


def _lines(pretended: Any, results: Any, **changes: Any) -> list[str]:
    return list(highlights(build_run(pretended.report_of(results, **changes))))


def _compiled(pretended: Any, number: int, **changes: int) -> Any:
    of = pretended.variant(m=number)
    return pretended.compiled(of, 1.0 + number, cubin_bytes=9000 - 7 * number, **changes)


def test_a_few_compilations_are_not_repeated(pretended: Any) -> None:
    results = [_compiled(pretended, number, spill_store_bytes=8) for number in range(5)]
    assert _lines(pretended, results) == []


def test_the_slowest_and_the_largest_of_many_come_first(pretended: Any) -> None:
    results = [_compiled(pretended, number) for number in (3, 9, 1, 12, 5, 2)]
    assert _lines(pretended, [pretended.hit()] * 30 + results) == [
        "slowest:",
        "   13 s  add[m=12]@h100-sxm",
        "   10 s  add[m=9]@h100-sxm",
        "  6.0 s  add[m=5]@h100-sxm",
        "largest cubins:",
        "  8,993 bytes  add[m=1]@h100-sxm",
        "  8,986 bytes  add[m=2]@h100-sxm",
        "  8,979 bytes  add[m=3]@h100-sxm",
    ]


def test_whatever_spills_is_listed_the_worst_first(pretended: Any) -> None:
    quiet = [_compiled(pretended, number) for number in range(6)]
    spilling = [_compiled(pretended, 10 + n, spill_store_bytes=8 * n) for n in range(1, 14)]
    lines = _lines(pretended, quiet + spilling)
    start = lines.index("13 variants with spills:")
    assert lines[start + 1] == "  104 bytes  add[m=23]@h100-sxm"
    assert lines[start + 10 :] == ["   32 bytes  add[m=14]@h100-sxm", "  and 3 more"]


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
