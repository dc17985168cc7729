"""The published JSON schema, against the file in docs and against the loader."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from pallasc.specs.loading.json_schema import json_schema, json_schema_text
from pallasc.specs.loading.kernel_fields import FILE_FIELDS, KERNEL_FIELDS

ROOT = Path(__file__).parents[2]
WRONG = Path(__file__).parent / "wrong"
VALIDATOR = jsonschema.Draft202012Validator(json_schema())

LOADER_ONLY = {
    "args_call_dtype",
    "args_call_missing",
    "args_call_parameter",
    "array_expression_becomes_negative",
    "array_expression_divides_by_zero",
    "array_expression_with_call",
    "array_parameter_dtype_unknown",
    "array_parameter_is_text",
    "budget_parameter_is_text",
    "entry_absolute",
    "entry_file_missing",
    "entry_function_missing",
    "entry_module_beside_the_spec",
    "entry_module_function_missing",
    "entry_module_missing",
    "entry_submodule_missing",
    "exclude_everything",
    "exclude_matches_nothing",
    "exclude_unknown_parameter",
    "file_absolute",
    "file_missing",
    "include_lacks_parameter",
    "include_repeats_a_point",
    "include_unknown_parameter",
    "kernel_without_entry",
    "kernels_twice",
    "matrix_parameter_unused",
    "matrix_value_called_as_another",
    "matrix_value_is_list",
    "matrix_value_without_the_field",
    "model_built_in",
    "model_unknown_arch",
    "model_unknown_like",
    "model_without_arch",
    "parameter_unknown",
    "parameter_without_matrix",
    "reference_missing",
    "static_brace_without_partner",
    "static_call_of_nothing",
    "static_given_as_array_too",
    "static_ref_template_of_nothing",
    "static_ref_template_without_colon",
    "static_unknown_parameter",
    "table_gives_a_parameter_of_the_matrix",
    "table_missing",
    "table_of_another_kind",
    "table_parameter_unused",
    "table_path_is_no_rows",
    "table_row_is_text",
    "table_row_without_the_field",
    "table_rows_repeat_a_point",
    "table_skips_nothing",
    "table_where_fits_nothing",
    "table_where_unknown_field",
    "table_with_a_node",
    "table_without_the_path",
    "target_family",
    "target_same_model_twice",
    "target_unknown",
    "target_without_suffix",
    "targets_in_defaults_too",
    "targets_missing",
}
"""Mistakes that depend on two places, on the file system or on what is installed."""


def errors(data: Any) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(data)]


def test_the_file_in_docs_is_fresh() -> None:
    assert (ROOT / "docs/spec.schema.json").read_text("utf-8") == json_schema_text()


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())


def test_every_field_is_in_the_schema_with_its_meaning() -> None:
    schema = json_schema()
    kernels = schema["properties"]["kernels"]["items"]["properties"]
    assert list(schema["properties"]) == [field.name for field in FILE_FIELDS]
    assert list(kernels) == [field.name for field in KERNEL_FIELDS]
    assert all(kernels[field.name]["description"] == field.doc for field in KERNEL_FIELDS)


LIBRARY = sorted(
    item.name for item in resources.files("pallasc.specs.library").iterdir() if ".yaml" in item.name
)


@pytest.mark.parametrize("name", LIBRARY)
def test_the_library_is_valid(name: str) -> None:
    text = resources.files("pallasc.specs.library").joinpath(name).read_text("utf-8")
    assert errors(yaml.safe_load(text)) == []


@pytest.mark.parametrize(
    "name",
    sorted(p.stem for p in WRONG.glob("*.yaml") if not p.name.startswith(("yaml_", "file_e"))),
)
def test_the_schema_refuses_what_the_loader_refuses(name: str) -> None:
    found = errors(yaml.safe_load((WRONG / f"{name}.yaml").read_text("utf-8")))
    assert bool(found) is (name not in LOADER_ONLY), found


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
    ],
)
def test_the_schema_accepts_what_the_loader_accepts(kernel: dict[str, Any]) -> None:
    base = {"name": "k", "entry": "json:loads", "args": {}}
    data = {"schema": 1, "kernels": [{**base, **kernel}]}
    assert errors(data) == []
