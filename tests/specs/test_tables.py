"""Matrices from a file."""

import json
from pathlib import Path
from typing import Any

import pytest

from pallasc.errors import SpecError
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml
from pallasc.specs.spec import Variant, spec_from_json, spec_to_json

ROWS = [
    {"m": 8, "dtype": "bf16", "cfg": {"tile": 64, "warps": [1, 2]}, "device": "H100"},
    {"m": 16, "dtype": "bf16", "cfg": {"tile": 128, "warps": [1, 2]}, "device": "H100"},
    {"m": 16, "dtype": "f16", "cfg": {"tile": 128, "warps": [1, 2]}, "device": "A100"},
]


@pytest.fixture
def expanded(tmp_path: Path) -> Any:
    """Return what expands a kernel with this matrix; the tables lie in a folder of the spec's."""
    folder = tmp_path / "tuned"
    folder.mkdir()
    (folder / "rows.json").write_text(json.dumps(ROWS, indent="\t"))
    (folder / "minified.json").write_text(json.dumps({"gemm": [{"h100": ROWS}]}))
    sizes = {"version": "3.4.0", "1": {"tile": 16}, "4096": {"tile": 64}}
    (folder / "sizes.yaml").write_text(json.dumps(sizes))
    (folder / "plain.json").write_text('{"16": 4, "name \\ud83d\\ude00": 1}')

    def expanded(matrix: Any, args: str = "f32[{m}]", **fields: Any) -> list[Variant]:
        kernel = {"name": "k", "entry": "json:loads", "args": {"x": args}, "matrix": matrix}
        spec = {"schema": 1, "targets": ["sm_90a"], "kernels": [{**kernel, **fields}]}
        (tmp_path / "spec.yaml").write_text(json.dumps(spec))
        loaded = load_yaml(tmp_path / "spec.yaml")
        again = [spec_from_json(json.loads(json.dumps(spec_to_json(spec)))) for spec in loaded]
        assert [v.id for v in expand(again)] == [v.id for v in expand(loaded)]
        return expand(loaded)

    return expanded


def points(variants: list[Variant]) -> list[dict[str, Any]]:
    return [dict(variant.params) for variant in variants]


def test_rows_are_taken_whole_by_field_by_path_or_by_key(expanded: Any) -> None:
    static = {"a": "{dtype}", "b": "{cfg.tile}", "c": "{device}"}
    found = expanded({"$file": "tuned/rows.json"}, static=static)
    assert [variant.static["b"] for variant in found] == [64, 128, 128]
    assert found[0].id == "k[m=8,dtype=bf16,cfg={tile:64,warps:[1,2]},device=H100]@h100-sxm"
    select = {"m": "cfg.tile", "w": "cfg.warps.1", "d": "device"}
    table = {"path": "tuned/minified.json", "rows": "gemm.0.h100", "select": select}
    found = expanded({"$file": table}, static={"w": "{w}", "d": "{d}"}, exclude=[{"d": "A100"}])
    assert points(found)[1] == {"m": 128, "w": 2, "d": "H100"}
    table = {"path": "tuned/rows.json", "select": {"row": "$value"}}
    found = expanded({"$file": table}, "{row.dtype}[{row.m}]", static={"row": "{row}"})
    assert [str(variant.args["x"]) for variant in found] == ["bf16[8]", "bf16[16]", "f16[16]"]
    assert [variant.static["row"] for variant in found] == ROWS
    table = {"path": "tuned/plain.json", "select": {"m": "$value", "name": "$key"}}
    found = expanded({"$file": table}, static={"name": "{name}"})
    assert points(found) == [{"m": 4, "name": 16}, {"m": 1, "name": "name \U0001f600"}]
    select = {"m": "$key", "tile": "tile"}
    table = {"path": "tuned/sizes.yaml", "skip": ["version"], "select": select}
    found = expanded({"$file": table}, static={"tile": "{tile}"})
    assert [variant.id for variant in found] == [
        "k[m=1,tile=16]@h100-sxm", "k[m=4096,tile=64]@h100-sxm",
    ]  # fmt: skip


def test_only_values_count_and_not_where_they_come_from(expanded: Any, tmp_path: Path) -> None:
    table = {"path": "tuned/rows.json", "rows": "bf16", "select": ["m"]}
    (tmp_path / "tuned/rows.json").write_text(json.dumps({"bf16": ROWS[:2]}))
    from_file = [variant.request() for variant in expanded({"$file": table})]
    changed = {"bf16": ROWS[:2], "f8": [{"m": 4096}]}
    (tmp_path / "tuned/rows.json").write_text(json.dumps(changed))
    assert [variant.request() for variant in expanded({"$file": table})] == from_file
    assert [variant.request() for variant in expanded({"m": [8, 16]})] == from_file
    assert "rows.json" not in repr(from_file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"m": NaN}]', "rows.json: row 0: nan is not allowed in a spec."),
        ('[{"m": -Infinity}]', "rows.json: row 0: -inf is not allowed in a spec."),
        ('[{"m": 8', "rows.json:1:9: not JSON: Expecting ',' delimiter."),
        ('[{"m": 1e400}]', "rows.json: row 0: inf is not allowed in a spec."),
        ('[{"m": "\\ud800"}]', "rows.json: not JSON: 'utf-8' codec can't encode character"),
        ("9" * 5000, "rows.json: not JSON: Exceeds the limit (4300 digits)"),
        ('[{"m": {"a": [{"$ref": "os:system"}]}}]', "'$ref' is not allowed here."),
        ("[]", "there are no rows in "),
        ("[[1, 2]]", "expected a row, got a list."),
        ('[{"m": 1}, {"k": 1}]', "row 1: the row has no field 'm'."),
        (
            '[{"block": 1}, {"blok": 1}]',
            "row 1: the row has no field 'block'.\n  Did you mean 'blok'?",
        ),
        ('[{"a b": 1}]', "row 0.a b: expected the name of a parameter, got 'a b'."),
        ('[{"target": 1}]', "row 0.target: expected the name of a parameter, got 'target'."),
        ("3", "expected rows, a list or a mapping of them, got 3."),
        ("[" * 100_000, "rows.json: not JSON: "),
    ],
)
def test_what_a_table_may_not_be(content: str, message: str, expanded: Any, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(content)
    with pytest.raises(SpecError) as caught:
        expanded({"$file": "rows.json"})
    assert message in str(caught.value)
    assert str(tmp_path / "rows.json") in str(caught.value)
