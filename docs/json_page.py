"""Make docs/json.md and docs/json.schema.json from docs/json.yaml and classes."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import itertools
import json
import re
import textwrap
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import yaml

SOURCE = Path(__file__).resolve().with_name("json.yaml")
_WIDTH = 100
_COLUMN = 24
_LONG = 6
_AS = "as "
_MARKS = {"list": "[]", "map": "{}"}

Schema = dict[str, Any]
_PLAIN: Schema = {
    "items": {"not": {"type": "object"}},
    "additionalProperties": {"not": {"type": "object"}},
}
"""JSON schema of a field whose type is not known: scalars, and lists and mappings of scalars."""


@dataclass(frozen=True)
class Field:
    """A field of an object.

    Attributes:
        text: its description.
        kind: "object", "list" or "map" (of objects), "any", or "" (no objects).
        fields: fields of the objects.
        optional: True if the field may be missing.
        values: JSON schema of the values, if their type is known and has no objects.
    """

    text: str = ""
    kind: str = ""
    fields: Mapping[str, Field] = field(default_factory=dict)
    optional: bool = False
    values: Schema = field(default_factory=dict, compare=False, repr=False)


_VERSION = Field(values={"const": 1})


def outputs() -> dict[str, Mapping[str, Field]]:
    """Return the fields of each output, by command."""
    return {name: _fields(value) for name, value in _source()["outputs"].items()}


def _source() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(SOURCE.read_text(encoding="utf-8"))
    return data


@functools.cache
def _types() -> dict[str, Schema]:
    """Return the JSON schemas of fields that are in no class, by name."""
    found: dict[str, Schema] = {}
    for kind, names in _source()["types"].items():
        schema: Schema = {"type": [kind, "null"]}
        if kind == "strings":
            schema = {"type": ["array", "null"], "items": {"type": "string"}}
        found |= dict.fromkeys(names.split(), schema)
    return found


def _fields(data: Mapping[str, Any]) -> dict[str, Field]:
    found: dict[str, Field] = {}
    for names, value in data.items():
        if names == "$from":
            for path in [value] if isinstance(value, str) else value:
                found |= {k: v for k, v in _class_fields(path).items() if k not in found}
        elif not names.startswith("$"):
            for name in names.split(", "):
                _add(found, name, value)
    return found


def _add(found: dict[str, Field], name: str, value: Any) -> None:
    key = name.rstrip("?*")
    if value is False:
        del found[key]
        return
    known = found.get(key, Field())
    own = known if value is None else _field(value)
    if not own.kind and not known.kind:
        own = replace(own, values=known.values)
    if not (own.kind or own.values):
        own = replace(own, values=_types().get(key, {}))
    if "*" in name:
        own = replace(own, kind="any", fields={})
    found[key] = replace(own, text=own.text or known.text, optional="?" in name)


def _field(value: Any) -> Field:
    if isinstance(value, list):
        return replace(_field(value[0]), kind="list")
    if not isinstance(value, dict):
        return Field(value or "")
    each = value.get("$each")
    return Field(value.get("$", ""), "map" if each else "object", _fields(each or value))


def _class_fields(path: str) -> dict[str, Field]:
    module, _, name = path.partition(":")
    return _fields_of(getattr(importlib.import_module(module), name))


def _fields_of(kind: Any) -> dict[str, Field]:
    names = getattr(kind, "__struct_fields__", getattr(kind, "_fields", None))
    if names is None:
        names = [each.name for each in dataclasses.fields(kind)]
    texts, types = _texts(kind), typing.get_type_hints(kind)
    return {name: _typed(texts.get(name, ""), types[name]) for name in names}


def _texts(kind: type) -> dict[str, str]:
    """Return the texts in the docstring's section `Attributes`."""
    section = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")[2]
    found = {}
    for item in re.split(r"\n(?=\S)", textwrap.dedent(section)):
        names, _, text = " ".join(item.split()).partition(": ")
        text = re.sub(r"^see `\w+`\.$", "", text)
        text = text.replace("None", "null").replace("True", "true").replace("`", "")
        found |= dict.fromkeys(names.split(", "), text.removesuffix("."))
    return found


