"""Fields for parameters: their values, entry points in values, and files with values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from pallasc.specs.entries import check_entry, parse_entry
from pallasc.specs.fields import (
    Choice,
    Field,
    ListOf,
    MapOf,
    Place,
    Record,
    ScalarKind,
    Schema,
    Text,
    expected,
    finite,
)
from pallasc.specs.spelling import show, suggestion
from pallasc.specs.templates import NAME, Scalar, Value, is_template, parse_template

NODES = ("$call", "$ref")
"""Keys that make a mapping under `static` a node instead of data."""

IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]*"


class EntryKind(NamedTuple):
    """An entry point that exists, or a template for one if `template` is set."""

    template: bool = False

    def read(self, value: object, at: Place) -> str:
        """Return the normalized entry point, or the unfilled template."""
        if not isinstance(value, str):
            raise expected("an entry point", value, at, "Write package.module:function.")
        with at.blamed():
            if self.template and is_template(value):
                parse_template(value)
                return value
            entry = parse_entry(value)
            if at.base_dir is not None:
                check_entry(entry, at.base_dir)
            return str(entry)

    def schema(self) -> Schema:
        """Return the schema."""
        entry: Schema = {"type": "string", "pattern": rf"^[^:]+:{IDENTIFIER}(\.{IDENTIFIER})*$"}
        if not self.template:
            return entry
        return {"anyOf": [entry, {"type": "string", "pattern": r"\{[^{}]+\}"}]}


FILE_KEY, JSON_KEY = "$file", "$json"
"""The matrix key for a file with points, and its alternative spelling."""

PARAMETER = Text(
    "the name of a parameter",
    rf"(?!target$){IDENTIFIER}",
    "Use letters, digits and '_', beginning with a letter or '_'; 'target' is reserved.",
)
VALUE_NAME = Text(
    "the name of a value",
    r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,47}",
    "Use up to 48 letters, digits, '_', '-' and '.'.",
)


class DataKind(NamedTuple):
    """JSON-like data with `$call` and `$ref` nodes, and with templates if `template` is set."""

    template: bool = False

    def read(self, value: object, at: Place) -> Value:
        """Check every node and template in the data and return it."""
        if isinstance(value, list):
            return [self.read(item, at.child(i)) for i, item in enumerate(value)]
        if isinstance(value, dict):
            return self.mapping(value, at)
        if value is not None and not isinstance(value, str | int | float | bool):
            hint = "Use $call or $ref for anything else." if self.template else None
            raise expected("plain data", value, at, hint)
        finite(value, at)
        if self.template and isinstance(value, str):
            with at.blamed():
                parse_template(value)
        return value

    def mapping(self, value: Mapping[str, object], at: Place) -> dict[str, Value]:
        """Return a mapping of data, or a node with its normalized entry point."""
        for key in value:
            if key.startswith("$") and key not in NODES:
                hint = suggestion(key, NODES if self.template else (NAME, *NODES))
                raise at.child(key).error(f"unknown node {show(key)}.", hint, at_key=True)
        if "$ref" in value and len(value) > 1:
            raise at.error("$ref must be the only key.", "Use $call to pass arguments.")
        entry = EntryKind(self.template)
        return {
            key: (entry if key in NODES else self).read(item, at.child(key))
            for key, item in value.items()
        }

    def schema(self) -> Schema:
        """Return the schema."""
        return {"$ref": "#/$defs/static"}


class ParameterKind:
    """A value of a parameter: a scalar, a list, or a mapping; text in it is not a template."""

    def read(self, value: object, at: Place) -> Value:
        """Return the value with its entry points normalized."""
        if isinstance(value, dict) and NAME in value:
            rest = {key: item for key, item in value.items() if key != NAME}
            name = VALUE_NAME.read(value[NAME], at.child(NAME))
            return {NAME: name, **DataKind().mapping(rest, at)}
        return DataKind().read(value, at)

    def schema(self) -> Schema:
        """Return the schema."""
        return {"$ref": "#/$defs/value"}


class PathKind:
    """A path into a document: keys with dots between them, or a list of keys."""

    def read(self, value: object, at: Place) -> tuple[str, ...]:
        """Return the keys."""
        if isinstance(value, str):
            return tuple(value.split("."))
        if not isinstance(value, list):
            raise expected("a path, such as gemm.h100", value, at)
        for index, key in enumerate(value):
            if not isinstance(key, str) and type(key) is not int:
                raise expected("a key", key, at.child(index))
        return tuple(map(str, value))

    def schema(self) -> Schema:
        """Return the schema."""
        keys: Schema = {"type": "array", "items": {"type": ["string", "integer"]}}
        return {"anyOf": [{"type": "string"}, keys]}


class SelectKind:
    """The fields of a row that give parameters: a list of names, or paths by parameter."""

    def read(self, value: object, at: Place) -> dict[str, tuple[str, ...]]:
        """Return the path of each parameter."""
        if isinstance(value, list):
            return {name: (name,) for name in ListOf(PARAMETER, "parameters").read(value, at)}
        return MapOf(PARAMETER, PathKind(), "parameters").read(value, at)

    def schema(self) -> Schema:
        """Return the schema."""
        names = ListOf(PARAMETER, "parameters").schema()
        return {"anyOf": [names, MapOf(PARAMETER, PathKind(), "parameters").schema()]}


class ConditionKind:
    """The value that a field must have, or a list of allowed values."""

    def read(self, value: object, at: Place) -> tuple[Scalar, ...]:
        """Return the values."""
        if isinstance(value, list):
            return ListOf(ScalarKind(), "values").read(value, at)
        return (ScalarKind().read(value, at),)

    def schema(self) -> Schema:
        """Return the schema."""
        return {"anyOf": [ScalarKind().schema(), ListOf(ScalarKind(), "values").schema()]}


class KeysKind:
    """Notation of the keys of rows: one word, or the name and the word of each level."""

    def read(self, value: object, at: Place) -> dict[str, str]:
        """Return the notation of each level's keys, by level name, outermost first."""
        if isinstance(value, str):
            return {"key": _KEY_TEXT.read(value, at)}
        levels = MapOf(_LEVEL, _KEY_TEXT, "levels").read(value, at)
        if len(levels) > _DEEPEST:
            raise at.error(f"{len(levels)} levels are more than the {_DEEPEST} that rows have.")
        return levels

    def schema(self) -> Schema:
        """Return the schema."""
        return {"anyOf": [_KEY_TEXT.schema(), MapOf(_LEVEL, _KEY_TEXT, "levels").schema()]}


