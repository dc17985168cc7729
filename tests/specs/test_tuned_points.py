"""`tune` of a spec, and which points its table has built."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pallasc.errors import SpecError
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.tuned_table import Table, table_text
from pallasc.specs.loading.yaml_loader import load_specs, load_yaml
from pallasc.specs.spec import (
    Variant,
    spec_from_json,
    spec_to_json,
    variant_from_json,
    variant_to_json,
)
from pallasc.specs.tuning import Measured, Row, Tuning

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
    found = expanded("buckets: {m: [256, 1024]}\nround: down", row(256, 64, 2), row(1024, 64, 4))
    assert points(found) == [(300, 64, 2), (1000, 64, 2), (1024, 64, 4), (5000, 64, 4)]
    found = expanded("default: {tile: 64, stages: 2}", row(300, 128, 4), all_points=True)
    assert len(found) == 16
    assert len([v for v in found if v.tuning and (v.tuning.rows or v.tuning.is_default)]) == 5


def test_a_target_without_rows_has_all_points(expanded: Expanded) -> None:
    spec = SPEC.replace("[h100-sxm]", "[h100-sxm, b200]").replace(
        "[300, 1000, 1024, 5000]", "[300]"
    )
    remarks: list[str] = []
    found = expanded("", row(300, 64, 2), spec=spec, remarks=remarks)
    assert [v.target.name for v in found].count("b200") == 4
    assert len(found) == 5
    assert "has no rows for b200," in remarks[0]


def test_excluded_and_included_points_name_tuned_parameters(expanded: Expanded) -> None:
    spec = SPEC.replace("    tune:", "    exclude: [{tile: 128, stages: 4}]\n    tune:")
    assert (300, 128, 4) not in points(expanded(spec=spec))
    matrix = "matrix: {m: [300, 1000, 1024, 5000]}"
    (variant,) = expanded(spec=SPEC.replace(matrix, "include: [{tile: 64, m: 8, stages: 2}]"))
    assert variant.id == "k[m=8,tile=64,stages=2]@h100-sxm"
    with pytest.raises(SpecError) as caught:
        expanded("", row(300, 128, 4), spec=spec)
    assert "no point with m=300 has tile=128, stages=4: 'exclude' drops it." in str(caught.value)


def test_named_values_stand_by_their_names(expanded: Expanded) -> None:
    spec = SPEC.replace("tile: [64, 128]", "tile: [{$name: small, m: 64}, [1, 2]]")
    found = expanded("default: {tile: small, stages: 2}", spec=spec)
    assert found[0].id == "k[m=300,tile=small,stages=2]@h100-sxm"
    for text in ("[1, 2]", '"[1,2]"'):
        found = expanded(f"default: {{tile: {text}, stages: 2}}", spec=spec)
        assert found[0].id == "k[m=300,tile=[1,2],stages=2]@h100-sxm"


def test_tuned_specs_and_variants_survive_json(expanded: Expanded, tmp_path: Path) -> None:
    tune = "buckets: {m: [512, 8192]}\npad: {m: {x: 0}}\ndefault: {tile: 64, stages: 2}"
    (variant, *_) = expanded(tune)
    (spec,) = load_yaml(tmp_path / "k.yaml")
    back = spec_from_json(json.loads(json.dumps(spec_to_json(spec))))
    assert back == spec
    again = variant_from_json(json.loads(json.dumps(variant_to_json(variant))))
    assert again.request() == variant.request()
    assert again.tuning is None


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
         "the row says what to use for tile, and tile, stages are tuned."),
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
    assert caught.value.message == "the rows of k are by m, and its spec says by n, m."
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
        f"{tmp_path}/shared.tuned.yaml: the rows of other are of no kernel of these specs."
    ]
