"""Make docs/spec.schema.json from the fields of spec files: a JSON schema of draft 2020-12."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from pallasc.specs.arrays import ALIASES, DTYPES
from pallasc.specs.canonical import NAME
from pallasc.specs.fields import DATA, NODES, VALUE_NAME, Field, Kind
from pallasc.specs.loading.schema import ARRAYS, FILE, IN_CALL, KERNEL_FIELDS, PROGRAM, STATIC

Schema = dict[str, Any]
"""A fragment of a JSON schema."""

_TREES: dict[str, tuple[Kind, str]] = {
    "array": (ARRAYS, 'An array, "bf16[{m}, 4096]"; null; lists and mappings of them; $call.'),
    "argument": (IN_CALL, "Arrays, or plain data, in the arguments of $call."),
    "static": (STATIC, "Plain data; $call builds a value, $ref takes an attribute."),
    "value": (DATA, "A value of a parameter; $name names a mapping."),
}
"""Name and description of the definition of each tree."""

_FURTHER_KEYS = {"value": {NAME: VALUE_NAME}}
"""Further keys of the mappings in a tree."""

_BRACES = r"\{[^{}]+\}"
_LAYOUT = r"(\{\s*[0-9]+\s*(,\s*[0-9]+\s*)*\})?"


def json_schema() -> Schema:
    """Return the schema of spec files."""
    file = _schema(FILE)
    # The loader reads these later. Fields of a kernel may be in the defaults.
    kernel = [field._replace(required=field.name == "name") for field in KERNEL_FIELDS]
    file["properties"]["kernels"]["items"] = _record(*kernel)
    file["properties"]["programs"]["items"] = _schema(PROGRAM)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "pallasc spec",
        "description": "Kernels that pallasc compiles ahead of time.",
        **file,
        "anyOf": [{"required": ["kernels"]}, {"required": ["programs"]}],
        "$defs": {name: _definition(name, *kind.form[1:]) for name, (kind, _) in _TREES.items()},
    }


def json_schema_text() -> str:
    """Return the schema as the text of `docs/spec.schema.json`."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _schema(kind: Kind) -> Schema:
    """Return the schema of the values that a kind accepts."""
    form, *data = kind.form
    return _FORMS[form](*data)


def _leaf(type_: Any, known: Iterable[str]) -> Schema:
    schema = msgspec.json.schema(type_)
    return {"anyOf": [{"enum": list(known)}, schema]} if known else schema


def _filled(kind: Kind) -> Schema:
    return {"anyOf": [_schema(kind), {"type": "string", "pattern": _BRACES}]}


def _any(*kinds: Kind) -> Schema:
    return {"anyOf": [_schema(kind) for kind in kinds]}


def _list(item: Kind, minimum: int, repeats: bool) -> Schema:
    schema = {"type": "array", "items": _schema(item), "uniqueItems": not repeats}
    return {**schema, "minItems": minimum} if minimum else schema


def _map(key: Kind, item: Kind, minimum: int, special: Iterable[Field]) -> Schema:
    names = [field.name for field in special]
    keys = _schema(key)
    return {
        "type": "object",
        "propertyNames": {"anyOf": [{"enum": names}, keys]} if names else keys,
        "additionalProperties": _schema(item),
        **({"properties": _properties(special)} if names else {}),
        **({"minProperties": minimum} if minimum else {}),
    }


def _record(*fields: Field) -> Schema:
    required = [field.name for field in fields if field.required]
    schema = {
        "type": "object",
        "properties": _properties(fields),
        "additionalProperties": False,
    }
    return {**schema, "required": required} if required else schema


def _properties(fields: Iterable[Field]) -> Schema:
    return {field.name: {"description": field.doc, **_schema(field.kind)} for field in fields}


def _array() -> Schema:
    dtypes = "|".join(sorted([*DTYPES, *ALIASES], key=lambda name: (-len(name), name)))
    dimension = rf"\s*(0|[1-9][0-9]*|{_BRACES})\s*"
    array = rf"\s*({dtypes}|{_BRACES})\s*\[(\s*|{dimension}(,{dimension})*)\]{_LAYOUT}\s*"
    return {"type": ["string", "null"], "pattern": f"^({array}|{_BRACES})$"}


def _tree(*data: Any) -> Schema:
    """Return the reference to a tree's definition, which is recursive."""
    name = next(name for name, (kind, _) in _TREES.items() if kind.form[1:] == data)
    return {"$ref": f"#/$defs/{name}"}


def _definition(
    name: str, item: Kind, entry: Kind, nodes: tuple[str, ...], in_call: Kind | None
) -> Schema:
    items: Schema = {"$ref": f"#/$defs/{name}"}
    arrays: Schema = {"type": "array", "items": items}
    further = {key: _schema(kind) for key, kind in _FURTHER_KEYS.get(name, {}).items()}
    keys = {key: _schema(entry) if key in NODES else arrays for key in nodes} | further
    names = "".join(rf"\{key}$|" for key in keys)
    mapping: Schema = {
        "type": "object",
        "properties": keys,
        "propertyNames": {"pattern": rf"^({names}(?!\$))"},
        "if": {"required": ["$call"]},
        "then": {"additionalProperties": _schema(in_call) if in_call else items},
        "else": {"additionalProperties": items},
        "dependentSchemas": {
            key: {"maxProperties": 1 + len(further)} for key in ("$ref", "$tuple") if key in nodes
        },
    }
    return {"description": _TREES[name][1], "anyOf": [_schema(item), arrays, mapping]}


_FORMS: dict[str, Callable[..., Schema]] = {
    "leaf": _leaf,
    "filled": _filled,
    "list": _list,
    "any": _any,
    "map": _map,
    "record": _record,
    "tree": _tree,
    "array": _array,
}
"""The function that makes the schema of each form."""
