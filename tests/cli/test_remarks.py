"""What is worth a word of a build that succeeded: in text, JSON, JUnit and annotations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from pallasc.cli.output.build_text import remarks, result_line, summary
from pallasc.cli.output.code_hosts import github_commands
from pallasc.cli.output.junit import junit_xml
from pallasc.cli.output.outcome import build_run, built
from pallasc.cli.output.progress import Progress
from pallasc.cli.output.reports import report_json
from pallasc.cli.output.text import Screen
from pallasc.compiler.workers.diagnostics import Diagnostic
from pallasc.specs.artifacts.artifact import Artifact

MISS = Diagnostic("lower", "UserWarning", "k.py:4", "cache miss: 100 %", 2)
NOISE = Diagnostic("compile", "stderr", "", "ptxas warning : it\x1b[31m spills\n  here")


def _holding(result: Any, *kernels: tuple[str, str]) -> Any:
    """Return a result whose artifact holds kernels of these names and origins."""
    record = dict(result.artifact.record)
    first = record["kernels"][0]
    record["kernels"] = [{**first, "name": name, "origin": origin} for name, origin in kernels]
    return replace(result, artifact=Artifact(record, lambda key: b""))


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


WARNINGS = [
    "warnings:",
    "  k.py:4: UserWarning: cache miss: 100 % (2 times)",
    "    2 variants: add[m=0]@h100-sxm, add[m=1]@h100-sxm",
    "  stderr: ptxas warning : it spills",
    "    here",
    "    1 variant: add[m=1]@h100-sxm",
]


def test_the_end_of_a_build_shows_warnings_and_names_what_xla_made(report: Any) -> None:
    assert remarks(build_run(report).outcomes) == [
        "warning: 1 variant holds no Pallas Mosaic GPU kernel, XLA wrote its code: "
        "add[m=3]@h100-sxm",
        "kernels that XLA added to the Pallas kernels:",
        "  add (1 variant): copy, add",
        *WARNINGS,
    ]
    assert remarks(build_run(report).outcomes, added=False) == [
        remarks(build_run(report).outcomes)[0],
        *WARNINGS,
    ]
    assert summary(report).splitlines()[:-1][
        -len(remarks(build_run(report).outcomes)) :
    ] == remarks(build_run(report).outcomes)


def test_a_build_of_hits_says_the_same(report: Any) -> None:
    hits = replace(report, results=tuple(replace(r, status="hit") for r in report.results))
    assert remarks(build_run(hits).outcomes) == remarks(build_run(report).outcomes)
    assert summary(hits).splitlines()[:-1] == remarks(build_run(hits).outcomes)


def test_a_build_without_any_says_nothing(pretended: Any) -> None:
    quiet = pretended.report_of([pretended.hit(), pretended.compiled(), pretended.skipped()])
    assert remarks(build_run(quiet).outcomes) == []


def test_more_additions_than_fit_are_counted(pretended: Any) -> None:
    results = [
        _holding(pretended.hit(pretended.variant(f"k{n}")), ("a", "mosaic"), (f"x{n}", "xla"))
        for n in range(14)
    ]
    lines = remarks([built(each) for each in results])
    assert (len(lines), lines[-2:]) == (12, ["  k9 (1 variant): x9", "  and 4 more"])


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (
            lambda p: replace(p.compiled(), diagnostics=(MISS,)),
            "compiled  add@h100-sxm  1.24 s, 9,512 bytes, 40 registers, 2 warnings",
        ),
        (lambda p: replace(p.hit(), diagnostics=(NOISE,)), "hit       add@h100-sxm  1 warning"),
        (lambda p: _holding(p.hit(), ("a", "xla")), "hit       add@h100-sxm  no Mosaic kernel"),
        (lambda p: replace(p.failed(), diagnostics=(NOISE,)), "failed    add@h100-sxm"),
    ],
)
def test_the_line_of_a_variant_says_it_shortly(
    make: Callable[[Any], Any], line: str, pretended: Any
) -> None:
    assert result_line(built(make(pretended))) == line


def test_the_lines_of_hits_say_it_too(pretended: Any, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+") as stream:
        with Progress(Screen(stream)) as progress:
            progress(pretended.finished(replace(pretended.hit(), diagnostics=(MISS,))))
            progress(pretended.finished(pretended.hit()))
        stream.seek(0)
        assert stream.read().splitlines() == [
            "[ 3/24] hit       add@h100-sxm  2 warnings",
            "[ 3/24] hit       add@h100-sxm",
        ]


def test_json_has_every_warning_and_every_kernel_of_xla(report: Any) -> None:
    data = report_json(build_run(report), report)
    assert data["warnings"] == 5
    assert [item["warnings"] for item in data["variants"]] == [
        [MISS.to_json()], [MISS.to_json(), NOISE.to_json()], [], [],
    ]  # fmt: skip
    kernels = [(item["pallas_kernels"], item["xla_kernels"]) for item in data["variants"]]
    assert kernels == [(1, []), (1, []), (1, ["copy", "add"]), (0, ["loop"])]


def test_junit_has_them_as_properties_and_as_output(report: Any) -> None:
    cases = list(ElementTree.fromstring(junit_xml(build_run(report), Path("/"))).iter("testcase"))
    properties = [
        {item.get("name"): item.get("value") for item in case.iter("property")} for case in cases
    ]
    assert [named.get("warnings") for named in properties] == ["2", "3", None, None]
    assert [named["pallas_kernels"] for named in properties] == ["1", "1", "1", "0"]
    assert properties[2]["xla_kernels"] == "copy, add"
    assert cases[0].findtext("system-err") == "k.py:4: UserWarning: cache miss: 100 % (2 times)"
    assert cases[2].find("system-err") is None


def test_annotations_stand_at_the_line_that_warned(
    report: Any, pretended: Any, tmp_path: Path
) -> None:
    (tmp_path / "k.py").write_text("import this\n" * 4)
    results = [
        replace(result, variant=replace(result.variant, base_dir=str(tmp_path)))
        for result in report.results
    ]
    lines = github_commands(build_run(pretended.report_of(results)), tmp_path)
    assert lines == [
        "::warning title=add holds no Pallas Mosaic GPU kernel::XLA wrote the code of: "
        "add[m=3]@h100-sxm",
        "::warning file=k.py,line=4,title=add%3A UserWarning::cache miss: 100 %25%0A"
        "Variants: add[m=0]@h100-sxm, add[m=1]@h100-sxm",
        "::warning title=add%3A stderr::ptxas warning : it spills%0A  here%0A"
        "Variants: add[m=1]@h100-sxm",
    ]
