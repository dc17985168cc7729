"""Building blocks of spec fields: their types, checks, and JSON schema.

A `Kind` defines both the values that a loader accepts and their JSON schema, so that editors and
the loader agree. The YAML and Python loaders share these definitions. The kinds of entry points,
data, and parameters are at the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from pallasc.errors import Location, SpecError
from pallasc.specs.entries import check_entry, parse_entry
from pallasc.specs.spelling import one_of, shortened, show, suggestion
from pallasc.specs.templates import NAME, Scalar, Value, is_template, parse_template, typed

Schema = dict[str, object]
"""A fragment of a JSON schema."""

PathParts = tuple[str | int, ...]
"""Keys and indices from the root of a document to a value."""


Locate = Callable[[PathParts, bool], Location]
"""Returns the location of a value in the user's file, or of its key if the flag is set."""


class Place(NamedTuple):
    """A value's position in a document, for messages.

    Attributes:
        locate: maps a path to its location in the document.
        path: from the root of the document to the value.
        origin: prefix of labels, the kernel's name.
        skip: number of leading path parts that `origin` replaces.
        base_dir: the spec's folder, to look up entry points; None to skip the lookup.
    """

    locate: Locate
    path: PathParts = ()
    origin: str = ""
    skip: int = 0
    base_dir: str | None = None

    @property
    def label(self) -> str:
        """Return the path as a user would write it: `matmul.args.a`, `defaults.targets[0]`."""
        parts = self.path[self.skip :]
        text = "".join(f"[{p}]" if isinstance(p, int) else f".{shortened(p)}" for p in parts)
        return f"{shortened(self.origin)}{text}".removeprefix(".")

    @property
    def location(self) -> Location:
        """Return the location of the value."""
        return self.locate(self.path, False)

    def child(self, part: str | int) -> Place:
        """Return the place of a value inside this one."""
        return Place(self.locate, (*self.path, part), self.origin, self.skip, self.base_dir)

    def below(self, path: PathParts) -> Place:
        """Return the place of a value further inside this one."""
        return Place(self.locate, (*self.path, *path), self.origin, self.skip, self.base_dir)

    def error(self, message: str, hint: str | None = None, *, at_key: bool = False) -> SpecError:
        """Return an error about this value, or about the key that leads to it."""
        where = self.locate(self.path, at_key)
        text = f"{self.label}: {message}" if self.label else message
        return SpecError(text, location=where, hint=hint)

    def unknown(self, what: str, word: str, known: Mapping[str, object] | list[str]) -> SpecError:
        """Return the error for an unknown key of this mapping."""
        where = self.locate((*self.path, word), True)
        text = f"unknown {what} {show(word)}."
        label = f"{self.label}: " if self.label else ""
        hint = suggestion(word, known, otherwise=f"Known {what}s")
        return SpecError(f"{label}{text}", location=where, hint=hint)

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Add the location and label of this value to errors without a location."""
        try:
            yield
        except SpecError as error:
            raise self.blame(error) from None

    def blame(self, error: SpecError) -> SpecError:
        """Add this value's location and label to an error, unless it already has a location."""
        return error if error.location is not None else self.error(error.message, error.hint)


_Item = TypeVar("_Item")
_Read = TypeVar("_Read", covariant=True)


class Kind(Protocol[_Read]):
    """The type of a field: checks values and describes them as JSON schema."""

    def read(self, value: object, at: Place) -> _Read:
        """Check and normalize a value, or raise `SpecError`."""

    def schema(self) -> Schema:
        """Return the JSON schema of the values that `read` accepts."""


def expected(what: str, value: object, at: Place, hint: str | None = None) -> SpecError:
    """Return the error for a value of the wrong type."""
    return at.error(f"expected {what}, got {show(value)}.", hint)


class Field(NamedTuple):
    """One key of a record."""

    name: str
    kind: Kind[object]
    doc: str
    required: bool = False


