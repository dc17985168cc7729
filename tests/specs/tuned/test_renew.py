"""Rows take digests of today, and keep that of what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.tuned_table import Table, write_table
from pallasc.specs.loading.yaml_loader import load_yaml
from pallasc.specs.tuned.renew import edited_row, renewed, row_key, with_rows
from pallasc.specs.tuning import Row


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


def test_rows_are_replaced_by_model_and_key() -> None:
    other = Row("b200", (True,), {"a": 1}, "x")
    table = Table(("m",), (row("a"), other))
    assert with_rows(table, {row_key(row("a")): row("b")}).rows == (row("b"), other)