def _typed(text: str, kind: Any) -> Field:
    if dataclasses.is_dataclass(kind) or hasattr(kind, "__struct_fields__"):
        return Field(text, "object", _fields_of(kind))
    inner = [_typed(text, argument) for argument in typing.get_args(kind)]
    found = next((own for own in inner if own.kind), None)
    if found is None:
        return Field(text, values=_values(kind))
    return replace(found, kind="list") if typing.get_origin(kind) in (list, tuple) else found


def _values(kind: Any) -> Schema:
    """Return the JSON schema of a type without objects, {} if JSON has no such type."""
    try:
        return msgspec.json.schema(kind)
    except TypeError:
        return {}


def json_schema(*, strict: bool = False) -> Schema:
    """Return the JSON schema of each output, by command, and of the objects in them.

    A strict schema allows only the described fields.
    """
    definitions = {"plain": _PLAIN}
    whole = {
        f"pallasc {name}": _object_schema({"schema": _VERSION, **fields}, strict, definitions)
        for name, fields in outputs().items()
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Outputs of pallasc with --json",
        "$defs": whole | definitions,
    }


def json_schema_text() -> str:
    """Return the schema as the text of `docs/json.schema.json`, a line per definition."""
    schema = json_schema()
    definitions = schema.pop("$defs")
    lines = [f"{json.dumps(name)}: {json.dumps(one)}" for name, one in definitions.items()]
    start = json.dumps(schema, indent=2).removesuffix("\n}")
    return f'{start},\n  "$defs": {{\n    ' + ",\n    ".join(lines) + "\n  }\n}\n"


def _object_schema(
    fields: Mapping[str, Field], strict: bool, definitions: dict[str, Schema]
) -> Schema:
    return {
        "type": ["object", "null"],
        "properties": {
            name: _field_schema(name, own, strict, definitions) for name, own in fields.items()
        },
        "required": [name for name, own in fields.items() if not own.optional],
        **({"additionalProperties": False} if strict else {}),
    }


def _field_schema(name: str, own: Field, strict: bool, definitions: dict[str, Schema]) -> Schema:
    text = {"description": own.text} if own.text else {}
    if own.kind in ("", "any"):
        return text | (own.values or ({} if own.kind else {"$ref": "#/$defs/plain"}))
    one = _object_schema(own.fields, strict, definitions)
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    place = next(each for each in names if definitions.setdefault(each, one) == one)
    reference = {"$ref": f"#/$defs/{place}"}
    if own.kind == "list":
        return text | {"type": ["array", "null"], "items": reference}
    if own.kind == "map":
        return text | {"type": ["object", "null"], "additionalProperties": reference}
    return text | reference


def json_page(note: str) -> str:
    """Return the page."""
    seen: dict[str, str] = {}
    parts = ["# JSON output", note, _source()["introduction"].rstrip()]
    for name, fields in outputs().items():
        lines = _object(Field(kind="object", fields=fields), f"pallasc {name}", seen)
        parts.append("\n".join([f"## pallasc {name}\n\n```text", *lines, "```"]))
    return "\n\n".join(parts) + "\n"


def _object(whole: Field, place: str, seen: dict[str, str], indent: str = "") -> list[str]:
    """Return the lines of an object; a long one is shown only once."""
    lines = []
    for own, group in itertools.groupby(whole.fields.items(), key=lambda item: item[1]):
        mark = _MARKS.get(own.kind, "") + "?" * own.optional
        names = [name for name, _ in group]
        inner = _object(own, f"{names[0]} of {place}", seen, f"{indent}  ")
        text = own.text
        if len(inner) == 1 and inner[0].startswith(_AS):
            text, inner = "; ".join(filter(None, [text, inner[0]])), []
        lines += [*_columns(indent + ", ".join(f"{name}{mark}" for name in names), text), *inner]
    if len(lines) > _LONG:
        known = seen.setdefault(repr(whole.fields), place)
        return lines if known == place else [f"{_AS}{known}"]
    return lines


def _columns(names: str, text: str) -> list[str]:
    column = _COLUMN if text else len(names) - len(names.lstrip()) + 2
    line = f"{names:<{_COLUMN - 2}}  {text}".rstrip()
    after = " " * column
    return textwrap.wrap(line, _WIDTH, subsequent_indent=after, break_on_hyphens=False)