_DEEPEST = 4
_KEY_TEXT = Choice(("text", "json"))
_LEVEL = Text(
    "the name of a key",
    rf"(?!value$){IDENTIFIER}",
    "Use letters, digits and '_', beginning with a letter or '_'; 'value' is the row itself.",
)
_ANY = Text("a path")
TABLE_FIELDS = Record(
    (
        Field("path", _ANY, "A JSON or YAML file, relative to the spec's folder.", required=True),
        Field("rows", PathKind(), "Where the rows lie in it; the whole document when left out."),
        Field("select", SelectKind(), "The parameters that a row gives; all fields by default."),
        Field("where", MapOf(_ANY, ConditionKind(), "fields"), "Values that a row must have."),
        Field("skip", ListOf(_ANY, "keys"), "Keys of the rows' mapping that are not rows."),
        Field("keys", KeysKind(), "Keys that are JSON text; or names of the keys of each level."),
        Field("values", _KEY_TEXT, "How rows are written: json, if they are JSON text."),
    )
)


class Table(NamedTuple):
    """The value of `$file`: a file, and the rows and fields to take from it.

    Attributes:
        path: a JSON or YAML file, relative to the spec's folder.
        rows: path of the rows in the file.
        select: the field of a row that gives each parameter; None for all fields.
        where: required values of fields of a row.
        skip: keys of the rows' mapping that are not rows.
        keys: notation of the keys for each level of mappings around a row, by level name, outermost
            first; None for one level, whose key is a number if it is written as one.
        values: notation of the rows.
        named: the key of the matrix that has this value.
    """

    path: str
    rows: tuple[str, ...] = ()
    select: Mapping[str, tuple[str, ...]] | None = None
    where: Mapping[str, tuple[Scalar, ...]] | None = None
    skip: tuple[str, ...] = ()
    keys: Mapping[str, str] | None = None
    values: str = "text"
    named: str = FILE_KEY


