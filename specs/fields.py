"""Building blocks of spec fields: their types, checks, and JSON schema.

A `Kind` defines both the values that a loader accepts and their JSON schema, so that editors and
the loader agree. The YAML and Python loaders share these definitions. msgspec checks scalars and
describes them; lists, mappings, and trees are walked here, because errors need positions. The kinds
of entry points, data, and parameters are at the end.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Meta

from pallasc.errors import Location, SpecError
from pallasc.specs.entries import check_entry, parse_entry
from pallasc.specs.spelling import one_of, shortened, show, suggestion
from pallasc.specs.templates import NAME, Value, is_template, parse_template, typed

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
        return self.below((part,))

    def below(self, path: PathParts) -> Place:
        """Return the place of a value further inside this one."""
        return Place(self.locate, (*self.path, *path), self.origin, self.skip, self.base_dir)

    def key(self, part: str) -> Place:
        """Return the place of a key of this mapping."""
        return self.child(part)._replace(locate=lambda path, at_key: self.locate(path, True))

    def error(self, message: str, hint: str | None = None) -> SpecError:
        """Return an error about this value."""
        text = f"{self.label}: {message}" if self.label else message
        return SpecError(text, location=self.location, hint=hint)

    def unknown(self, what: str, word: str, known: Mapping[str, object] | list[str]) -> SpecError:
        """Return the error for an unknown key of this mapping."""
        error = self.error(
            f"unknown {what} {show(word)}.", suggestion(word, known, otherwise=f"Known {what}s")
        )
        error.location = self.key(word).location
        return error

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


class Leaf(NamedTuple):
    """A scalar of a msgspec type; text may have to match a pattern.

    Attributes:
        known: values that the schema lists for completion in editors.
    """

    type: Any
    what: str
    hint: str | None = None
    pattern: str | None = None
    known: tuple[str, ...] = ()

    def read(self, value: object, at: Place) -> Any:
        """Return the value."""
        try:
            msgspec.convert(value, self.type)
        except msgspec.ValidationError:
            raise expected(self.what, value, at, self.hint) from None
        if isinstance(value, float) and not math.isfinite(value):
            raise at.error(
                f"{value} is not allowed in a spec.",
                "Under static or matrix, write {$ref: math:inf} or {$ref: math:nan}.",
            )
        if self.pattern is not None and re.fullmatch(self.pattern, str(value)) is None:
            raise expected(self.what, value, at, self.hint)
        return value

    def schema(self) -> Schema:
        """Return the schema."""
        schema = msgspec.json.schema(self.type)
        if self.pattern is not None:
            schema["pattern"] = f"^(?:{self.pattern})$"
        return {"anyOf": [{"enum": list(self.known)}, schema]} if self.known else schema


def text(what: str, pattern: str = r".+", hint: str | None = None) -> Leaf:
    """Return a `Kind` for text that matches a pattern."""
    return Leaf(str, what, hint, pattern)


def number(least: int = 0, *, whole: bool = True) -> Leaf:
    """Return a `Kind` for numbers from `least`."""
    what = f"a {'whole number' if whole else 'number'} of at least {least}"
    return Leaf(Annotated[int if whole else float, Meta(ge=least)], what)


def choice(*words: str) -> Leaf:
    """Return a `Kind` for these few words."""
    return Leaf(Literal[words], one_of(words))


FLAG = Leaf(bool, "true or false")
SCALAR = Leaf(str | int | float | bool | None, "text, a number, true, false or null")


class Checked(NamedTuple):
    """A kind whose values a function checks further, and may replace."""

    kind: Kind[Any]
    check: Callable[[Any, Place], Any]

    def read(self, value: object, at: Place) -> Any:
        """Return the result of the check."""
        return self.check(self.kind.read(value, at), at)

    def schema(self) -> Schema:
        """Return the schema."""
        return self.kind.schema()


class Filled(NamedTuple):
    """A value, or a template for one; the filled-in template is checked later."""

    value: Kind[Any]

    def read(self, value: object, at: Place) -> Any:
        """Return the value, or the unfilled template."""
        if isinstance(value, str) and is_template(value):
            with at.blamed():
                parse_template(value)
            return value
        return self.value.read(value, at)

    def schema(self) -> Schema:
        """Return the schema."""
        return {"anyOf": [self.value.schema(), {"type": "string", "pattern": r"\{[^{}]+\}"}]}


class ListOf(NamedTuple, Generic[_Item]):
    """A list whose items are of one kind; duplicates need `repeats`."""

    item: Kind[_Item]
    what: str
    minimum: int = 1
    repeats: bool = False

    def read(self, value: object, at: Place) -> tuple[_Item, ...]:
        """Return the items."""
        if not isinstance(value, list):
            raise expected(f"a list of {self.what}", value, at, _list_hint(value))
        if len(value) < self.minimum:
            raise at.error(
                f"the list of {self.what} is empty.", "Leave the field out, or add an item."
            )
        items = tuple(self.item.read(item, at.child(i)) for i, item in enumerate(value))
        seen: dict[str, int] = {}
        for index, item in enumerate(() if self.repeats else items):
            if seen.setdefault(typed(item), index) != index:
                place = at.child(index)
                raise place.error(f"{show(item)} is in the list twice.", "Remove one of them.")
        return items

    def schema(self) -> Schema:
        """Return the schema."""
        items: Schema = {
            "type": "array",
            "items": self.item.schema(),
            "uniqueItems": not self.repeats,
        }
        return {**items, "minItems": self.minimum} if self.minimum else items


def _list_hint(value: object) -> str:
    if isinstance(value, dict) or value is None:
        return "Write […], or begin each item with '- '."
    return f'Write ["{value}"].' if isinstance(value, str) else f"Write [{value}]."


class ByType(NamedTuple):
    """Values of several types, each with its kind; the last kind rejects other types."""

    kinds: Mapping[type, Kind[Any]]

    def read(self, value: object, at: Place) -> Any:
        """Return the value as its kind reads it."""
        *_, last = self.kinds.values()
        return self.kinds.get(type(value), last).read(value, at)

    def schema(self) -> Schema:
        """Return the schema."""
        return {"anyOf": [kind.schema() for kind in self.kinds.values()]}


class MapOf(NamedTuple, Generic[_Item]):
    """A mapping from user-chosen names to values of one kind.

    Attributes:
        special: keys that begin with `$`, each with its own kind.
        hint: what to write instead of something else.
    """

    key: Leaf
    item: Kind[_Item]
    what: str
    minimum: int = 1
    special: tuple[Field, ...] = ()
    hint: str | None = None

    def read(self, value: object, at: Place) -> dict[str, Any]:
        """Return the mapping in the user's order."""
        if not isinstance(value, dict):
            raise expected(f"a mapping of {self.what}", value, at, self.hint)
        if len(value) < self.minimum:
            raise at.error(
                f"the mapping of {self.what} is empty.", "Leave it out, or add an entry."
            )
        special = {field.name: field.kind for field in self.special}
        for key in value:
            if special and key.startswith("$") and key not in special:
                raise at.unknown("key", key, special)
        names = {key: key if key in special else self.key.read(key, at.key(key)) for key in value}
        return {
            name: special.get(key, self.item).read(value[key], at.child(key))
            for key, name in names.items()
        }

    def schema(self) -> Schema:
        """Return the schema."""
        names = "".join(rf"\{field.name}$|" for field in self.special)
        mapping: Schema = {
            "type": "object",
            "propertyNames": {"pattern": f"^({names}(?:{self.key.pattern})$)"},
            "additionalProperties": self.item.schema(),
        }
        if self.special:
            mapping["properties"] = _properties(self.special)
        return {**mapping, "minProperties": self.minimum} if self.minimum else mapping


