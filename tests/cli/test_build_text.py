"""The text of a build: lines of results, failures, remarks, the summary at the end."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pallasc.cache.manifests import Diagnostic
from pallasc.cli.output.build_text import failure_lines, remarks, result_line, summary, unfinished
from pallasc.cli.output.outcome import build_run, built
from pallasc.cli.output.reports import report_json
from pallasc.cli.output.text import error_text
from pallasc.errors import CompileError, Location, SpecError
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
