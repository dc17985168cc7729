"""`tune` of a spec, its table as a file, and the points that the table has built."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from pallasc.errors import SpecError
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.tuned_table import (
    Table,
    parse_table,
    read_table,
    table_text,
)
from pallasc.specs.loading.yaml_loader import load_specs, load_yaml
from pallasc.specs.spec import Variant, spec_from_json, spec_to_json
from pallasc.specs.tuning import Measured, Row, Tuning, row_order

DIGEST = "a" * 64
SPEC = """\
schema: 1
targets: [h100-sxm]
kernels:
  - name: k
    entry: json:loads
    args: {x: "f32[{m}]"}
    static: {tile: "{tile}", stages: "{stages}"}
    matrix: {m: [300, 1000, 1024, 5000]}
    tune:
      over: {tile: [64, 128], stages: [2, 4]}
"""

Expanded = Callable[..., list[Variant]]


@pytest.fixture
def expanded(tmp_path: Path) -> Expanded:
    """Return what expands `SPEC` with more fields of `tune` and the rows of a table."""

    def expand_spec(
        tune: str = "",
        *rows: Row,
        spec: str = SPEC,
        remarks: list[str] | None = None,
        **options: bool,
    ) -> list[Variant]:
        lines = "".join(f"      {line}\n" for line in tune.splitlines())
        (tmp_path / "k.yaml").write_text(spec + lines)
        if rows:
            (tmp_path / "k.tuned.yaml").write_text(table_text({"k": Table(("m",), rows)}))
        told: list[str] = [] if remarks is None else remarks
        return expand(load_yaml(tmp_path / "k.yaml"), tell=told.append, **options)

    return expand_spec


def row(m: int, tile: int, stages: int, gpu: str = "h100-sxm") -> Row:
    measured = Measured(12.5, 0.4, 31, "NVIDIA H100", "580.95.05", 1755, "2026-11-23")
    return Row(gpu, (m,), {"tile": tile, "stages": stages}, DIGEST, measured=measured)


def points(variants: list[Variant]) -> list[tuple[object, ...]]:
    return [tuple(value for _, value in variant.params) for variant in variants]


def test_without_rows_or_a_default_every_point_is_built(expanded: Expanded) -> None:
    remarks: list[str] = []
    found = expanded(remarks=remarks)
    assert [variant.id for variant in found][:3] == [
        "k[m=300,tile=64,stages=2]@h100-sxm",
        "k[m=300,tile=64,stages=4]@h100-sxm",
        "k[m=300,tile=128,stages=2]@h100-sxm",
    ]
    assert len(found) == 16
    assert found[0].static == {"stages": 2, "tile": 64}
    assert found[0].tuning == Tuning(by=("m",), over=("tile", "stages"))
    (with_row, *_) = expanded("", row(300, 64, 2))
    assert found[0].request() == with_row.request()
    (remark,) = remarks
    assert remark.startswith("k: ")
    assert remark.endswith(
        "k.tuned.yaml has no rows for h100-sxm, and tune has no default: all 16 points are built."
    )


def test_the_default_alone_is_built_where_there_are_no_rows(expanded: Expanded) -> None:
    remarks: list[str] = []
    found = expanded("default: {stages: 4, tile: 128}", remarks=remarks)
    assert points(found) == [(m, 128, 4) for m in (300, 1000, 1024, 5000)]
    assert all(variant.tuning and variant.tuning.is_default for variant in found)
    assert remarks == []


def test_the_row_of_the_exact_key_goes_before_that_of_its_bucket(expanded: Expanded) -> None:
    rows = [row(1024, 64, 2), row(300, 128, 2), row(512, 64, 4)]
    found = expanded("buckets: {m: pow2}\ndefault: {tile: 128, stages: 4}", *rows)
    tunings = {tuple(v.params): v.tuning for v in found}
    uses = {
        (dict(params)["m"], dict(params)["tile"], dict(params)["stages"]): [
            each.key for each in tuning.rows
        ]
        for params, tuning in tunings.items()
        if tuning is not None and tuning.rows
    }
    # 1000 falls into the bucket of 1024; 5000 has neither; the row of 512 is hidden by that of 300.
    assert uses == {(300, 128, 2): [(300,)], (1000, 64, 2): [(1024,)], (1024, 64, 2): [(1024,)]}
    assert [point for point in points(found) if point[1:] == (128, 4)] == [
        (m, 128, 4) for m in (300, 1000, 1024, 5000)
    ]
    assert len(found) == 7
    found = expanded("buckets: {m: [512, 1024]}", row(512, 64, 2), row(1024, 64, 4))
    assert points(found) == [(300, 64, 2), (1000, 64, 4), (1024, 64, 4)]
    found = expanded("default: {tile: 64, stages: 2}", row(300, 128, 4), all_points=True)
    assert len(found) == 16
    assert len([v for v in found if v.tuning and (v.tuning.rows or v.tuning.is_default)]) == 5


def test_excluded_and_included_points_name_tuned_parameters(expanded: Expanded) -> None:
    spec = SPEC.replace("    tune:", "    exclude: [{tile: 128, stages: 4}]\n    tune:")
    assert (300, 128, 4) not in points(expanded(spec=spec))
    matrix = "matrix: {m: [300, 1000, 1024, 5000]}"
    (variant,) = expanded(spec=SPEC.replace(matrix, "include: [{tile: 64, m: 8, stages: 2}]"))
    assert variant.id == "k[m=8,tile=64,stages=2]@h100-sxm"
    with pytest.raises(SpecError) as caught:
        expanded("", row(300, 128, 4), spec=spec)
    assert "no point with m=300 has tile=128, stages=4: 'exclude' removes it." in str(caught.value)


def test_tuned_specs_survive_json(expanded: Expanded, tmp_path: Path) -> None:
    tune = "buckets: {m: [512, 8192]}\npad: {m: {x: 0}}\ndefault: {tile: 64, stages: 2}"
    expanded(tune)
    (spec,) = load_yaml(tmp_path / "k.yaml")
    back = spec_from_json(json.loads(json.dumps(spec_to_json(spec))))
    assert spec_to_json(back) == spec_to_json(spec)
    assert back.tune == spec.tune


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (row(300, 64, 2, "h100"), "unknown model 'h100'."),
        (row(300, 64, 2, "sm_90a"), "unknown model 'sm_90a'."),
        (row(300, 32, 2), "32 is not a value of parameter 'tile'."),
        (row(301, 64, 2), "no point has m=301."),
        (row(2048, 64, 2), "no point has m=2048."),
        (Row("h100-sxm", ("a",), {"tile": 64, "stages": 2}, DIGEST), "no point has m=a."),
        (Row("h100-sxm", (300,), {"tile": 64}, DIGEST),
         "the row has 'use' for: tile; tuned parameters: tile, stages."),
    ],
)  # fmt: skip
def test_a_row_that_no_point_has_is_refused(
    expanded: Expanded, tmp_path: Path, wrong: Row, message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        expanded("buckets: {m: pow2}\npad: {m: {x: 0}}", wrong)
    assert caught.value.message == f"k: {message}"
    assert str(caught.value.location) == f"{tmp_path}/k.tuned.yaml:8:9"
    if "'h100'" in message:
        assert caught.value.hint == "Did you mean 'h100-sxm' or 'h100-pcie'?"


def test_rows_that_fit_no_kernel_or_point_are_refused(expanded: Expanded, tmp_path: Path) -> None:
    spec = SPEC.replace("matrix: {m", "matrix: {n: [1], m").replace("f32[{m}]", "f32[{m}, {n}]")
    with pytest.raises(SpecError) as caught:
        expanded("", row(300, 64, 2), spec=spec)
    assert caught.value.message == "rows of k have by: m; its spec has by: n, m."
    assert f"The spec is at {tmp_path}/k.yaml:10:7." in str(caught.value.hint)
    with pytest.raises(SpecError) as caught:
        expanded("buckets: {m: pow2}", row(16, 64, 2))
    assert caught.value.message.startswith("k: no row of ")
    assert "--all-points" in str(caught.value.hint)
    (tmp_path / "k.tuned.yaml").write_text(table_text({"kk": Table(("m",), (row(300, 64, 2),))}))
    with pytest.raises(SpecError) as caught:
        expanded()
    assert caught.value.message == f"kernel 'kk' is not tuned in {tmp_path}/k.yaml."
    assert caught.value.hint == "Did you mean 'k'?"
    with pytest.raises(SpecError, match="this is a table of tuned kernels, not a spec file"):
        load_specs([tmp_path / "k.tuned.yaml"])
    tables = {name: Table(("m",), (row(300, 64, 2),)) for name in ("k", "other")}
    (tmp_path / "k.tuned.yaml").rename(tmp_path / "shared.tuned.yaml").write_text(
        table_text(tables)
    )
    told: list[str] = []
    assert points(expanded("table: shared.tuned.yaml", remarks=told)) == [(300, 64, 2)]
    assert told == [
        f"{tmp_path}/shared.tuned.yaml has rows for kernels that these specs lack: other."
    ]


ARTIFACT, OTHER = "0123456789abcdef" * 4, "f" * 64
FULL = Measured(12.31, 0.4, 31, "NVIDIA H100 80GB HBM3", "580.95.05", 1755, "2026-11-23")
TEXT = f"""\
# The variants of tuned kernels to use on each GPU; review and commit this file.
# Written by pallasc tune pick; comments are not kept.
schema: 1
kernels:
  matmul:
    by: [m, n, dtype]
    rows:
      - {{gpu: b200, key: [64, 4096, bf16], use: {{tile_m: 64}}, source: "tokamax 0.0.17"}}
      - {{gpu: h100-sxm, key: [64, 4096, bf16], use: {{tile_m: 64}}, artifact: {ARTIFACT}, \
us: 12.31, spread_percent: 0.4, rounds: 31, device: "NVIDIA H100 80GB HBM3", driver: "580.95.05", \
clock_mhz: 1755, date: "2026-11-23"}}
      - {{gpu: h100-sxm, key: [1024, 4096, bf16], use: {{tile_m: 128}}, artifact: {ARTIFACT}, \
us: 1.0e-05}}
  "no":
    by: []
    rows: []
