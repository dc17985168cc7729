"""Reports of shards as one: totals, order, exit codes, and reports that are none."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pallasc.cli.render.merged import MergedReport
from pallasc.compiler.shards.join import join
from pallasc.errors import CorruptError

sys.path.insert(0, str(Path(__file__).parents[1] / "shards"))

import made_parts as made

sys.path.pop(0)

Merge = Callable[..., MergedReport]


@pytest.fixture
def merged(tmp_path: Path) -> Merge:
    """Return what merges two shards, `a` and `c`, and `b`, whose report `changed` changes."""
    parts = made.Parts(tmp_path)

    def merge(*rows: dict[str, object], junit: str | None = None, **changed: Any) -> MergedReport:
        first = parts.write("1/2", "a c", "a b c")
        report = {**parts.head("2/2", ["b"], ["b"]).report, **changed}
        if rows:
            report["variants"] = list(rows)
        more = {} if junit is None else {"junit": junit}
        return MergedReport(join([first, parts.write("2/2", "b", "a b c", report=report, **more)]))

    return merge


def test_rows_are_in_the_order_of_the_specs_and_totals_count_all(merged: Merge) -> None:
    slow = made.row("b", seconds=9.0, cubin_bytes=7, kernels=[{"spill_bytes": 8}])
    data: Any = merged(slow, interrupted=False).to_json(None, None)
    assert [row["id"] for row in data["variants"]] == ["a", "b", "c"]
    assert data["totals"]["compiled"] == 3
    assert (data["slowest"], data["largest"]) == (["b", "a", "c"], ["a", "c", "b"])
    assert (data["spilling"], data["hit_rate"], data["seconds"]) == (["b"], 0.0, 2.0)
    hit = merged(made.row("b", status="hit", saved_s=3.5, warnings=[{"count": 2}]))
    data = hit.to_json(None, None)
    assert (data["saved_s"], data["hit_rate"], data["warnings"]) == (3.5, 0.3333, 2)
    assert hit.lines() == [
        "2 shards with 3 variants: 1 hit (33 %), 2 compiled; 1.0 s to 2.0 s a shard"
    ]


@pytest.mark.parametrize(
    ("codes", "interrupted", "expected"),
    [
        ([], False, 0),
        ([5], False, 5),
        ([5, 1], False, 1),
        ([3], True, 130),
        ([], True, 130),
        (["x", 0, 999], False, 0),
    ],
)
def test_the_exit_code_is_that_of_one_build(
    merged: Merge, codes: list[object], interrupted: bool, expected: int
) -> None:
    rows = [
        made.row("b" if n == 0 else f"b{n}", status="failed", error={"exit_code": code})
        for n, code in enumerate(codes)
    ]
    assert merged(*rows, interrupted=interrupted).exit_code == expected


def test_errors_of_specs_that_all_shards_tell_are_told_once(merged: Merge) -> None:
    error = {"message": "ended", "exit_code": 2}
    report = merged(errors=[error, error, {"message": "other", "exit_code": 2}])
    assert report.exit_code == 2
    errors: Any = report.to_json(None, None)["errors"]
    assert [each["message"] for each in errors] == ["ended", "other"]


def test_a_failure_is_a_line_with_its_shard_and_nothing_that_a_terminal_obeys(
    merged: Merge,
) -> None:
    row = made.row("b", status="failed", error={"message": "\x1b[31mno\nsecond", "exit_code": 1})
    failure, total = merged(row).lines()
    assert failure == "failed  b (shard 2/2): no"
    assert total.startswith("2 shards with 3 variants: 2 compiled, 1 failed; ")


@pytest.mark.parametrize(
    "changed",
    [
        {"variants": [{"id": 3}]},
        {"variants": [{"id": "b"}]},
        {"variants": [made.row("b", status="odd")]},
        {"variants": [made.row("b", kernels=3)]},
        {"variants": [made.row("b", seconds="1")]},
        {"variants": {}},
        {"errors": None},
        {"errors": ["text"]},
        {"notes": [1]},
        {"interrupted": 0},
        {"seconds": None},
        {"shard": None},
    ],
)
def test_a_report_that_is_none_is_corrupt(merged: Merge, changed: dict[str, object]) -> None:
    with pytest.raises(CorruptError, match=r"2-2.part: its report is malformed"):
        merged(**changed)


BOMB = '<!DOCTYPE a [<!ENTITY b "bbbb"><!ENTITY c "&b;&b;">]><testsuites>&c;</testsuites>'


@pytest.mark.parametrize(
    "junit",
    [
        "",
        "text",
        BOMB,
        "<testsuites><testcase/></testsuites>",
        '<testsuites><testsuite tests="x" failures="0" errors="0" skipped="0"/></testsuites>',
        "<a>" * 100_000 + "</a>" * 100_000,
        "<testsuites><testsuite>" + "<a>" * 5000 + "</a>" * 5000 + "</testsuite></testsuites>",
        '<testsuites><testsuite tests="1" failures="0" errors="0" skipped="0">'
        + "<a>" * 5000
        + "</a>" * 5000
        + "</testsuite></testsuites>",
    ],
)
def test_xml_that_is_none_is_corrupt(merged: Merge, junit: str) -> None:
    with pytest.raises(CorruptError, match=r"2-2.part: its JUnit XML is malformed"):
        merged(junit=junit).junit(None)


def test_suites_of_all_shards_are_in_one_file(merged: Merge) -> None:
    top = ElementTree.fromstring(merged().junit(None))
    assert [suite.get("name") for suite in top] == ["k (shard 1/2)", "k (shard 2/2)"]
    assert (top.get("tests"), top.get("time")) == ("3", "2.000")