class Matrix(NamedTuple):
    """The values of each parameter, in the user's order, and a file with more of them."""

    axes: dict[str, tuple[Value, ...]]
    table: Table | None = None


class MatrixKind:
    """Values of each parameter, and a file with rows of them."""

    def read(self, value: object, at: Place) -> Matrix:
        """Check every value in the matrix and return it."""
        named = [key for key in (FILE_KEY, JSON_KEY) if isinstance(value, dict) and key in value]
        if not isinstance(value, dict) or not named:
            return Matrix(self._axes().read(value, at))
        if len(named) > 1:
            raise at.error(f"{JSON_KEY} is another spelling of {FILE_KEY}.", "Give one of them.")
        fields = value[named[0]]
        if isinstance(fields, str):
            fields = {"path": fields}
        make_table: Callable[..., Table] = Table
        table = make_table(**TABLE_FIELDS.read(fields, at.child(named[0])), named=named[0])
        rest = {key: item for key, item in value.items() if key != named[0]}
        _check_beside(rest, named[0], table.path, at)
        return Matrix(self._axes(0).read(rest, at), table)

    def _axes(self, minimum: int = 1) -> MapOf[tuple[Value, ...]]:
        return MapOf(PARAMETER, ListOf(ParameterKind(), "values"), "parameters", minimum)

    def schema(self) -> Schema:
        """Return the schema."""
        axes = self._axes().schema()
        names = {"pattern": rf"^(\$(file|json)$|(?:{PARAMETER.pattern})$)"}
        table: Schema = {
            "description": "A JSON or YAML file whose rows are points.",
            "anyOf": [{"type": "string"}, TABLE_FIELDS.schema()],
        }
        return {**axes, "propertyNames": names, "properties": {FILE_KEY: table, JSON_KEY: table}}


def _check_beside(axes: Mapping[str, object], named: str, path: str, at: Place) -> None:
    """Reject fields of a table next to its key, where only parameters are allowed."""
    for key in (field.name for field in TABLE_FIELDS.fields):
        if key in axes and not isinstance(axes[key], list):
            raise at.child(key).error(
                f"{key} belongs inside {named}, as parameters stand beside it.",
                f"Write {named}: {{path: {path}, {key}: …}}.",
                at_key=True,
            )


SEED_KEY, TOLERANCE_KEY, ARGS_KEY = "$seed", "$tolerance", "$args"
"""Keys of `check` that are not parameters."""


class CheckKind(NamedTuple):
    """The input of a check: values of parameters, arguments, a seed, a tolerance.

    `special` has the fields for keys that are not parameters.
    """

    special: tuple[Field, ...]

    def read(self, value: object, at: Place) -> dict[str, Value]:
        """Check each value in the mapping and return it."""
        if not isinstance(value, dict):
            raise expected("a mapping of parameters", value, at, "Write {m: 128, n: 128}.")
        if not value:
            raise at.error("the mapping of parameters is empty.", "Leave it out, or add an entry.")
        known = {field.name: field.kind for field in self.special}
        read = {}
        for key, item in value.items():
            place = at.child(key)
            if key.startswith("$") and key not in known:
                raise place.error(
                    f"unknown key {show(key)}.",
                    suggestion(key, known, otherwise="Known keys"),
                    at_key=True,
                )
            if key not in known:
                PARAMETER.read(key, place)
            kind = known.get(key, ParameterKind())
            read[key] = kind.read(item, place)
        return read  # type: ignore[return-value]

    def schema(self) -> Schema:
        """Return the schema."""
        names = "|".join(rf"\{field.name}" for field in self.special)
        return {
            "type": "object",
            "properties": {f.name: {"description": f.doc, **f.kind.schema()} for f in self.special},
            "propertyNames": {"pattern": f"^(?:{names}|{PARAMETER.pattern})$"},
            "additionalProperties": ParameterKind().schema(),
            "minProperties": 1,
        }