"""
USE = {"tile_m": 64}
ROWS = (
    Row("h100-sxm", (1024, 4096, "bf16"), {"tile_m": 128}, ARTIFACT, "", Measured(1e-05)),
    Row("h100-sxm", (64, 4096, "bf16"), USE, ARTIFACT, "", FULL),
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
    assert [replace(row, place=None) for row in found["matmul"].rows] == sorted(ROWS, key=row_order)
    assert [str(row.place) for row in found["matmul"].rows] == [
        f"k.tuned.yaml:{line}:9" for line in (8, 9, 10)
    ]
    assert table_text(found) == TEXT


VALUES = [
    None, True, 0, -3, 2**63, 0.5, -1e-7, 1e22, "", "no", "Null", "y", "1", "1e5", "0x1f", "1:30",
    "2026-11-23", "a: b", "#x", '"', "\\", "é", "\n\t", "😀", "- a", "[64,128]", "~", ".inf",
]  # fmt: skip


def test_every_value_of_a_parameter_comes_back_as_it_was() -> None:
    rows = tuple(Row("h100-sxm", (value,), {"a": value}, ARTIFACT) for value in VALUES)
    found = parse_table(table_text({"k": Table(("m",), rows)}), "t")["k"].rows
    assert {repr(row.key) for row in found} == {repr((value,)) for value in VALUES}
    assert all(repr(row.use["a"]) == repr(row.key[0]) for row in found)


def test_a_table_that_is_not_there_has_no_rows(tmp_path: Path) -> None:
    assert read_table(tmp_path / "k.tuned.yaml") == {}
    (tmp_path / "k.tuned.yaml").write_text(table_text(TABLES))
    assert (tmp_path / "k.tuned.yaml").read_text() == TEXT
    assert table_text(read_table(tmp_path / "k.tuned.yaml", "k.tuned.yaml")) == TEXT


HEAD = "schema: 1\nkernels:\n  k:\n    by: [m]\n    rows:\n"
ROW = f"      - {{gpu: b200, key: [1], use: {{a: 1}}, artifact: {ARTIFACT}}}\n"


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
         "t:6:26: kernels.k.rows[0].key: 'key' and 'by' have different lengths: 2 and 1."),
        (HEAD + ROW.replace(ARTIFACT, "abc"),
         "t:6:54: kernels.k.rows[0].artifact: expected a digest of 64 hexadecimal digits, "
         "got 'abc'."),
        (HEAD + ROW.replace("}\n", ", rounds: 3}\n"),
         "t:6:9: kernels.k.rows[0]: the row has measurements, but no time."),
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
