"""Building blocks of spec fields: the checks of their values.

The YAML and Python loaders share these definitions. `docs/spec_schema.py` generates the JSON schema
of specs from the `form` of each `Kind`, so that editors and the loader agree. msgspec checks
scalars. This module checks lists, mappings, and trees, because errors need positions. The kinds of
entry points, data, and parameters are at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from pallasc.errors import Location, SpecError
from pallasc.specs.arrays import is_template, parse_template
from pallasc.specs.canonical import NAME, typed
from pallasc.specs.spelling import one_of, shortened, show, suggestion
from pallasc.specs.user_files import check_entry

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
        base_dir: the spec's folder, in which entry points and data files are looked up.
    """

    locate: Locate
    path: PathParts = ()
    origin: str = ""
    skip: int = 0
    base_dir: str = ""

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

    def unknown(
        self, what: str, word: str, known: Iterable[str], hint: str | None = None
    ) -> SpecError:
        """Return the error for an unknown key of this mapping."""
        hint = hint or suggestion(word, known, otherwise=f"Known {what}s")
        error = self.error(f"unknown {what} {show(word)}.", hint)
        error.location = self.key(word).location
        return error

    def check_known(self, what: str, words: Iterable[str], known: Collection[str]) -> None:
        """Check keys of this mapping.

        Raises:
            SpecError: a key is unknown.
        """
        for word in words:
            if word not in known:
                raise self.unknown(what, word, known)

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


class Kind(NamedTuple):
    """The type of a field.

    Attributes:
        read: checks and normalizes a value, or raises `SpecError`.
        form: the values that `read` accepts, for `docs/spec_schema.py`: the name of a form, and its
            data.
    """

    read: Callable[[Any, Place], Any]
    form: tuple[Any, ...]

    def checked(self, check: Callable[[Any, Place], Any]) -> Kind:
        """Return this kind with a further check, which returns the value to use.

        Errors of the check without a location get the value's.
        """

        def read(value: Any, at: Place) -> Any:
            own = self.read(value, at)
            with at.blamed():
                return check(own, at)

        return self._replace(read=read)


def expected(what: str, value: object, at: Place, hint: str | None = None) -> SpecError:
    """Return the error for a value of the wrong type."""
    return at.error(f"expected {what}, got {show(value)}.", hint)


class Field(NamedTuple):
    """One key of a record."""

    name: str
    kind: Kind
    doc: str
    required: bool = False


def leaf(type_: Any, what: str, hint: str | None = None, known: Iterable[str] = ()) -> Kind:
    """Return the kind of scalars of a msgspec type.

    Args:
        type_: the type.
        what: its name in messages.
        hint: what to write instead of a wrong value.
        known: values that the JSON schema lists for completion in editors.
    """

    def read(value: Any, at: Place) -> Any:
        if isinstance(value, str):
            check_characters(value, at)
        try:
            msgspec.convert(value, type_)
        except msgspec.ValidationError:
            if type(value) is int and value >= 2**63:
                raise at.error(f"{show(value)} is too large: numbers have 63 bits.") from None
            raise expected(what, value, at, hint) from None
        if isinstance(value, float) and not math.isfinite(value):
            raise at.error(
                f"{value} is not allowed in a spec.",
                "Under static or matrix, write {$ref: math:inf} or {$ref: math:nan}.",
            )
        return value

    return Kind(read, ("leaf", type_, known))