def _properties(fields: tuple[Field, ...]) -> Schema:
    return {field.name: {"description": field.doc, **field.kind.schema()} for field in fields}


class Record(NamedTuple):
    """A mapping with known keys."""

    fields: tuple[Field, ...]
    what: str = "field"

    def read(self, value: object, at: Place) -> dict[str, Any]:
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
            "properties": _properties(self.fields),
            "additionalProperties": False,
        }
        return {**record, "required": required} if required else record


NODES = ("$call", "$ref")
"""Keys that make a mapping under `static` a call or reference."""

IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]*"

PARAMETERS_HINT = "Write {m: …, n: …}."
PARAMETER = text(
    "the name of a parameter",
    rf"(?!target$){IDENTIFIER}",
    "Use letters, digits and '_', beginning with a letter or '_'; 'target' is reserved.",
)
VALUE_NAME = text(
    "the name of a value",
    r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,47}",
    "Use up to 48 letters, digits, '_', '-' and '.'.",
)


def _existing(text: str, at: Place) -> str:
    """Return the normalized form of an entry point that exists."""
    with at.blamed():
        entry = parse_entry(text)
        if at.base_dir is not None:
            check_entry(entry, at.base_dir)
    return str(entry)


ENTRY = Checked(
    text(
        "an entry point",
        r"[^:]+:[^\W\d]\w*(\.[^\W\d]\w*)*",
        "Write package.module:function, or file.py:function.",
    ),
    _existing,
)