class Text(NamedTuple):
    """Text that matches a pattern."""

    what: str
    pattern: str = r".+"
    hint: str | None = None

    def read(self, value: object, at: Place) -> str:
        """Return the text."""
        if not isinstance(value, str):
            raise expected(self.what, value, at, self.hint)
        if re.fullmatch(self.pattern, value) is None:
            raise at.error(f"{show(value)} is not {self.what}.", self.hint)
        return value

    def schema(self) -> Schema:
        """Return the schema."""
        return {"type": "string", "pattern": f"^(?:{self.pattern})$"}


class Choice(NamedTuple):
    """One of a few words."""

    words: tuple[str, ...]

    def read(self, value: object, at: Place) -> str:
        """Return the word."""
        if not isinstance(value, str) or value not in self.words:
            hint = suggestion(value, self.words) if isinstance(value, str) else None
            raise at.error(f"expected {one_of(self.words)}, got {show(value)}.", hint)
        return value

    def schema(self) -> Schema:
        """Return the schema."""
        return {"enum": list(self.words)}


class Flag:
    """True or false."""

    def read(self, value: object, at: Place) -> bool:
        """Return the value."""
        if not isinstance(value, bool):
            raise expected("true or false", value, at)
        return value

    def schema(self) -> Schema:
        """Return the schema."""
        return {"type": "boolean"}


class Number(NamedTuple):
    """A number with a lower bound, or a template for one if `template` is set."""

    whole: bool
    least: int = 0
    template: bool = False

    @property
    def what(self) -> str:
        """Return the description of the expected value for messages."""
        return f"a {'whole number' if self.whole else 'number'} of at least {self.least}"

    def read(self, value: object, at: Place) -> int | float | str:
        """Return the number, or the unfilled template."""
        if self.template and isinstance(value, str) and is_template(value):
            with at.blamed():
                parse_template(value)
            return value
        return self.checked(value, at)

    def checked(self, value: object, at: Place) -> int | float:
        """Return the number."""
        right = type(value) is int or (type(value) is float and not self.whole)
        if not right or not self.least <= value < float("inf"):  # type: ignore[operator]
            raise expected(self.what, value, at)
        return value  # type: ignore[return-value]

    def schema(self) -> Schema:
        """Return the schema."""
        number: Schema = {"type": "integer" if self.whole else "number", "minimum": self.least}
        if not self.template:
            return number
        return {"anyOf": [number, {"type": "string", "pattern": r"\{.*\}"}]}


class ScalarKind:
    """A value of a parameter: text, number, boolean or null."""

    def read(self, value: object, at: Place) -> Scalar:
        """Return the value."""
        if value is not None and not isinstance(value, str | int | float | bool):
            raise expected("text, a number, true, false or null", value, at)
        finite(value, at)
        return value

    def schema(self) -> Schema:
        """Return the schema."""
        return {"type": ["string", "number", "boolean", "null"]}


class ListOf(NamedTuple, Generic[_Item]):
    """A list whose items are of one kind; duplicates need `repeats`."""

    item: Kind[_Item]
    what: str
    minimum: int = 1
    repeats: bool = False

    def read(self, value: object, at: Place) -> tuple[_Item, ...]:
        """Return the items."""
        if not isinstance(value, list):
            hint = None if isinstance(value, dict) or value is None else f"Write [{value}]."
            raise expected(f"a list of {self.what}", value, at, hint)
        if len(value) < self.minimum:
            raise at.error(
                f"the list of {self.what} is empty.", "Leave the field out, or add an item."
            )
        items = tuple(self.item.read(item, at.child(i)) for i, item in enumerate(value))
        if not self.repeats:
            self._distinct(items, at)
        return items

    def _distinct(self, items: tuple[_Item, ...], at: Place) -> None:
        seen: dict[str, int] = {}
        for index, item in enumerate(items):
            first = seen.setdefault(typed(item), index)
            if first != index:
                place = at.child(index)
                raise place.error(f"{show(item)} is in the list twice.", "Remove one of them.")

    def schema(self) -> Schema:
        """Return the schema."""
        items: Schema = {
            "type": "array",
            "items": self.item.schema(),
            "uniqueItems": not self.repeats,
        }
        return {**items, "minItems": self.minimum} if self.minimum else items