def check_characters(text: str, at: Place) -> None:
    """Refuse text that no file can hold.

    Raises:
        SpecError: it has a lone surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        message = f"{show(text)} contains a lone surrogate, which is only half of a character."
        hint = "Write the whole character, or its number, such as \\U0001f600."
        raise at.error(message, hint) from None


def text(
    what: str, pattern: str = r".+", hint: str | None = None, known: Iterable[str] = ()
) -> Kind:
    """Return the kind of text that matches a pattern as a whole."""
    # In Python, `$` alone would accept a line feed after it.
    return leaf(Annotated[str, Meta(pattern=rf"^(?:{pattern})$(?!\n)")], what, hint, known)


def number(least: int = 0, *, whole: bool = True) -> Kind:
    """Return the kind of numbers that are at least `least`."""
    if whole:
        what = f"a whole number of at least {least}"
        return leaf(Annotated[int, Meta(ge=least, le=2**63 - 1)], what)
    return leaf(Annotated[float, Meta(ge=least)], f"a number of at least {least}")


def choice(*words: str) -> Kind:
    """Return the kind of text that is one of these words."""
    return leaf(Literal[words], one_of(words))


FLAG = leaf(bool, "true or false")
SCALAR = leaf(str | int | float | bool | None, "text, a number, true, false or null")


def filled(kind: Kind) -> Kind:
    """Return the kind of values of `kind`, and of templates, which are checked when filled in."""

    def read(value: Any, at: Place) -> Any:
        if isinstance(value, str) and is_template(value):
            check_characters(value, at)
            with at.blamed():
                parse_template(value)
            return value
        return kind.read(value, at)

    return Kind(read, ("filled", kind))


def list_of(item: Kind, what: str, minimum: int = 1, *, repeats: bool = False) -> Kind:
    """Return the kind of lists of `item`, read as tuples; duplicates need `repeats`."""

    def read(value: Any, at: Place) -> tuple[Any, ...]:
        if not isinstance(value, list):
            hint = f'Write ["{value}"].' if isinstance(value, str) else "Write […]."
            raise expected(f"a list of {what}", value, at, hint)
        if len(value) < minimum:
            raise at.error(f"the list of {what} is empty.", "Leave the field out, or add an item.")
        items = tuple(item.read(each, at.child(i)) for i, each in enumerate(value))
        seen: dict[str, int] = {}
        for index, each in enumerate(() if repeats else items):
            if seen.setdefault(typed(each), index) != index:
                place = at.child(index)
                raise place.error(f"{show(each)} is in the list twice.", "Remove one of them.")
        return items

    return Kind(read, ("list", item, minimum, repeats))


def by_type(kinds: Mapping[type, Kind]) -> Kind:
    """Return the kind of values of several types; the last one rejects other types."""
    *_, last = kinds.values()
    return Kind(
        lambda value, at: kinds.get(type(value), last).read(value, at), ("any", *kinds.values())
    )


def map_of(
    key: Kind,
    item: Kind,
    what: str,
    minimum: int = 1,
    special: tuple[Field, ...] = (),
    hint: str | None = None,
) -> Kind:
    """Return the kind of mappings from user-chosen names to values of one kind.

    Args:
        key: kind of the names.
        item: kind of the values.
        what: plural noun for the entries in messages.
        minimum: minimum number of entries.
        special: keys that begin with `$`, each with its own kind.
        hint: what to write instead of a wrong value.
    """
    own = {field.name: field.kind for field in special}

    def read(value: Any, at: Place) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise expected(f"a mapping of {what}", value, at, hint)
        if len(value) < minimum:
            raise at.error(f"the mapping of {what} is empty.", "Leave it out, or add an entry.")
        for name in value:
            if own and name.startswith("$") and name not in own:
                raise at.unknown("key", name, own)
            if name not in own:
                key.read(name, at.key(name))
        return {
            name: own.get(name, item).read(each, at.child(name)) for name, each in value.items()
        }

    return Kind(read, ("map", key, item, minimum, special))


def record(
    fields: Iterable[Field], what: str = "field", elsewhere: Mapping[str, str] | None = None
) -> Kind:
    """Return the kind of mappings with known keys; `elsewhere` has hints for other keys."""
    table = {field.name: field for field in fields}
    required = [name for name, field in table.items() if field.required]

    def read(value: Any, at: Place) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise expected("a mapping", value, at)
        for key in value:
            if key not in table:
                raise at.unknown(what, key, table, (elsewhere or {}).get(key))
        for name in required:
            if name not in value:
                raise at.error(f"{what} {name!r} is missing.", table[name].doc)
        return {key: table[key].kind.read(item, at.child(key)) for key, item in value.items()}

    return Kind(read, ("record", *table.values()))


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


ENTRY = text(
    "an entry point",
    r"[^:]+:[^\W\d]\w*(\.[^\W\d]\w*)*",
    "Write package.module:function, or file.py:function.",
).checked(lambda text, at: check_entry(text, at.base_dir))


def tree(
    item: Kind, entry: Kind = ENTRY, nodes: tuple[str, ...] = NODES, in_call: Kind | None = None
) -> Kind:
    """Return the kind of lists and mappings; a mapping with a `$` key is a call or reference.

    Args:
        item: kind of the values that are neither lists nor mappings.
        entry: kind of the entry point of a node.
        nodes: the keys of nodes.
        in_call: the kind of the arguments of a `$call`, if it differs.
    """

    def read(value: Any, at: Place) -> Any:
        if isinstance(value, list):
            return [read(each, at.child(i)) for i, each in enumerate(value)]
        if not isinstance(value, dict):
            return item.read(value, at)
        for key in value:
            check_characters(key, at.key(key))
            if key.startswith("$") and key not in nodes:
                hint = suggestion(key, nodes)
                raise at.key(key).error(f"{show(key)} is not allowed here.", hint)
        if "$ref" in value and len(value) > 1:
            raise at.error("$ref must be the only key.", "Use $call to pass arguments.")
        if "$tuple" in value and (len(value) > 1 or not isinstance(value["$tuple"], list)):
            message = "$tuple must be the only key, with a list as its value."
            raise at.error(message, 'Write {$tuple: ["f32[4]"]}.')
        inside = in_call.read if in_call and "$call" in value else read
        return {
            key: (entry.read if key in NODES else inside)(each, at.child(key))
            for key, each in value.items()
        }

    return Kind(read, ("tree", item, entry, nodes, in_call))


DATA = tree(SCALAR)


def _value(value: Any, at: Place) -> Any:
    if not isinstance(value, dict) or NAME not in value:
        return DATA.read(value, at)
    rest = {key: item for key, item in value.items() if key != NAME}
    return {NAME: VALUE_NAME.read(value[NAME], at.child(NAME)), **DATA.read(rest, at)}


PARAMETER_VALUE = DATA._replace(read=_value)
"""A value of a parameter: a scalar, a list, or a mapping; text in it is not a template."""
