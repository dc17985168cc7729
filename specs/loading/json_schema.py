"""The JSON schema of spec files, made from the tables that the loaders read through.

Editors complete and check specs with it. What depends on two places at once (an unknown
parameter, a duplicate variant) is for the loader alone.
"""

from __future__ import annotations

import json

from pallasc.specs.dtypes import ALIASES, DTYPES
from pallasc.specs.fields import Schema
from pallasc.specs.loading.kernel_fields import FILE
from pallasc.specs.loading.parameter_fields import VALUE_NAME, EntryKind

_BRACES = r"\{[^{}]+\}"
_LAYOUT = r"(\{\s*[0-9]+\s*(,\s*[0-9]+\s*)*\})?"


def json_schema() -> Schema:
    """Return the schema of spec files, draft 2020-12."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "pallasc spec",
        "description": "Kernels that pallasc compiles ahead of time.",
        **FILE.schema(),
        "$defs": {"array": _array(), "static": _static(), "value": _value()},
    }


def json_schema_text() -> str:
    """Return the schema as the text of `docs/spec.schema.json`."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _array() -> Schema:
    dtypes = "|".join(sorted([*DTYPES, *ALIASES], key=lambda name: (-len(name), name)))
    dimension = rf"\s*([0-9]+|{_BRACES})\s*"
    dims = rf"\s*|{dimension}(,{dimension})*"
    return {
        "description": 'An array, "bf16[{m}, 4096]"; null; lists and mappings of them; $call.',
        "anyOf": [
            {"type": "null"},
            {"type": "string", "pattern": rf"^\s*({dtypes}|{_BRACES})\s*\[({dims})\]{_LAYOUT}\s*$"},
            {"type": "string", "pattern": f"^{_BRACES}$"},
            {"type": "array", "items": {"$ref": "#/$defs/array"}},
            {
                "type": "object",
                "propertyNames": {"pattern": r"^(?!\$)"},
                "additionalProperties": {"$ref": "#/$defs/array"},
            },
            {
                "type": "object",
                "properties": {"$tuple": {"type": "array", "items": {"$ref": "#/$defs/array"}}},
                "required": ["$tuple"],
                "additionalProperties": False,
            },
            {
                "type": "object",
                "properties": {"$call": EntryKind(template=True).schema()},
                "propertyNames": {"pattern": r"^(\$call$|(?!\$))"},
                "required": ["$call"],
                "additionalProperties": {
                    "anyOf": [{"$ref": "#/$defs/array"}, {"$ref": "#/$defs/static"}]
                },
            },
        ],
    }


def _static() -> Schema:
    entry = EntryKind(template=True).schema()
    return {
        "description": "Plain data; $call builds a value, $ref takes an attribute.",
        "anyOf": [
            {"type": ["null", "boolean", "number", "string"]},
            {"type": "array", "items": {"$ref": "#/$defs/static"}},
            {
                "type": "object",
                "properties": {"$call": entry, "$ref": entry},
                "propertyNames": {"pattern": r"^(\$call$|\$ref$|(?!\$))"},
                "additionalProperties": {"$ref": "#/$defs/static"},
                "if": {"required": ["$ref"]},
                "then": {"maxProperties": 1},
            },
        ],
    }


def _value() -> Schema:
    entry = EntryKind().schema()
    return {
        "description": "A value of a parameter; $name names a mapping.",
        "anyOf": [
            {"type": ["null", "boolean", "number", "string"]},
            {"type": "array", "items": {"$ref": "#/$defs/value"}},
            {
                "type": "object",
                "properties": {"$name": VALUE_NAME.schema(), "$call": entry, "$ref": entry},
                "propertyNames": {"pattern": r"^(\$name$|\$call$|\$ref$|(?!\$))"},
                "additionalProperties": {"$ref": "#/$defs/value"},
            },
        ],
    }
