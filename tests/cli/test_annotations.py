"""Annotations: what GitHub's runner reads back from a line is what was meant."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pallasc.cli.output.code_hosts import Annotation, github_commands
from pallasc.cli.output.outcome import build_run
from pallasc.errors import BudgetError, CompileError, Location, NotCachedError, SpecError
from pallasc.specs.spec import Budget

IN_SPEC = Location("kernels.yaml", 4, 5)
_COMMAND = re.compile(r"::(?P<kind>\w+)(?: (?P<properties>.*?))?::(?P<message>.*)")
_ESCAPES = {"%0D": "\r", "%0A": "\n", "%3A": ":", "%2C": ",", "%25": "%"}


def _unescape(text: str) -> str:
    for escape, letter in _ESCAPES.items():
        text = text.replace(escape, letter)
    return text


def _read(line: str) -> tuple[str, dict[str, str], str]:
    """Return kind, properties and message of a command, read as the runner reads it."""
    match = _COMMAND.fullmatch(line)
    assert match is not None
    pairs = [pair.partition("=") for pair in (match["properties"] or "").split(",")]
    properties = {name: _unescape(value) for name, _, value in pairs}
    return match["kind"], properties, _unescape(match["message"])


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a repository, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _lines(report: Any, root: Path) -> list[str]:
    return github_commands(build_run(report), root.resolve())


@pytest.mark.parametrize(
    ("annotation", "line"),
    [
        (Annotation("error", "t", "m"), "::error title=t::m"),
        (
            Annotation("warning", "t", "m", [Location("a/b.py", 3, 7)]),
            "::warning file=a/b.py,line=3,col=7,title=t::m",
        ),
        (Annotation("error", "t", "m", [None, Location("b.py")]), "::error file=b.py,title=t::m"),
        (Annotation("error", "t", "m", [Location("/elsewhere.py", 3, 7)]), "::error title=t::m"),
        (
            Annotation(
                "error", "add[m=1,n=2]@b200", "100 %\nof: a,b", [Location("c,d:100%.py", 1)]
            ),
            "::error file=c%2Cd%3A100%25.py,line=1,title=add[m=1%2Cn=2]@b200::100 %25%0Aof: a,b",
        ),
        (Annotation("error", "a\nb", "x\r\ny\rz\x1b[31m"), "::error title=a b::x%0Ay%0Az"),
    ],
)
def test_a_command_is_one_line_with_githubs_escapes(
    annotation: Annotation, line: str, root: Path
) -> None:
    assert annotation.command(root.resolve()) == line


def test_a_failure_stands_at_the_users_line(pretended: Any, root: Path) -> None:
    error = CompileError(
        "ValueError: 100 % wrong", location=Location(str(root / "src/k.py"), 5, 9), hint="Look."
    )
    report = pretended.report_of([pretended.failed(error=error, output="printed\n")])
    (line,) = _lines(report, root)
    assert line.startswith("::error file=src/k.py,line=5,col=9,title=add@h100-sxm failed::")
    assert _read(line)[2] == f"{root}/src/k.py:5:9: ValueError: 100 % wrong\n  Look.\nprinted"


@pytest.mark.parametrize("place", [None, Location("/usr/lib/python3/jax.py", 5)])
def test_a_failure_elsewhere_stands_at_the_kernel_in_its_spec(
    place: Location | None, pretended: Any, root: Path
) -> None:
    error = CompileError("it broke.", location=place)
    (line,) = _lines(pretended.report_of([pretended.failed(error=error)]), root)
    assert line.startswith("::error file=kernels.yaml,line=4,col=5,title=add@h100-sxm failed::")


def test_a_failure_without_any_place_in_the_repository_has_none(pretended: Any, root: Path) -> None:
    of = pretended.variant(place=Location("/elsewhere/kernels.yaml", 3))
    (line,) = _lines(pretended.report_of([pretended.failed(of)]), root)
    assert line == "::error title=add@h100-sxm failed::it broke."


def test_the_end_of_the_output_says_why_where_no_place_does(pretended: Any, root: Path) -> None:
    (line,) = _lines(pretended.report_of([pretended.failed(output="last\nwords\n")]), root)
    assert _read(line)[2] == "it broke.\nlast\nwords"


def test_failures_for_one_reason_share_an_annotation(pretended: Any, root: Path) -> None:
    place = Location("k.py", 5)
    failed = [
        pretended.failed(pretended.variant(m=m), CompileError("it broke.", location=place))
        for m in range(12)
    ]
    other = pretended.failed(error=CompileError("another.", location=place))
    first, second = map(_read, _lines(pretended.report_of([*failed, other]), root))
    assert first[1]["title"] == "add[m=0]@h100-sxm failed and 11 more"
    assert first[2].startswith("k.py:5: it broke.\nVariants: add[m=0]@h100-sxm, add[m=1]@h100")
    assert first[2].endswith("add[m=9]@h100-sxm and 2 more")
    assert second[1]["title"] == "add@h100-sxm failed"


def test_variants_that_are_not_as_locked_share_an_annotation(pretended: Any, root: Path) -> None:
    def failed(m: int, reason: str, kind: str = "") -> Any:
        of = pretended.variant(m=m)
        error = NotCachedError(
            f"{of.id} is {reason}.",
            location=of.location,
            hint="pallasc lock",
            reason=reason,
            kind=kind,
        )
        return pretended.failed(of, error)

    edited = [failed(m, "not as locked: its sources have changed (k.py)") for m in range(24)]
    chance = [
        failed(m, f"not deterministic: action key {m:064x} has given", "not deterministic")
        for m in range(3)
    ]
    first, second = map(_read, _lines(pretended.report_of([*edited, *chance]), root))
    assert first[1]["title"] == "add[m=0]@h100-sxm failed and 23 more"
    assert first[2].splitlines()[0].endswith("its sources have changed (k.py).")
    assert first[2].endswith("add[m=9]@h100-sxm and 14 more")
    assert second[1]["title"] == "add[m=0]@h100-sxm failed and 2 more"
    assert f"add[m=2]@h100-sxm is not deterministic: action key {2:064x} has given" in second[2]


def test_variants_over_one_budget_share_an_annotation(pretended: Any, root: Path) -> None:
    failed = [
        pretended.failed(
            pretended.variant(m=m),
            BudgetError(
                f"kernel takes {m} registers; the budget is 1", location=IN_SPEC, kind="registers"
            ),
        )
        for m in range(2, 20)
    ]
    (line,) = map(_read, _lines(pretended.report_of(failed), root))
    assert line[1]["title"] == "add[m=2]@h100-sxm failed and 17 more"
    assert "add[m=3]@h100-sxm: kernel takes 3 registers; the budget is 1" in line[2].splitlines()
    assert line[2].splitlines()[-1] == "and 7 more"


@pytest.mark.parametrize(("number", "titles"), [(10, 10), (11, 10), (25, 10)])
def test_the_last_of_too_many_counts_the_others(
    number: int, titles: int, pretended: Any, root: Path
) -> None:
    failed = [
        pretended.failed(pretended.variant(m=m), CompileError(f"{'x' * m} broke."))
        for m in range(number)
    ]
    lines = [_read(line) for line in _lines(pretended.report_of(failed), root)]
    assert len(lines) == titles
    last = lines[-1]
    if number == 10:
        assert last[1]["title"] == "add[m=9]@h100-sxm failed"
    else:
        assert last[1] == {"title": f"{number - 9} more errors"}
        assert last[2].splitlines() == [f"add[m={m}]@h100-sxm failed" for m in range(9, number)]


def test_a_spill_is_a_warning_at_the_kernel(pretended: Any, root: Path) -> None:
    compiled = [
        pretended.compiled(pretended.variant(m=m), spill_store_bytes=8 * m) for m in range(3)
    ]
    (line,) = _lines(pretended.report_of(compiled), root)
    kind, properties, message = _read(line)
    assert (kind, properties) == (
        "warning",
        {"file": "kernels.yaml", "line": "4", "col": "5", "title": "add spills registers"},
    )
    assert message.splitlines()[0] == (
        "up to 16 bytes a thread: add[m=1]@h100-sxm, add[m=2]@h100-sxm"
    )


@pytest.mark.parametrize("what", ["hit", "budget"])
def test_a_spill_that_is_no_news_is_no_warning(what: str, pretended: Any, root: Path) -> None:
    of = pretended.variant(budget=Budget(spill_bytes=64))
    spilling = pretended.compiled(of, spill_store_bytes=8)
    assert (
        _lines(pretended.report_of([spilling if what == "budget" else pretended.hit()]), root) == []
    )


def test_notes_are_warnings_after_the_errors(pretended: Any, root: Path) -> None:
    report = pretended.report_of([pretended.failed()], notes=["the store: is, odd"])
    assert _lines(report, root)[1] == "::warning title=pallasc::the store: is, odd"


def test_warnings_and_errors_are_counted_apart(pretended: Any, root: Path) -> None:
    failed = [pretended.failed(error=CompileError("x" * m)) for m in range(12)]
    report = pretended.report_of(failed, notes=[str(m) for m in range(12)])
    kinds = [_read(line)[0] for line in _lines(report, root)]
    assert kinds == ["error"] * 10 + ["warning"] * 10


def test_an_error_that_ends_the_build_has_its_place(pretended: Any, root: Path) -> None:
    error = SpecError("no such field.", location=Location("kernels.yaml", 3, 7), hint="Drop it.")
    report = pretended.report_of([])
    (line,) = github_commands(build_run(report, error), root.resolve())
    assert line == (
        "::error file=kernels.yaml,line=3,col=7,title=pallasc::"
        "kernels.yaml:3:7: no such field.%0A  Drop it."
    )
    (line,) = github_commands(build_run(report, SpecError("no specs.")), root.resolve())
    assert line == "::error title=pallasc::no specs."
