"""Values of parameters, and what determines a compilation."""

import json
import pickle
from typing import Any

import pytest
from msgspec import structs

from pallasc.errors import Location, SpecError
from pallasc.specs.arrays import ArraySpec
from pallasc.specs.canonical import label_of
from pallasc.specs.gpus import MODELS
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import parse_yaml
from pallasc.specs.spec import Budget, Variant, spec_from_json, spec_to_json

SMALL = {"$name": "small", "tile_m": 64, "tile_n": 128}
LARGE = {"$name": "large", "tile_m": 128, "tile_n": 256}


def expanded(**fields: Any) -> list[Variant]:
    """Return the variants of a kernel, which go between processes unharmed."""
    kernel = {"name": "k", "entry": "json:loads", "args": {"x": "f32[4]"}, **fields}
    data = {"schema": 1, "targets": ["sm_90a"], "kernels": [kernel]}
    specs = parse_yaml(json.dumps(data))
    parsed = [spec_from_json(json.loads(json.dumps(spec_to_json(spec)))) for spec in specs]
    found = expand(parsed)
    assert [v.request() for v in found] == [v.request() for v in expand(specs)]
    for variant in found:
        again = pickle.loads(pickle.dumps(variant))
        assert structs.asdict(again) == {**structs.asdict(variant), "places": {}}
    return found


def ids(variants: list[Variant]) -> list[str]:
    return [variant.id for variant in variants]


@pytest.mark.parametrize(
    ("value", "label"),
    [
        ([64, 128], "[64,128]"),
        ({"tile_n": 128, "tile_m": 64}, "{tile_m:64,tile_n:128}"),
        ({"a": [1, {"b": None}], "c": True}, "{a:[1,{b:null}],c:true}"),
        (SMALL, "small"),
        ({"long": "x" * 60}, "#bc34839a"),
    ],
)
def test_a_value_has_a_short_stable_label(value: Any, label: Any) -> None:
    assert label_of(value) == label


def test_fields_of_a_mapping_fill_templates() -> None:
    found = expanded(
        args={"x": "f32[{tiles.tile_m}, {tiles.tile_n // 2}]"},
        static={"name": "m{tiles.tile_m}", "all": "{tiles}", "k": "{k}"},
        matrix={"tiles": [SMALL, LARGE], "k": [1, 2]},
        budget={"registers": "{tiles.tile_m}"},
        mesh={"x": "{tiles.tile_n // 64}"},
    )
    assert ids(found) == [
        f"k[tiles={name},k={k}]@h100-sxm" for name in ("small", "large") for k in (1, 2)
    ]
    last = found[-1]
    assert str(last.args["x"]) == "f32[128, 128]"  # type: ignore[call-overload]
    assert last.static == {"all": {"tile_m": 128, "tile_n": 256}, "k": 2, "name": "m128"}
    assert (last.budget["registers"], last.mesh) == (128, (("x", 4),))


def test_a_name_is_no_part_of_what_is_compiled() -> None:
    static = {"tiles": "{tiles}"}
    unnamed = {key: value for key, value in SMALL.items() if key != "$name"}
    named, plain = (
        expanded(static=static, matrix={"tiles": [value]})[0] for value in (SMALL, unnamed)
    )
    (written,) = expanded(static={"tiles": unnamed})
    assert named.request() == plain.request() == written.request()
    assert named.id != plain.id


def test_exclude_and_include_take_a_name_or_the_value() -> None:
    matrix = {"tiles": [SMALL, LARGE], "k": [1, 2]}
    fields: dict[str, Any] = {"static": {"a": "{tiles.tile_m}", "b": "{k}"}, "matrix": matrix}
    for value in ("small", SMALL):
        found = expanded(**fields, exclude=[{"tiles": value}], include=[{"tiles": value, "k": 9}])
        assert ids(found) == [
            "k[tiles=large,k=1]@h100-sxm",
            "k[tiles=large,k=2]@h100-sxm",
            "k[tiles=small,k=9]@h100-sxm",
        ]
        assert found[-1].static == {"a": 64, "b": 9}


def test_values_may_be_calls_and_references() -> None:
    matrix = {"make": [{"$name": "pi", "$ref": "json:dumps"}, {"$call": "json:loads", "s": "1"}]}
    found = expanded(static={"make": "{make}"}, matrix=matrix)
    assert [variant.static["make"] for variant in found] == [
        {"$ref": "json:dumps"},
        {"$call": "json:loads", "s": "1"},
    ]
    with pytest.raises(SpecError, match=r"matrix\.make\[0\]\.\$ref: 'json' has no 'dumpz'"):
        expanded(static={"make": "{make}"}, matrix={"make": [{"$ref": "json:dumpz"}]})


@pytest.mark.parametrize("node", ["$ref", "$call"])
def test_templates_in_entry_points_are_filled_and_looked_for(node: str) -> None:
    static = {"f": {node: "{module}:JSON{kind}.{method}"}}
    fields = {"module": ["json.decoder"], "kind": ["Decoder"], "method": ["decode"]}
    (found,) = expanded(static=static, matrix=fields)
    assert found.static == {"f": {node: "json.decoder:JSONDecoder.decode"}}
    for name, message in (
        ("module", "'json' has no submodule 'decoderz'"),
        ("kind", "'json.decoder' has no 'JSONDecoderz'"),
    ):
        wrong = {**fields, name: [f"{fields[name][0]}z"]}
        with pytest.raises(SpecError, match=rf"k\.static\.f\.\{node}.*{message}"):
            expanded(static=static, matrix=wrong)


def test_values_may_hold_arrays_and_braces_and_must_give_an_id_that_can_be_chosen() -> None:
    cache = {"$name": "paged", "keys": ["i8[128, 64]", None], "table": "i32[4]", "text": "f32[2]"}
    found = expanded(args={"cache": "{cache}"}, matrix={"cache": [None, cache]})
    own = {key: value for key, value in cache.items() if key != "$name"}
    assert [v.request()["args"] for v in found] == [{"cache": None}, {"cache": own}]
    found = expanded(static={"a": "{v.text}"}, matrix={"v": [{"text": "{not a template"}]})
    assert found[0].static == {"a": "{not a template"}
    with pytest.raises(SpecError, match="has 3014 characters; an id has at most 900"):
        expanded(static={"a": "{a}"}, matrix={"a": ["x" * 3000]})


BASE = Variant(
    name="double",
    params=(("m", 8), ("kind", "fast")),
    target=MODELS["h100-sxm"],
    entry="kernels.py:double",
    args={"x": ArraySpec("f32", (8,)), "y": None, "z": [ArraySpec("i4", ()), {"w": None}]},
    static={"scale": {"$call": "math:floor", "x": 1.5}, "flag": True},
    reference=None,
    tolerance=None,
    budget=Budget(),
    files=("b.json", "a.json"),
    location=Location("specs.yaml", 3, 5),
    base_dir="/somewhere",
)


def test_id_names_kernel_parameters_and_model() -> None:
    assert BASE.id == "double[m=8,kind=fast]@h100-sxm"
    assert structs.replace(BASE, params=()).id == "double@h100-sxm"
    other = structs.replace(BASE, params=(("a", None), ("b", True)))
    assert other.id == "double[a=null,b=true]@h100-sxm"


def test_arrays_are_listed_with_their_paths() -> None:
    found = [(path, str(array)) for path, array in BASE.arrays()]
    assert found == [("x", "f32[8]"), ("z.0", "i4[]")]