class Tree(NamedTuple):
    """Lists and mappings of leaves; a mapping with a `$` key is a node: a call or reference.

    Attributes:
        name: name of the definition in the JSON schema.
        leaf: reads everything else.
        entry: kind of the entry point of a node.
        nodes: the keys of nodes.
        in_call: the tree of the arguments of a `$call`, if it differs.
    """

    name: str
    leaf: Kind[Any]
    entry: Kind[str]
    nodes: tuple[str, ...] = NODES
    in_call: Tree | None = None

    def read(self, value: object, at: Place) -> Value:
        """Check every leaf and every node, and return the tree with normalized entry points."""
        if isinstance(value, list):
            return [self.read(item, at.child(i)) for i, item in enumerate(value)]
        if not isinstance(value, dict):
            leaf: Value = self.leaf.read(value, at)
            return leaf
        for key in value:
            if key.startswith("$") and key not in self.nodes:
                hint = suggestion(key, self.nodes)
                raise at.key(key).error(f"{show(key)} is not allowed here.", hint)
        if "$ref" in value and len(value) > 1:
            raise at.error("$ref must be the only key.", "Use $call to pass arguments.")
        if "$tuple" in value and (len(value) > 1 or not isinstance(value["$tuple"], list)):
            message = "$tuple must be the only key, with a list as its value."
            raise at.error(message, 'Write {$tuple: ["f32[4]"]}.')
        inside = self.in_call or self if "$call" in value else self
        return {
            key: (self.entry if key in NODES else inside).read(item, at.child(key))
            for key, item in value.items()
        }

    def schema(self) -> Schema:
        """Return the schema."""
        return {"$ref": f"#/$defs/{self.name}"}

    def definition(self, doc: str, **own: Schema) -> Schema:
        """Return the definition that `schema` refers to; `own` are further keys of mappings."""
        items = self.schema()
        nodes: dict[str, Schema] = {key: self.entry.schema() for key in self.nodes if key in NODES}
        if "$tuple" in self.nodes:
            nodes["$tuple"] = {"type": "array", "items": items}
        keys = "".join(rf"\{key}$|" for key in (*nodes, *own))
        of_call = self.in_call.schema() if self.in_call else items
        mapping: Schema = {
            "type": "object",
            "properties": {**nodes, **own},
            "propertyNames": {"pattern": rf"^({keys}(?!\$))"},
            "if": {"required": ["$call"]},
            "then": {"additionalProperties": of_call},
            "else": {"additionalProperties": items},
            "dependentSchemas": {
                key: {"maxProperties": 1 + len(own)} for key in ("$ref", "$tuple") if key in nodes
            },
        }
        return {
            "description": doc,
            "anyOf": [self.leaf.schema(), {"type": "array", "items": items}, mapping],
        }


DATA = Tree("value", SCALAR, ENTRY)


class ParameterKind:
    """A value of a parameter: a scalar, a list, or a mapping; text in it is not a template."""

    def read(self, value: object, at: Place) -> Value:
        """Return the value with its entry points normalized."""
        if not isinstance(value, dict) or NAME not in value:
            return DATA.read(value, at)
        rest = {key: item for key, item in value.items() if key != NAME}
        data: Any = DATA.read(rest, at)
        return {NAME: VALUE_NAME.read(value[NAME], at.child(NAME)), **data}

    def schema(self) -> Schema:
        """Return the schema."""
        return DATA.schema()
