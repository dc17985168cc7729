"""The text of a build: lines of results, failures, remarks, the summary at the end."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import click
import pytest
from msgspec.structs import replace

from pallasc.cli.main import failure
from pallasc.cli.output.build_text import (
    counter,
    excerpts,
    failure_lines,
    remarks,
    result_line,
    summary,
    unfinished,
)
from pallasc.cli.output.code_hosts import github_commands
from pallasc.cli.output.junit import junit_xml
from pallasc.cli.output.outcome import build_run, built
from pallasc.cli.output.reports import report_json
from pallasc.cli.output.text import Screen, error_text
from pallasc.compiler.workers.diagnostics import Diagnostic
from pallasc.errors import CompileError, Location, SpecError, ToolError
from pallasc.specs.artifacts.artifact import Artifact

MISS = Diagnostic("lower", "UserWarning", "k.py:4", "cache miss: 100 %", 2)
NOISE = Diagnostic("compile", "stderr", "", "ptxas warning : it\x1b[31m spills\n  here")


def _holding(result: Any, *kernels: tuple[str, str]) -> Any:
    """Return a result whose artifact holds kernels of these names and origins."""
    record = dict(result.artifact.record)
    first = record["kernels"][0]
    record["kernels"] = [{**first, "name": name, "origin": origin} for name, origin in kernels]
    return replace(result, artifact=Artifact(record, lambda key: b""))


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda p: p.hit(p.variant(name="a\nb\x1b[31m")), "hit       a b@h100-sxm"),
        (lambda p: p.skipped(), "skipped   add@h100-sxm"),
        (lambda p: p.missing(), "missing   add@h100-sxm  it is new"),
        (lambda p: replace(p.failed(), diagnostics=(NOISE,)), "failed    add@h100-sxm"),
        (
            lambda p: p.compiled(spill_store_bytes=16, spill_load_bytes=24),
            "compiled  add@h100-sxm  1.24 s, 9,512 bytes, 40 registers, spills 40 bytes",
        ),
        (
            lambda p: replace(p.compiled(spill_store_bytes=None), diagnostics=(MISS,)),
            "compiled  add@h100-sxm  1.24 s, 9,512 bytes, 40 registers, 2 warnings",
        ),
        (lambda p: replace(p.hit(), diagnostics=(NOISE,)), "hit       add@h100-sxm  1 warning"),
        (lambda p: _holding(p.hit(), ("a", "xla")), "hit       add@h100-sxm  no Mosaic kernel"),
    ],
)
def test_a_result_is_one_line(make: Callable[[Any], Any], line: str, pretended: Any) -> None:
    assert result_line(built(make(pretended))) == line


def test_the_counter_is_as_wide_for_every_variant() -> None:
    assert [counter(3, 24), counter(24, 24), counter(0, 9)] == ["[ 3/24]", "[24/24]", "[0/9]"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.py"
    path.write_text("import jax\n\n    x = jax.wrong(y)  # here\n")
    return path


def test_a_compile_error_shows_the_line_of_the_kernel_where_there_is_one(source: Path) -> None:
    def text(line: int, kind: Any = CompileError, file: Path = source, **more: str) -> str:
        return error_text(kind("no rule.", location=Location(str(file), line), **more))

    line = "    3 | x = jax.wrong(y)  # here"
    assert text(3, hint="Change it.") == f"{source}:3: no rule.\n{line}\n  Change it."
    assert text(1) == f"{source}:1: no rule.\n    1 | import jax"
    assert [text(number).count("\n") for number in (0, 2, 99)] == [0, 0, 0]
    assert text(1, SpecError, hint="Mend it.") == f"{source}:1: no rule.\n  Mend it."
    spec = source.with_name("kernels.yaml")
    spec.write_text("schema: 1\n")
    assert text(1, file=spec) == f"{spec}:1: no rule."


def test_a_failure_shows_place_source_hint_and_the_end_of_its_output(
    pretended: Any, source: Path
) -> None:
    place = Location(str(source), 3, 5)
    error = CompileError("there is no such thing.", location=place, hint="Look again.")
    output = "\x1b[31mlost\x1b[0m\r\n" + "\n".join(map(str, range(100)))
    assert failure_lines(built(pretended.failed(error=error, output=output))) == [
        f"    {source}:3:5: there is no such thing.",
        "        3 | x = jax.wrong(y)  # here",
        "      Look again.",
        "    output:",
        *(f"    {number}" for number in range(80, 100)),
    ]
    lines = failure_lines(built(pretended.failed(output="\x1b[31ma\x1b[0m\r\nb\n")))
    assert lines == ["    it broke.", "    output:", "    a", "    b"]
    assert failure_lines(built(pretended.hit())) == []


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ToolError("no ptxas.", hint="Get it."), ("error: no ptxas.\n  Get it.", 4)),
        (click.UsageError("no."), ("error: no.\n  See pallasc --help.", 2)),
        (click.ClickException("no."), ("error: no.", 2)),
        (click.Abort(), ("interrupted", 130)),
    ],
)
def test_what_ends_a_command_gives_text_and_exit_code(
    error: click.ClickException, expected: tuple[str, int]
) -> None:
    assert failure(error) == expected


def test_values_that_differ_are_shown_around_the_difference() -> None:
    stored, now = excerpts("a" * 300 + "x" + "c" * 300, "a" * 300 + "y" + "c" * 300)
    assert stored == f"…{'a' * 33}x{'c' * 66}…"
    assert now == f"…{'a' * 33}y{'c' * 66}…"
    assert excerpts(None, "short") == ("(absent)", "short")


# ---- the end of a build


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda p: [], "0 variants in 1.2 s: nothing to do"),
        (lambda p: [p.compiled()], "1 variant in 1.2 s: 1 compiled"),
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


@pytest.mark.parametrize(("seconds", "took"), [(119.94, "119.9 s"), (200.4, "3 min 20 s")])
def test_a_long_build_took_minutes(seconds: float, took: str, pretended: Any) -> None:
    report = pretended.report_of([pretended.hit()], seconds=seconds)
    assert summary(report) == f"1 variant in {took}: 1 hit (100 %)"


def test_a_quiet_summary_is_that_of_failures(pretended: Any) -> None:
    fine = [pretended.hit(), *[pretended.compiled()] * 9]
    assert summary(pretended.report_of(fine), quiet=True) == ""
    many = [*fine, *[pretended.failed()] * 20]
    lines = summary(pretended.report_of(many), quiet=True).splitlines()
    assert lines[:2] == ["failed:", "  add@h100-sxm  it broke."]
    assert lines[-1] == "30 variants in 1.2 s: 1 hit (3 %), 9 compiled, 20 failed"


def test_what_was_lowered_or_shared_is_no_hit_and_what_was_not_begun_does_not_count(
    pretended: Any,
) -> None:
    lowered, shared = (replace(pretended.hit(), status=word) for word in ("lowered", "shared"))
    report = pretended.report_of([pretended.hit(), lowered, lowered, shared, pretended.compiled()])
    end = "1 hit (20 %), 2 lowered, 1 shared, 1 compiled"
    assert summary(report).splitlines()[-1] == f"5 variants in 1.2 s: {end}"
    data = report_json(build_run(report), report)
    assert data["totals"] == {
        "hit": 1, "lowered": 2, "shared": 1, "compiled": 1, "failed": 0, "missing": 0, "skipped": 0,
    }  # fmt: skip
    assert (data["hit_rate"], len(report.hits)) == (0.2, 4)
    report = pretended.report_of([pretended.hit(), pretended.skipped()], interrupted=True)
    assert summary(report).splitlines()[-1] == "2 variants in 1.2 s: 1 hit (100 %), 1 skipped"


def test_each_count_has_the_colour_of_its_status(pretended: Any) -> None:
    results = [pretended.hit(), pretended.compiled(), pretended.failed(), pretended.failed()]
    assert summary(pretended.report_of(results), Screen(io.StringIO(), colour=True)) == (
        "4 variants in 1.2 s: \x1b[36m1 hit (25 %)\x1b[0m, \x1b[32m1 compiled\x1b[0m, "
        "\x1b[31m2 failed\x1b[0m"
    )


def test_failures_are_named_again_where_there_is_much_else_and_so_is_what_is_left(
    pretended: Any,
) -> None:
    def lines(results: Any, **changes: Any) -> list[str]:
        return list(unfinished(build_run(pretended.report_of(results, **changes))))

    place = Location("/src/kernels.py", 5, 3)
    error = CompileError("ValueError: odd\nand more", location=place, hint="Look.")
    results = [pretended.failed(pretended.variant(m=1), error), pretended.failed()]
    assert lines([pretended.hit()] * 18 + results) == []
    assert lines([pretended.hit()] * 19 + results) == [
        "failed:",
        "  add[m=1]@h100-sxm  /src/kernels.py:5:3: ValueError: odd",
        "  add@h100-sxm  it broke.",
    ]
    left = [pretended.skipped(pretended.variant(m=number)) for number in range(12)]
    for interrupted, why in ((True, "interrupted"), (False, "stopped after a failure")):
        assert lines([pretended.hit(), *left], interrupted=interrupted) == [
            f"{why}: 12 of 13 left; finished variants are kept:",
            *(f"  add[m={number}]@h100-sxm" for number in range(10)),
            "  and 2 more",
        ]


# ---- remarks about a build that succeeded


@pytest.fixture
def report(pretended: Any) -> Any:
    """Return a report of a hit and a compilation with warnings, and of others without."""
    of = {m: pretended.variant(m=m) for m in range(4)}
    return pretended.report_of(
        [
            replace(pretended.hit(of[0]), diagnostics=(MISS,)),
            replace(pretended.compiled(of[1]), diagnostics=(MISS, NOISE)),
            _holding(pretended.hit(of[2]), ("body", "mosaic"), ("copy", "xla"), ("add", "xla")),
            _holding(pretended.compiled(of[3]), ("loop", "xla")),
        ]
    )


def test_the_end_of_a_build_shows_warnings_and_names_what_xla_made(
    report: Any, pretended: Any
) -> None:
    found = remarks(build_run(report).outcomes)
    assert found == [
        "warning: 1 variant holds no Pallas Mosaic GPU kernel, XLA wrote its code: "
        "add[m=3]@h100-sxm",
        "kernels that XLA added to the Pallas kernels:",
        "  add (1 variant): copy, add",
        "warnings:",
        "  k.py:4: UserWarning: cache miss: 100 % (2 times)",
        "    2 variants: add[m=0]@h100-sxm, add[m=1]@h100-sxm",
        "  stderr: ptxas warning : it spills",
        "    here",
        "    1 variant: add[m=1]@h100-sxm",
    ]
    assert remarks(build_run(report).outcomes, added=False) == [found[0], *found[3:]]
    assert summary(report).splitlines()[-10:-1] == found
    hits = replace(report, results=tuple(replace(r, status="hit") for r in report.results))
    assert summary(hits).splitlines()[:-1] == found
    quiet = pretended.report_of([pretended.hit(), pretended.compiled(), pretended.skipped()])
    assert remarks(build_run(quiet).outcomes) == []
    results = [
        _holding(pretended.hit(pretended.variant(f"k{n}")), ("a", "mosaic"), (f"x{n}", "xla"))
        for n in range(14)
    ]
    lines = remarks([built(each) for each in results])
    assert (len(lines), lines[-2:]) == (12, ["  k9 (1 variant): x9", "  and 4 more"])


def test_json_junit_and_annotations_have_the_remarks_too(
    report: Any, pretended: Any, tmp_path: Path
) -> None:
    data = report_json(build_run(report), report)
    assert data["warnings"] == 5
    assert [item["warnings"] for item in data["variants"]] == [
        [MISS.to_json()], [MISS.to_json(), NOISE.to_json()], [], [],
    ]  # fmt: skip
    kernels = [(item["pallas_kernels"], item["xla_kernels"]) for item in data["variants"]]
    assert kernels == [(1, []), (1, []), (1, ["copy", "add"]), (0, ["loop"])]
    cases = list(ElementTree.fromstring(junit_xml(build_run(report), Path("/"))).iter("testcase"))
    named = [{each.get("name"): each.get("value") for each in c.iter("property")} for c in cases]
    assert [properties.get("warnings") for properties in named] == ["2", "3", None, None]
    assert [properties["pallas_kernels"] for properties in named] == ["1", "1", "1", "0"]
    assert named[2]["xla_kernels"] == "copy, add"
    assert cases[0].findtext("system-err") == "k.py:4: UserWarning: cache miss: 100 % (2 times)"
    assert cases[2].find("system-err") is None
    (tmp_path / "k.py").write_text("import this\n" * 4)
    results = [
        replace(result, variant=replace(result.variant, base_dir=str(tmp_path)))
        for result in report.results
    ]
    assert github_commands(build_run(pretended.report_of(results)), tmp_path) == [
        "::warning title=add holds no Pallas Mosaic GPU kernel::XLA wrote the code of: "
        "add[m=3]@h100-sxm",
        "::warning file=k.py,line=4,title=add%3A UserWarning::cache miss: 100 %25%0A"
        "Variants: add[m=0]@h100-sxm, add[m=1]@h100-sxm",
        "::warning title=add%3A stderr::ptxas warning : it spills%0A  here%0A"
        "Variants: add[m=1]@h100-sxm",
    ]
