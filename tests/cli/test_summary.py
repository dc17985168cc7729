"""The end of a build's output: the totals, in one line where nothing stands out."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from pallasc.cli.output.build_text import summary
from pallasc.cli.output.outcome import build_run
from pallasc.cli.output.reports import report_json
from pallasc.cli.output.text import Screen


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda p: [], "0 variants in 1.2 s: nothing to do"),
        (lambda p: [p.hit()], "1 variant in 1.2 s: 1 hit (100 %)"),
        (lambda p: [p.compiled()], "1 variant in 1.2 s: 1 compiled"),
        (lambda p: [p.failed()], "1 variant in 1.2 s: 1 failed"),
        (
            lambda p: [p.hit(saved_s=4.5), p.hit(saved_s=9.5), p.hit()],
            "3 variants in 1.2 s: 3 hits (100 %), 14 s saved",
        ),
        (
            lambda p: [p.hit(saved_s=0.2), p.hit(), p.compiled(), p.failed()],
            "4 variants in 1.2 s: 2 hits (50 %), 1 compiled, 1 failed, 0.2 s saved",
        ),
        (
            lambda p: [p.hit(saved_s=3.0)] * 1999 + [p.compiled()],
            "2,000 variants in 1.2 s: 1,999 hits (99 %), 1 compiled, 1 h 39 min saved",
        ),
    ],
)
def test_a_build_in_which_nothing_stands_out_is_one_line(
    make: Callable[[Any], Any], text: str, pretended: Any
) -> None:
    assert summary(pretended.report_of(make(pretended))) == text


def test_a_quiet_summary_is_that_of_failures(pretended: Any) -> None:
    fine = [pretended.hit(), *[pretended.compiled()] * 9]
    assert summary(pretended.report_of(fine), quiet=True) == ""
    many = [*fine, *[pretended.failed()] * 20]
    lines = summary(pretended.report_of(many), quiet=True).splitlines()
    assert lines[:2] == ["failed:", "  add@h100-sxm  it broke."]
    assert lines[-1] == "30 variants in 1.2 s: 1 hit (3 %), 9 compiled, 20 failed"
    assert not any("slowest" in line for line in lines)


def test_what_was_lowered_or_shared_is_no_hit(pretended: Any) -> None:
    lowered, shared = (replace(pretended.hit(), status=word) for word in ("lowered", "shared"))
    report = pretended.report_of([pretended.hit(), lowered, lowered, shared, pretended.compiled()])
    end = "1 hit (20 %), 2 lowered, 1 shared, 1 compiled"
    assert summary(report).splitlines()[-1] == f"5 variants in 1.2 s: {end}"
    data = report_json(build_run(report), report)
    assert data["totals"] == {
        "hit": 1, "lowered": 2, "shared": 1, "compiled": 1, "failed": 0, "missing": 0, "skipped": 0,
    }  # fmt: skip
    assert data["hit_rate"] == 0.2
    assert len(report.hits) == 4


def test_what_was_not_begun_does_not_lower_the_hit_rate(pretended: Any) -> None:
    report = pretended.report_of([pretended.hit(), pretended.skipped()], interrupted=True)
    assert summary(report).splitlines()[-1] == "2 variants in 1.2 s: 1 hit (100 %), 1 skipped"


@pytest.mark.parametrize(
    ("seconds", "took"), [(0.04, "0.0 s"), (119.94, "119.9 s"), (200.4, "3 min 20 s")]
)
def test_a_long_build_took_minutes(seconds: float, took: str, pretended: Any) -> None:
    report = pretended.report_of([pretended.hit()], seconds=seconds)
    assert summary(report) == f"1 variant in {took}: 1 hit (100 %)"


def test_each_count_has_the_colour_of_its_status(pretended: Any) -> None:
    results = [pretended.hit(), pretended.compiled(), pretended.failed(), pretended.failed()]
    assert summary(pretended.report_of(results), Screen(Terminal(), colour=True)) == (
        "4 variants in 1.2 s: \x1b[36m1 hit (25 %)\x1b[0m, \x1b[32m1 compiled\x1b[0m, "
        "\x1b[31m2 failed\x1b[0m"
    )
