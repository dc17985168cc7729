"""The published JSON schema, against the file in docs and against the loader."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from pallasc.specs.loading.schema import FILE_FIELDS, KERNEL_FIELDS, json_schema, json_schema_text

ROOT = Path(__file__).parents[2]
VALIDATOR = jsonschema.Draft202012Validator(json_schema())


def errors(data: Any) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(data)]


def test_the_file_in_docs_is_fresh_and_is_a_schema() -> None:
    assert (ROOT / "docs/spec.schema.json").read_text("utf-8") == json_schema_text()
    jsonschema.Draft202012Validator.check_schema(json_schema())


def test_every_field_is_in_the_schema_with_its_meaning() -> None:
    schema = json_schema()
    kernels = schema["properties"]["kernels"]["items"]["properties"]
    assert list(schema["properties"]) == [field.name for field in FILE_FIELDS]
    assert list(kernels) == [field.name for field in KERNEL_FIELDS]
    assert all(kernels[field.name]["description"] == field.doc for field in KERNEL_FIELDS)


def test_the_library_is_valid() -> None:
    files = resources.files("pallasc.specs.library").iterdir()
    specs = [file for file in files if ".yaml" in file.name]
    assert specs
    assert [errors(yaml.safe_load(file.read_text("utf-8"))) for file in specs] == [[]] * len(specs)


@pytest.mark.parametrize(
    "kernel",
    [
        {"args": {"x": "{dtype}[{m}, 4 , {m // 2}]", "y": None, "z": [{"k": "i4[]"}, "{w}"]}},
        {"args": ["bfloat16[8]", "float8_e4m3fn[ ]"]},
        {"static": {"a": {"$call": "m:f", "x": [{"$ref": "f.py:A.b"}]}, "b": [1, None, "{m}"]}},
        {"matrix": {"m": [1, "a", None, True, 0.5]}, "exclude": [{"m": 1}]},
        {"matrix": {"t": [{"$name": "small", "m": 1, "l": [1]}, [1, 2], {"$ref": "math:pi"}]}},
        {"matrix": {"$file": "rows.json", "m": [1]}, "include": [{"t": {"m": 1}}]},
        {"matrix": {"$file": {"path": "r.json", "rows": ["a", 0], "select": {"m": "a.b"}}}},
        {"matrix": {"$file": {"path": "r.json", "where": {"a": [1, 2]}, "skip": ["x"]}}},
        {"static": {"a": {"$ref": "m:Enum.{mode}"}, "b": {"$call": "{f}", "x": "{t.m}"}}},
        {"budget": {"registers": "{r}", "spill_bytes": 0}, "tolerance": {"rtol": 0.1}},
        {"budget": {"registers": "+8", "cubin_bytes": "+2.5 %", "occupancy": ">= baseline"}},
        {"check": {"m": 1, "$seed": 7, "$tolerance": {"atol": "{m}"}, "$args": {"x": "f32[{m}]"}}},
    ],
)
def test_the_schema_accepts_what_the_loader_accepts(kernel: dict[str, Any]) -> None:
    base = {"name": "k", "entry": "json:loads", "args": {}}
    data = {"schema": 1, "kernels": [{**base, **kernel}]}
    assert errors(data) == []
