"""`--quiet`: nothing but what went wrong; reports are as ever."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RunCommand = Callable[..., Any]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [
        ("build",),
        ("build", "--shard", "1/2"),
        ("check", "--level", "artifact"),
        ("lock", "--update"),
        ("bundle", "create", "-o", "kernels.pallasc"),
    ],
)
def test_a_run_in_which_nothing_fails_prints_nothing(
    arguments: tuple[str, ...], run: RunCommand, built: Any
) -> None:
    command, options = (
        (arguments[:2], arguments[2:])
        if arguments[0] == "bundle"
        else (
            arguments[:1],
            arguments[1:],
        )
    )
    result = run(*command, *built.arguments, "-q", *options)
    assert (result.code, result.out, result.err) == (0, "", "")


def test_what_was_asked_for_is_printed_all_the_same(run: RunCommand, built: Any) -> None:
    result = run("build", *built.arguments, "--quiet", "--json")
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out)["totals"]["hit"] == 2


def test_what_is_missing_and_the_totals_are_printed(run: RunCommand, built: Any) -> None:
    run("lock", *built.arguments, "--update")
    result = run("build", *built.arguments, "-q", "--frozen", "--target", "b200")
    assert result.code == 3
    assert "hit" not in result.err
    assert "add[m=1024,dtype=f32]@b200" in result.err
    assert result.err.splitlines()[-1].startswith("2 variants in ")


def test_a_lock_that_is_not_current_says_what_differs(run: RunCommand, built: Any) -> None:
    run("lock", *built.arguments, "--update", "-q")
    lock = Path("pallasc.lock")
    lock.write_text("".join(lock.read_text().splitlines(keepends=True)[:-1]))
    result = run("lock", *built.arguments, "-q")
    assert (result.code, result.out.count("\n")) == (3, 1)
    assert result.err.startswith("pallasc.lock is not current: ")


def test_a_mistake_is_said(run: RunCommand, built: Any) -> None:
    result = run("build", *built.arguments, "-q", "-k", "n=5")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: -k 'n=5' selects none of 2 variants.")
