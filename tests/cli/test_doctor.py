"""`pallasc doctor`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pallasc.cli.doctor import items_text
from pallasc.compiler.inventory import Item

RunCommand = Callable[..., Any]

NEEDED = ("python", "platform", "jax", "jaxlib", "ptxas", "nvlink", "libdevice", "llvmlite")


def test_doctor_finds_everything_that_these_tests_need(run: RunCommand) -> None:
    result = run("doctor")
    states = {line.split()[0]: line for line in result.out.splitlines()}
    assert (result.code, result.err) == (0, "")
    assert set(NEEDED) <= set(states)
    assert all(" ok" in states[name] for name in NEEDED)


def test_doctor_prints_json(run: RunCommand) -> None:
    data = json.loads(run("doctor", "--json").out)
    assert (data["schema"], data["ok"]) == (1, True)
    assert {item["name"] for item in data["items"] if item["needed"]} >= set(NEEDED)


def test_doctor_names_a_missing_assembler_and_ends_with_4(run: RunCommand, tmp_path: Path) -> None:
    result = run("doctor", "--ptxas", tmp_path / "ptxas")
    assert result.code == 4
    assert result.err == "error: nothing can be compiled: see ptxas in the list.\n"
    (line,) = (line for line in result.out.splitlines() if line.startswith("ptxas "))
    assert line.split() == ["ptxas", "-", "missing", str(tmp_path / "ptxas")]


def test_doctor_still_prints_json_when_something_is_missing(
    run: RunCommand, tmp_path: Path
) -> None:
    result = run("doctor", "--json", "--ptxas", tmp_path / "ptxas")
    assert result.code == 4
    assert json.loads(result.out)["ok"] is False


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ([Item("jax", "0.12.0", "traces")], "NAME  VERSION  STATE  PATH\njax   0.12.0   ok"),
        (
            [
                Item("jax", "", "traces", problem="missing", fix="pip install x"),
                Item("jaxlib", "", "lowers", problem="missing", fix="pip install x"),
                Item("driver", "", "launching needs it", needed=False, problem="none"),
            ],
            "NAME    VERSION  STATE                     PATH\n"
            "jax     -        missing\n"
            "jaxlib  -        missing\n"
            "driver  -        none; launching needs it\n"
            "\n"
            "To put this right:\n"
            "  pip install x",
        ),
    ],
)
def test_items_text_is_a_table_and_each_fix_once(items: list[Item], text: str) -> None:
    assert items_text(items) == text
