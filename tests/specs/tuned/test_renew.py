"""Rows take digests of today, and keep that of what was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.tuned_table import Table, table_text, write_table
from pallasc.specs.loading.yaml_loader import load_yaml
from pallasc.specs.tuned.renew import edited_row, renewed, row_key, with_rows
from pallasc.specs.tuned.row_check import checked, is_edited
from pallasc.specs.tuning import Measured, Row


def row(artifact: str | None, measured_as: str | None = None) -> Row:
    return Row("b200", (1,), {"a": 1}, artifact, "", None, measured_as)


@pytest.mark.parametrize(
    ("before", "digests", "after"),
    [
        (row("a"), ["a"], row("a")),
        (row("a"), ["b", "a"], row("a")),
        (row("a"), ["b", "c"], row("b", "a")),
        (row("b", "a"), ["c"], row("c", "a")),
        (row("b", "a"), ["b"], row("b", "a")),
        (row("b", "a"), ["c", "a"], row("a")),
        (row(None), ["b"], row("b")),
    ],
)
def test_a_row_is_renewed(before: Row, digests: list[str], after: Row) -> None:
    assert renewed(before, digests) == after


SPEC = """\
schema: 1
targets: [b200]
kernels:
  - name: k
    entry: json:loads
    args: {x: "f32[{m}]"}
    static: {tile: "{tile}"}
    matrix: {m: [900, 1000, 2048]}
    tune: {over: {tile: [64, 128]}, buckets: {m: pow2}}
"""


@pytest.mark.parametrize(
    ("known", "other"),
    [
        ({"a": [(900, 128)]}, "tile=128"),
        ({"a": [(2048, 64)]}, "k[m=2048,tile=64]@b200"),
        ({"a": [(900, 64)]}, None),
        ({"a": [(900, 128), (1000, 64)]}, None),
        ({"b": [(900, 128)]}, None),
        ({"c": [(900, 128)]}, "tile=128"),
    ],
)
def test_a_row_with_the_artifact_of_a_point_that_it_does_not_choose_was_edited(
    tmp_path: Path, known: dict[str, list[tuple[int, int]]], other: str | None
) -> None:
    own = Row("b200", (1024,), {"tile": 64}, "a" * 64, measured_as="c" * 64)
    (tmp_path / "k.yaml").write_text(SPEC)
    write_table(tmp_path / "k.tuned.yaml", {"k": Table(("m",), (own,))})
    points = {
        tuple(dict(point.params).values()): point
        for point in expand(load_yaml(tmp_path / "k.yaml"), all_points=True)
    }
    digests = {"a": "a" * 64, "b": "b" * 64, "c": "c" * 64}
    found = {digests[name]: [points[each] for each in each_of] for name, each_of in known.items()}
    error = edited_row("k", ("m",), own, found)
    if other is None:
        assert error is None
    else:
        assert error is not None
        assert error.message.endswith(f"is that of {other}; no table is written.")


MEASURED = checked(Row("b200", (1024,), {"tile": 64}, "a" * 64))


@pytest.mark.parametrize(
    ("edit", "is_told"),
    [
        ({"use": {"tile": 128}}, True),
        ({"key": (2048,)}, True),
        ({"key": (True,)}, True),
        ({"gpu": "h100-sxm"}, True),
        ({"artifact": "b" * 64}, True),
        ({"artifact": "b" * 64, "measured_as": "a" * 64}, False),
        ({"use": {"tile_m": 64}, "source": "measured by us", "measured": Measured(4.5)}, False),
        ({"use": {"tile": 128}, "check": None}, False),
    ],
)
def test_the_check_of_a_row_tells_what_was_edited(edit: dict[str, Any], is_told: bool) -> None:
    error = edited_row("k", ("m",), replace(MEASURED, **edit), {})
    assert (error is not None) is is_told
    if error is not None:
        assert f"was edited: its check {MEASURED.check} is not that of its gpu" in error.message
        assert error.hint is not None
        assert "remove check from the row" in error.hint


def test_a_row_that_gets_a_digest_gets_a_check_and_no_row_loses_it() -> None:
    first = renewed(row(None), ["b"])
    assert (first.check, is_edited(first)) == (checked(row("b")).check, False)
    second = renewed(first, ["c"])
    assert (second.measured_as, second.check, is_edited(second)) == ("b", first.check, False)
    assert renewed(row("a"), ["b"]).check is None
    table = table_text({"k": Table(("m",), (second,))})
    assert f"measured_as: b, check: {first.check}" in table.replace('"', "")


def test_rows_are_replaced_by_model_and_key() -> None:
    other = Row("b200", (True,), {"a": 1}, "x")
    table = Table(("m",), (row("a"), other))
    assert with_rows(table, {row_key(row("a")): row("b")}).rows == (row("b"), other)
