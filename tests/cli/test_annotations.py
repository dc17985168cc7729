"""Annotations: exact workflow commands for GitHub, at the lines that a reader has to change."""

from pathlib import Path
from typing import Any

import pytest

from pallasc.cli.output.code_hosts import Annotation, github_commands
from pallasc.cli.output.outcome import build_run
from pallasc.errors import BudgetError, CompileError, Location
from pallasc.specs.spec import Budget

IN_SPEC = Location("kernels.yaml", 4, 5)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a repository, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path.resolve()


@pytest.mark.parametrize(
    ("annotation", "line"),
    [
        (Annotation("error", "t", "m", [None, Location("b.py")]), "::error file=b.py,title=t::m"),
        (Annotation("error", "t", "m", [Location("/elsewhere.py", 3, 7)]), "::error title=t::m"),
        (
            Annotation("warning", "f[m=1,n=2]@b200", "100 %\nof: a,b", [Location("c,d:%.py", 1)]),
            "::warning file=c%2Cd%3A%25.py,line=1,title=f[m=1%2Cn=2]@b200::100 %25%0Aof: a,b",
        ),
        (Annotation("error", "a\nb", "x\r\ny\rz\x1b[31m"), "::error title=a b::x%0Ay%0Az"),
    ],
)
def test_a_command_is_one_line_with_githubs_escapes(
    annotation: Annotation, line: str, root: Path
) -> None:
    assert annotation.command(root) == line


def test_a_failure_is_at_the_users_line_or_at_the_kernel_in_its_spec(
    pretended: Any, root: Path
) -> None:
    def line_of(of: Any = None, **error: Any) -> str:
        failed = pretended.failed(of, CompileError("1 % wrong", **error), output="last\nwords\n")
        (line,) = github_commands(build_run(pretended.report_of([failed])), root)
        return line

    assert line_of(location=Location(str(root / "src/k.py"), 5, 9), hint="Look.") == (
        "::error file=src/k.py,line=5,col=9,title=add@h100-sxm failed::"
        f"{root}/src/k.py:5:9: 1 %25 wrong%0A  Look.%0Alast%0Awords"
    )
    in_spec = "::error file=kernels.yaml,line=4,col=5,title=add@h100-sxm failed::"
    assert line_of().startswith(in_spec)
    assert line_of(location=Location("/usr/lib/python3/jax.py", 5)).startswith(in_spec)
    elsewhere = pretended.variant(place=Location("/elsewhere/kernels.yaml", 3))
    assert line_of(elsewhere).startswith("::error title=add@h100-sxm failed::1 %25 wrong%0A")


def test_failures_for_one_reason_share_an_annotation(pretended: Any, root: Path) -> None:
    def lines_of(errors: list[Any]) -> list[str]:
        of = (pretended.variant(m=m) for m in range(len(errors)))
        failed = [pretended.failed(v, error) for v, error in zip(of, errors, strict=True)]
        return github_commands(build_run(pretended.report_of(failed)), root)

    place = Location("k.py", 5)
    same = [CompileError("it broke.", location=place)] * 12
    first, second = lines_of([*same, CompileError("another.", location=place)])
    assert first.startswith(
        "::error file=k.py,line=5,title=add[m=0]@h100-sxm failed and 11 more::k.py:5: it broke.%0A"
        "Variants: add[m=0]@h100-sxm, add[m=1]@h100"
    )
    assert first.endswith("add[m=9]@h100-sxm and 2 more")
    assert "title=add[m=12]@h100-sxm failed::" in second

    def over(m: int) -> BudgetError:
        text = f"kernel has {m + 2} registers; the budget is 1"
        return BudgetError(text, location=IN_SPEC, kind="registers")

    (line,) = lines_of([over(m) for m in range(18)])
    assert "title=add[m=0]@h100-sxm failed and 17 more::" in line
    assert "%0Aadd[m=1]@h100-sxm: kernel has 3 registers; the budget is 1%0A" in line
    assert line.endswith("%0Aand 7 more")


@pytest.mark.parametrize("number", [10, 12])
def test_errors_and_warnings_are_limited_apart_and_the_last_counts_the_others(
    number: int, pretended: Any, root: Path
) -> None:
    failed = [
        pretended.failed(pretended.variant(m=m), CompileError(f"{'x' * m} broke."))
        for m in range(number)
    ]
    report = pretended.report_of(failed, notes=[f"note, {m}" for m in range(number)])
    lines = github_commands(build_run(report), root)
    assert [line.split()[0] for line in lines] == ["::error"] * 10 + ["::warning"] * 10
    assert lines[10] == "::warning title=pallasc::note, 0"
    if number == 10:
        assert "title=add[m=9]@h100-sxm failed::" in lines[9]
    else:
        others = "%0A".join(f"add[m={m}]@h100-sxm failed" for m in range(9, 12))
        assert lines[9] == f"::error title=3 more errors::{others}"


def test_a_spill_is_a_warning_at_the_kernel_unless_it_is_a_hit_or_in_the_budget(
    pretended: Any, root: Path
) -> None:
    def lines_of(*results: Any) -> list[str]:
        return github_commands(build_run(pretended.report_of(results)), root)

    spilling = [
        pretended.compiled(pretended.variant(m=m), spill_store_bytes=8 * m) for m in range(3)
    ]
    (line,) = lines_of(*spilling)
    assert line.startswith(
        "::warning file=kernels.yaml,line=4,col=5,title=add spills registers::"
        "up to 16 bytes per thread: add[m=1]@h100-sxm, add[m=2]@h100-sxm%0A"
    )
    allowed = pretended.variant(budget=Budget(spill_bytes=64))
    assert lines_of(pretended.hit(), pretended.compiled(allowed, spill_store_bytes=8)) == []
