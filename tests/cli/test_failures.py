"""Errors as text: a kernel's own source line, only where it is one."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from pallasc.cli.output.exits import error_text, failure
from pallasc.errors import CompileError, Location, SpecError, ToolError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.py"
    path.write_text("import jax\n\n    x = jax.wrong(y)  # here\n")
    return path


def test_a_compile_error_shows_the_line_of_the_kernel(source: Path) -> None:
    error = CompileError("no rule.", location=Location(str(source), 3), hint="Change it.")
    assert error_text(error) == (
        f"{source}:3: no rule.\n    3 | x = jax.wrong(y)  # here\n  Change it."
    )


def test_a_compile_error_without_a_hint_ends_with_the_line(source: Path) -> None:
    error = CompileError("no rule.", location=Location(str(source), 1))
    assert error_text(error) == f"{source}:1: no rule.\n    1 | import jax"


@pytest.mark.parametrize("line", [0, 2, 99])
def test_a_line_that_is_not_there_is_not_shown(source: Path, line: int) -> None:
    error = CompileError("no rule.", location=Location(str(source), line))
    assert error_text(error) == str(error)


def test_a_line_of_yaml_is_not_shown(tmp_path: Path) -> None:
    spec = tmp_path / "kernels.yaml"
    spec.write_text("schema: 1\n")
    error = CompileError("it died.", location=Location(str(spec), 1))
    assert error_text(error) == f"{spec}:1: it died."


def test_a_spec_error_keeps_its_own_text(source: Path) -> None:
    error = SpecError("wrong.", location=Location(str(source), 1), hint="Mend it.")
    assert error_text(error) == f"{source}:1: wrong.\n  Mend it."


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ToolError("no ptxas.", hint="Get it."), ("error: no ptxas.\n  Get it.", 4)),
        (click.UsageError("no."), ("error: no.\n  See pallasc --help.", 2)),
        (click.ClickException("no."), ("error: no.", 2)),
        (click.Abort(), ("interrupted", 130)),
    ],
)
def test_failure_gives_text_and_exit_code(
    error: click.ClickException, expected: tuple[str, int]
) -> None:
    assert failure(error) == expected
