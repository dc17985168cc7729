"""The matrix of a spec: values of parameters, and `$file`, rows of values in a JSON or YAML file.

The rows are a list, or the values of a mapping; `$key` is a row's key in that mapping, a number if
it is written as a whole number, and `$value` is the row itself. With `keys`, rows are nested in one
mapping for each name in `keys`, and the keys of these mappings may be JSON text, such as the
arguments of a call; `$name` is then the key of the level with that name. The content of a file is
data: nothing in it is a template, and none of its keys begins with `$`.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pallasc.errors import Location, SpecError
from pallasc.specs.canonical import plain
from pallasc.specs.entries import check_data_file
from pallasc.specs.fields import (
    ENTRY,
    IDENTIFIER,
    PARAMETER,
    PARAMETERS_HINT,
    SCALAR,
    ByType,
    Checked,
    Field,
    Leaf,
    ListOf,
    MapOf,
    ParameterKind,
    PathParts,
    Place,
    Record,
    Schema,
    Tree,
    choice,
    text,
)
from pallasc.specs.loading.yaml_text import Document, join_surrogates, read_document
from pallasc.specs.spec import Row
from pallasc.specs.spelling import show, suggestion
from pallasc.specs.templates import Scalar, Value, typed

FILE_KEY = "$file"
"""The matrix key for a file with points."""

VARIABLE = "PALLASC_MAX_VARIANTS"
MOST_VARIANTS = 100_000
"""Limit for the variants of all specs, unless `$PALLASC_MAX_VARIANTS` sets another."""
_ONLY_LEVEL = "key"
VALUE = "$value"
SUFFIXES = (".json", ".yaml", ".yml")

_WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,17}")
_MISSING = object()


_KEY_TEXT = choice("text", "json")
_LEVEL = text(
    "the name of a key",
    rf"(?!value$){IDENTIFIER}",
    "Use letters, digits and '_', beginning with a letter or '_'; 'value' is the row itself.",
)


_ANY = text("a path")
_KEY = Leaf(str | int, "a key")
_PATH = ByType(
    {
        list: Checked(
            ListOf(_KEY, "keys", 0, repeats=True), lambda keys, at: tuple(map(str, keys))
        ),
        str: Checked(
            text("a path, such as gemm.h100", ".*"), lambda path, at: tuple(path.split("."))
        ),
    }
)
_SELECT = ByType(
    {
        dict: MapOf(PARAMETER, _PATH, "parameters"),
        list: Checked(
            ListOf(PARAMETER, "parameters"), lambda names, at: {name: (name,) for name in names}
        ),
    }
)
_WANTED = ByType({list: ListOf(SCALAR, "values"), str: Checked(SCALAR, lambda value, at: (value,))})
_KEYS = ByType(
    {
        str: Checked(_KEY_TEXT, lambda form, at: {_ONLY_LEVEL: form}),
        dict: MapOf(_LEVEL, _KEY_TEXT, "levels"),
    }
)
_FIELDS = Record(
    (
        Field("path", _ANY, "A JSON or YAML file, relative to the spec's folder.", required=True),
        Field("rows", _PATH, "The path of the rows in it; by default the whole document."),
        Field("select", _SELECT, "The parameters that a row gives; all fields by default."),
        Field("where", MapOf(_ANY, _WANTED, "fields"), "Values that a row must have."),
        Field("skip", ListOf(_ANY, "keys"), "Keys of the rows' mapping that are not rows."),
        Field("keys", _KEYS, "Keys that are JSON text; or names of the keys of each level."),
        Field("values", _KEY_TEXT, "How rows are written: json, if they are JSON text."),
    )
)
_TABLE = ByType({str: Checked(_ANY, lambda path, at: {"path": path}), dict: _FIELDS})
"""A file with rows: its path, or its fields."""


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
    """

    path: str
    rows: tuple[str, ...] = ()
    select: Mapping[str, tuple[str, ...]] | None = None
    where: Mapping[str, tuple[Scalar, ...]] | None = None
    skip: tuple[str, ...] = ()
    keys: Mapping[str, str] | None = None
    values: str = "text"


class Matrix(NamedTuple):
    """The values of each parameter, in the user's order, and a file with more values."""

    axes: dict[str, tuple[Value, ...]]
    table: Table | None = None


_DATA = Tree("value", SCALAR, ENTRY, nodes=())
"""A value in a row, in which nothing is a node."""

_VALUES = ListOf(ParameterKind(), "values")
_FILE = Field(FILE_KEY, _TABLE, "A JSON or YAML file whose rows are points.")
_MATRIX = MapOf(PARAMETER, _VALUES, "parameters", 1, (_FILE,), PARAMETERS_HINT)


