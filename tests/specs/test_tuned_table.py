"""Tables of tuned kernels as files."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pallasc.errors import SpecError
from pallasc.specs.loading.tuned_table import (
    Table,
    parse_table,
    read_table,
    table_text,
    write_table,
)
from pallasc.specs.tuning import Measured, Row

DIGEST, OTHER = "0123456789abcdef" * 4, "f" * 64
FULL = Measured(12.31, 0.4, 31, "NVIDIA H100 80GB HBM3", "580.95.05", 1755, "2026-11-23")
TEXT = f"""\
# Which variants of tuned kernels are used where; review and commit it.
# Written by pallasc tune pick; comments are not kept.
schema: 1
kernels:
  matmul:
    by: [m, n, dtype]
    rows:
      - {{gpu: b200, key: [64, 4096, bf16], use: {{tile_m: 64}}, source: "tokamax 0.0.17"}}
      - {{gpu: h100-sxm, key: [64, 4096, bf16], use: {{tile_m: 64}}, artifact: {DIGEST}, \
us: 12.31, spread_percent: 0.4, rounds: 31, device: "NVIDIA H100 80GB HBM3", driver: "580.95.05", \
clock_mhz: 1755, date: "2026-11-23"}}
      - {{gpu: h100-sxm, key: [1024, 4096, bf16], use: {{tile_m: 128}}, artifact: {DIGEST}, \
us: 1.0e-05}}
  "no":
    by: []
    rows: []
"""
USE = {"tile_m": 64}
ROWS = (
    Row("h100-sxm", (1024, 4096, "bf16"), {"tile_m": 128}, DIGEST, "", Measured(1e-05)),
    Row("h100-sxm", (64, 4096, "bf16"), USE, DIGEST, "", FULL),
    Row("b200", (64, 4096, "bf16"), USE, None, "tokamax 0.0.17"),
)
TABLES = {"no": Table((), ()), "matmul": Table(("m", "n", "dtype"), ROWS)}


def test_the_text_is_the_same_for_the_same_rows_in_any_order() -> None:
    shuffled = list(ROWS)
    for seed in range(6):
        random.Random(seed).shuffle(shuffled)
        assert table_text({**TABLES, "matmul": Table(("m", "n", "dtype"), tuple(shuffled))}) == TEXT


def test_what_is_written_is_read_back_with_places() -> None:
    found = parse_table(TEXT, "k.tuned.yaml")
    assert set(found) == {"matmul", "no"}
    assert set(map(repr, found["matmul"].rows)) == set(map(repr, ROWS))
    assert [str(row.place) for row in found["matmul"].rows] == [
        f"k.tuned.yaml:{line}:9" for line in (8, 9, 10)
    ]
    assert table_text(found) == TEXT


VALUES = [
    None, True, 0, -3, 2**63, 0.5, -1e-7, 1e22, "", "no", "Null", "y", "1", "1e5", "0x1f", "1:30",
    "2026-11-23", "a: b", "#x", '"', "\\", "é", "\n\t", "😀", "- a", "[64,128]", "~", ".inf",
]  # fmt: skip


def test_every_value_of_a_parameter_comes_back_as_it_was() -> None:
    rows = tuple(Row("h100-sxm", (value,), {"a": value}, DIGEST) for value in VALUES)
    found = parse_table(table_text({"k": Table(("m",), rows)}), "t")["k"].rows
    assert {repr(row.key) for row in found} == {repr((value,)) for value in VALUES}
    assert all(repr(row.use["a"]) == repr(row.key[0]) for row in found)


def test_a_digest_that_reads_as_a_number_is_quoted() -> None:
    for digest in ("1" * 64, "1" * 60 + "e123"):
        rows = (Row("b200", (), {"a": 1}, digest),)
        (found,) = parse_table(table_text({"k": Table((), rows)}), "t")["k"].rows
        assert found.artifact == digest


def test_a_table_that_is_not_there_has_no_rows(tmp_path: Path) -> None:
    assert read_table(tmp_path / "k.tuned.yaml") == {}
    write_table(tmp_path / "k.tuned.yaml", TABLES)
    assert (tmp_path / "k.tuned.yaml").read_text() == TEXT
    assert table_text(read_table(tmp_path / "k.tuned.yaml", "k.tuned.yaml")) == TEXT


HEAD = "schema: 1\nkernels:\n  k:\n    by: [m]\n    rows:\n"
ROW = f"      - {{gpu: b200, key: [1], use: {{a: 1}}, artifact: {DIGEST}}}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t: the table is empty."),
        ("kernels: {}", "t:1:1: field 'schema' is missing."),
        ("schema: 2\nkernels: {}", "t:1:9: schema: the table has schema 2, and this pallasc reads "
         "schema 1."),
        ("schema: 1\nkernel: {}", "t:2:1: unknown field 'kernel'."),
        (f"{HEAD}{ROW}<<<<<<< ours\n", "t:7: the table holds the marks of a merge conflict."),
        (HEAD + ROW.replace("[1]", "[1, 2]"),
         "t:6:26: kernels.k.rows[0].key: the key has 2 values, and 'by' has 1 parameter."),
        (HEAD + ROW.replace(DIGEST, "abc"),
         "t:6:54: kernels.k.rows[0].artifact: expected a digest of 64 hexadecimal digits, "
         "got 'abc'."),
        (HEAD + ROW.replace("}\n", ", rounds: 3}\n"),
         "t:6:9: kernels.k.rows[0]: the row has figures of a measurement, and no time."),
        (HEAD + ROW.replace("{a: 1}", "{a: [1]}"),
         "t:6:40: kernels.k.rows[0].use.a: expected text, a number, true, false or null, got a "
         "list."),
        (HEAD + ROW + ROW.replace("{a: 1}", "{a: 2}"),
         "t:7:9: kernels.k.rows[1]: a second row for b200, m=1; the first is at t:6:9."),
        (HEAD + ROW.replace("}\n", ", us: 1, date: \"May\"}\n"),
         "t:6:133: kernels.k.rows[0].date: expected a date, got 'May'."),
    ],
)  # fmt: skip
def test_what_is_no_table_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_table(text, "t")
    where = f"{caught.value.location}: " if caught.value.location else ""
    assert f"{where}{caught.value.message}" == message