class ListOr(NamedTuple):
    """A list, or one other kind of value."""

    items: ListOf[Any]
    other: Kind[Any]

    def read(self, value: object, at: Place) -> Any:
        """Return the list or the other value."""
        kind: Kind[Any] = self.items if isinstance(value, list) else self.other
        return kind.read(value, at)

    def schema(self) -> Schema:
        """Return the schema."""
        return {"anyOf": [self.items.schema(), self.other.schema()]}


class MapOf(NamedTuple, Generic[_Item]):
    """A mapping from user-chosen names to values of one kind."""

    key: Text
    item: Kind[_Item]
    what: str
    minimum: int = 1

    def read(self, value: object, at: Place) -> dict[str, _Item]:
        """Return the mapping in the user's order."""
        if not isinstance(value, dict):
            raise expected(f"a mapping of {self.what}", value, at)
        if len(value) < self.minimum:
            raise at.error(
                f"the mapping of {self.what} is empty.", "Leave it out, or add an entry."
            )
        return {
            self._key(key, at): self.item.read(item, at.child(key)) for key, item in value.items()
        }

    def _key(self, key: str, at: Place) -> str:
        if re.fullmatch(self.key.pattern, key) is None:
            place = at.child(key)
            raise place.error(f"{show(key)} is not {self.key.what}.", self.key.hint, at_key=True)
        return key

    def schema(self) -> Schema:
        """Return the schema."""
        mapping: Schema = {
            "type": "object",
            "propertyNames": {"pattern": f"^(?:{self.key.pattern})$"},
            "additionalProperties": self.item.schema(),
        }
        return {**mapping, "minProperties": self.minimum} if self.minimum else mapping


class Record(NamedTuple):
    """A mapping with known keys."""

    fields: tuple[Field, ...]
    what: str = "field"

    def read(self, value: object, at: Place) -> dict[str, object]:
        """Return the fields that are given, each checked by its kind."""
        if not isinstance(value, dict):
            raise expected("a mapping", value, at)
        table = {field.name: field for field in self.fields}
        for key in value:
            if key not in table:
                raise at.unknown(self.what, key, table)
        for field in self.fields:
            if field.required and field.name not in value:
                raise at.error(f"{self.what} {field.name!r} is missing.", field.doc)
        return {key: table[key].kind.read(item, at.child(key)) for key, item in value.items()}

    def schema(self) -> Schema:
        """Return the schema."""
        required = [field.name for field in self.fields if field.required]
        record: Schema = {
            "type": "object",
            "properties": {f.name: {"description": f.doc, **f.kind.schema()} for f in self.fields},
            "additionalProperties": False,
        }
        return {**record, "required": required} if required else record


def finite(value: object, at: Place) -> None:
    """Reject infinities and NaN, which JSON cannot represent."""
    if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
        raise at.error(
            f"{value} is not allowed in a spec.", "Write {$ref: math:inf} or {$ref: math:nan}."
        )


NODES = ("$call", "$ref")
"""Keys that make a mapping under `static` a node instead of data."""

IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]*"

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


class ParameterMap(NamedTuple):
    """A mapping from parameters to values of one kind, with special keys that begin with `$`."""

    special: tuple[Field, ...]
    item: Kind[object]
    minimum: int = 1

    def read(self, value: object, at: Place) -> dict[str, object]:
        """Return the mapping in the user's order."""
        if not isinstance(value, dict):
            raise expected("a mapping of parameters", value, at, "Write {m: …, n: …}.")
        known = {field.name: field.kind for field in self.special}
        for key in value:
            if key.startswith("$") and key not in known:
                raise at.unknown("key", key, known)
        given = {key: item for key, item in value.items() if key not in known}
        own = MapOf(PARAMETER, self.item, "parameters", 0 if len(given) < len(value) else 1)
        special = {key: known[key].read(value[key], at.child(key)) for key in known if key in value}
        return {**own.read(given, at), **special}

    def schema(self) -> Schema:
        """Return the schema."""
        names = "|".join(rf"\{field.name}$" for field in self.special)
        return {
            **MapOf(PARAMETER, self.item, "parameters").schema(),
            "properties": {f.name: {"description": f.doc, **f.kind.schema()} for f in self.special},
            "propertyNames": {"pattern": f"^({names}|(?:{PARAMETER.pattern})$)"},
        }