class MatrixKind:
    """Values of each parameter, and a file with rows of values."""

    def read(self, value: Any, at: Place) -> Matrix:
        """Check every value in the matrix and return it."""
        is_given = isinstance(value, dict) and FILE_KEY in value
        for field in _FIELDS.fields if is_given else ():
            if field.name in value and not isinstance(value[field.name], list):
                raise at.key(field.name).error(
                    f"{field.name} belongs inside {FILE_KEY}.",
                    f"Write {FILE_KEY}: {{path: …, {field.name}: …}}.",
                )
        axes = _MATRIX.read(value, at)
        return Matrix(axes, Table(**axes.pop(FILE_KEY)) if is_given else None)

    def schema(self) -> Schema:
        """Return the schema."""
        return _MATRIX.schema()


def most_variants() -> int:
    """Return the maximum number of variants that specs may expand to.

    Raises:
        SpecError: `$PALLASC_MAX_VARIANTS` is not a positive whole number.
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        return MOST_VARIANTS
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) > 0):
        raise SpecError(f"{VARIABLE} must be a whole number from 1 to 999999999, got {text!r}.")
    return int(text)


class _Entry(NamedTuple):
    """A row in the file: its path, the keys that lead to it by their names, its content."""

    path: PathParts
    keys: Mapping[str, Value]
    content: Any


def read_rows(
    table: Table, at: Place, base_dir: str, documents: dict[str, Document]
) -> tuple[Row, ...]:
    """Return the rows that `$file` selects, in the order of the file.

    Args:
        table: the value of `$file`.
        at: its place.
        base_dir: the spec's folder.
        documents: files that were already read, by path; this one is added.

    Raises:
        SpecError: the file is missing or malformed, or lacks the requested data.
    """
    document = _document(table.path, at.child("path"), base_dir, documents)
    entries = list(_entries(document, table, at))
    if len(entries) > most_variants():
        raise at.error(f"{len(entries)} rows exceed the limit of {most_variants()}.")
    entries = _chosen(entries, table, at, document)
    select = table.select or _all_fields(entries[0], at, document)
    return tuple(_row(entry, select, at, document) for entry in entries)


def _document(path: str, at: Place, base_dir: str, documents: dict[str, Document]) -> Document:
    with at.blamed():
        name = check_data_file(path, base_dir)
    if posixpath.splitext(name)[1] not in SUFFIXES:
        raise at.error(
            f"{show(name)} is not a data file.", f"Data files end in {', '.join(SUFFIXES)}."
        )
    if name not in documents:
        shown = os.path.join(os.path.dirname(at.location.file), name)
        documents[name] = read_document(os.path.join(base_dir, name), shown)
    return documents[name]


def _entries(document: Document, table: Table, at: Place) -> Iterator[_Entry]:
    path, rows = _reached(document, table.rows, at)
    if isinstance(rows, dict):
        for key in table.skip:
            if key not in rows:
                hint = suggestion(key, rows, otherwise="Keys")
                raise at.child("skip").error(f"there is no key {key!r} to skip.", hint)
        rows = {key: value for key, value in rows.items() if key not in table.skip}
    levels = list((table.keys or {_ONLY_LEVEL: "text"}).items())
    for place, keys, content in _leaves(document, path, rows, levels, at):
        if table.values == "json":
            content = _parsed(content, document.place(place), "the row")
        yield _Entry(place, keys, content)


def _leaves(
    document: Document, path: PathParts, rows: Any, levels: list[tuple[str, str]], at: Place
) -> Iterator[tuple[PathParts, dict[str, Value], Any]]:
    """Yield each row below these levels: its path, its keys by name, its content."""
    (name, written), *deeper = levels
    if isinstance(rows, list) and not deeper:
        for index, content in enumerate(rows):
            yield (*path, index), {name: index}, content
        return
    if not isinstance(rows, dict):
        kind = "a mapping of mappings" if deeper else "rows, a list or a mapping of them"
        raise SpecError(
            f"expected {kind}, got {show(rows)}.",
            location=document.place(path),
            hint=f"{at.label}.rows says where they are.",
        )
    for key, content in rows.items():
        place = (*path, key)
        read = _key(key, written, document.place(place, True))
        if not deeper:
            yield place, {name: read}, content
            continue
        for inner, keys, row in _leaves(document, place, content, deeper, at):
            yield inner, {name: read, **keys}, row


def _key(key: str, written: str, place: Location) -> Value:
    if written == "json":
        value: Value = _parsed(key, place, "the key")
        return value
    return int(key) if _WHOLE_NUMBER.fullmatch(key) else key


def _parsed(text: Any, place: Location, called: str) -> Any:
    try:
        value = json.loads(text)
        if join_surrogates(json.dumps(value, ensure_ascii=False)) is not None:
            return value
    except (TypeError, ValueError, RecursionError):
        pass
    raise SpecError(
        f"{called} is not JSON text: {show(text)}.",
        location=place,
        hint="'keys' and 'values' select the text that is read as JSON.",
    )


def _reached(document: Document, path: tuple[str, ...], at: Place) -> tuple[PathParts, Any]:
    """Return the path, its list indices as numbers, and the value at this path in the document."""
    reached: PathParts = ()
    value = document.data
    for part in path:
        inside = _inside(value, part)
        if inside is _MISSING:
            known = list(value) if isinstance(value, dict) else []
            raise at.child("rows").error(
                f"{document.place(reached)} has no {part!r}.",
                suggestion(part, known, otherwise="It has"),
            )
        reached = (*reached, int(part[:9]) if isinstance(value, list) else part)
        value = inside
    return reached, value


def _inside(value: Any, key: str) -> Any:
    """Return the item of a mapping or a list, or `_MISSING`."""
    if isinstance(value, dict):
        return value.get(key, _MISSING)
    is_index = isinstance(value, list) and key.isascii() and key.isdecimal()
    return value[int(key[:9])] if is_index and int(key[:9]) < len(value) else _MISSING


def _chosen(entries: list[_Entry], table: Table, at: Place, document: Document) -> list[_Entry]:
    for name, values in (table.where or {}).items():
        place, path = at.child("where").key(name), tuple(name.split("."))
        fields = [_field(entry, path) for entry in entries]
        if fields and all(field is _MISSING for field in fields):
            raise place.error(
                f"no row in {document.file} has a field {name!r}.",
                suggestion(name, _fields_of(entries[0]), otherwise="Fields"),
            )
        keys = set(map(typed, values))
        chosen = [entry for entry, own in zip(entries, fields, strict=True) if typed(own) in keys]
        if not chosen:
            known = [plain(own) for own in fields if isinstance(own, Scalar)]
            raise place.error(
                f"no row in {document.file} has {name}={' or '.join(map(plain, values))}.",
                suggestion(plain(values[0]), known, otherwise="It is"),
            )
        entries = chosen
    if not entries:
        raise at.error(f"there are no rows in {document.file}.")
    return entries


def _field(entry: _Entry, path: tuple[str, ...]) -> Any:
    """Return a field of a row, or `_MISSING`."""
    value, keys = entry.content, list(path)
    if keys[:1] == [VALUE]:
        keys.pop(0)
    elif keys and keys[0][:1] == "$" and keys[0][1:] in entry.keys:
        value = entry.keys[keys.pop(0)[1:]]
    for key in keys:
        value = _inside(value, key)
    return value


def _fields_of(entry: _Entry) -> list[str]:
    own = list(entry.content) if isinstance(entry.content, dict) else [VALUE]
    return [*own, *(f"${name}" for name in entry.keys)]


def _all_fields(entry: _Entry, at: Place, document: Document) -> dict[str, tuple[str, ...]]:
    if not isinstance(entry.content, dict):
        raise _error(entry, document, f"expected a row, got {show(entry.content)}.", at)
    for name in entry.content:
        if not re.fullmatch(str(PARAMETER.pattern), name):
            raise _error(entry, document, f"{show(name)} is not the name of a parameter.", at)
    if not entry.content:
        raise _error(entry, document, "the row is empty.", at)
    return {name: (name,) for name in entry.content}


def _row(
    entry: _Entry, select: Mapping[str, tuple[str, ...]], at: Place, document: Document
) -> Row:
    values = {}
    for name, path in select.items():
        value = _field(entry, path)
        if value is _MISSING:
            message = f"the row has no field {'.'.join(path)!r}."
            raise _error(entry, document, message, at)
        place = Place(document.place, entry.path, _label(entry), len(entry.path))
        values[name] = _DATA.read(value, place)
    return Row(values, document.place(entry.path))


def _label(entry: _Entry) -> str:
    where = entry.path[-1] if entry.path else ""
    return f"row {show(where)}"


def _error(entry: _Entry, document: Document, message: str, at: Place) -> SpecError:
    return SpecError(
        f"{_label(entry)}: {message}",
        location=document.place(entry.path),
        hint=f"{at.label} at {at.location} reads this row: 'select' chooses fields, 'where' and "
        "'skip' choose rows.",
    )
