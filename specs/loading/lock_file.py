"""Read lock files, and report the position of an error in a damaged one.

The form that pallasc writes is read line by line, which is fast even for ten thousand variants.
Other forms, left by an editor or a formatter, are read like specs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pallasc.errors import SpecError
from pallasc.specs.fields import Field, MapOf, Number, Place, Record, Text, expected
from pallasc.specs.loading.yaml_text import check_merged, decoded, parse_document
from pallasc.specs.lock import (
    DIGEST,
    LOCK_SCHEMA,
    PLAIN,
    READ_SCHEMAS,
    Component,
    Entry,
    Lock,
    listed,
    update_command,
)
from pallasc.specs.resources import Resources
from pallasc.specs.spelling import show

_KEY = rf'(?:({PLAIN})|"([^"\\\n]+)")'
_NUMBERS = r"(?:[a-z_]{1,20}: \d{1,18}(?:, (?!\})|(?=\})))*"
_NUMBER = re.compile(r"([a-z_]+): (\d+)")
_VARIANT = re.compile(
    rf"^  {_KEY}: \{{action: ({DIGEST}), artifact: ({DIGEST}), request: ({DIGEST})"
    rf"(, resources: \{{{_NUMBERS}\}})?"
    r"(?:, cost: (\d{1,9}(?:\.\d{1,9})?))?\}\n",
    re.MULTILINE,
)
_COMPONENT = re.compile(
    rf'^  {_KEY}: \{{(?:version: "([^"\\\n]*)", )?digest: ({DIGEST})\}}\n', re.MULTILINE
)
_TABLE = re.compile(rf"^  {_KEY}: ({DIGEST})\n", re.MULTILINE)
_MOST_VALUES = 10_000_000
"""Maximum number of values in a lock, which has an entry for each variant its user compiles."""

_ANY_TEXT = Text("text", r"[\s\S]*")
_DIGEST_TEXT = Text("a digest of 64 hexadecimal digits", DIGEST)
_DIGEST_FIELD = Field("digest", _DIGEST_TEXT, "Decides whether the component is the same.", True)
_COMPONENT_FIELDS = Record((Field("version", _ANY_TEXT, "For people."), _DIGEST_FIELD))
_COST_FIELD = Field("cost", Number(whole=False), "Seconds.")
_DIGEST_FIELDS = tuple(Field(name, _DIGEST_TEXT, name, True) for name in Entry._fields)
_RESOURCES = Record(tuple(Field(name, Number(whole=True), name) for name in Resources._fields))
_ENTRY_FIELDS = Record((*_DIGEST_FIELDS, Field("resources", _RESOURCES, "Numbers."), _COST_FIELD))
_TOOLCHAIN = MapOf(_ANY_TEXT, _COMPONENT_FIELDS, "components", minimum=0)
_VARIANTS = MapOf(_ANY_TEXT, _ENTRY_FIELDS, "variants", minimum=0)
_TABLES = MapOf(_ANY_TEXT, _DIGEST_TEXT, "tables", minimum=0)
_SECTIONS = ("schema", "toolchain", "variants")
_OPTIONAL = ("tables",)


def read_lock(path: Path) -> Lock | None:
    """Read a lock file; return None if it does not exist.

    Raises:
        SpecError: it cannot be read, or as `parse_lock`.
    """
    file = str(path)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SpecError(f"{file} cannot be read: {error.strerror}.") from error
    # Universal newlines, as for text files.
    text = decoded(content, file, _restore(file)).replace("\r\n", "\n").replace("\r", "\n")
    return parse_lock(text, file)


def _restore(file: str) -> str:
    return f"Restore the file, or remove it and run: {update_command(file)}"


def parse_lock(text: str, file: str) -> Lock:
    """Parse the text of a lock file.

    Args:
        text: content of the file.
        file: its name for messages.

    Raises:
        SpecError: the lock is damaged, has a duplicate, or was written by a later pallasc; the
            location is the line.
    """
    return _parse_own_form(text) or _parse_any_form(text, file)


def _parse_own_form(text: str) -> Lock | None:
    """Parse the form that pallasc writes; return None for any other form.

    The notes may differ.
    """
    lines = text.split("\n", 20)
    notes = sum(len(line) + 1 for line in lines if line.startswith("#"))
    starts = [f"schema: {schema}\ntoolchain:\n" for schema in READ_SCHEMAS]
    head, separator, body = text[notes:].partition("\nvariants:\n")
    start = next(filter(head.startswith, starts), None)
    if not separator or start is None:
        return None
    head, _, listed_tables = f"{head.removeprefix(start)}\n".partition("tables:\n")
    tables = {a or b: digest for a, b, digest in _TABLE.findall(listed_tables)}
    toolchain = {a or b: Component(d, v) for a, b, v, d in _COMPONENT.findall(head)}
    rows = _VARIANT.findall(body)
    variants = {a or b: Entry(*digests) for a, b, *digests, _, _ in rows}
    costs = {a or b: float(cost) for a, b, *_, cost in rows if cost}
    resources = {a or b: _resources(numbers) for a, b, *_, numbers, _ in rows if numbers}
    # A line that no pattern matched, or a duplicate key, leaves fewer entries than lines.
    sections = (head, listed_tables, body)
    lengths = [len(toolchain), len(tables), len(variants)]
    is_complete = lengths == [section.count("\n") for section in sections]
    if not is_complete or None in resources.values() or not body.endswith("\n"):
        return None
    return Lock(toolchain, variants, costs, resources, tables)  # type: ignore[arg-type]


def _resources(text: str) -> Resources | None:
    """Return the resources in a line, None if one is duplicate or unknown."""
    numbers = [(name, int(value)) for name, value in _NUMBER.findall(text)]
    named = dict(numbers)
    is_known = len(named) == len(numbers) and named.keys() <= {*Resources._fields}
    return Resources(**named) if is_known else None


def _parse_any_form(text: str, file: str) -> Lock:
    """Parse a lock in any form that YAML allows."""
    check_merged(text, file, "lock", f"Take either side, then run: {update_command(file)}")
    with _advice(file):
        document = parse_document(text, file, most_values=_MOST_VALUES)
    at = Place(document.place)
    _check_schema(document.data, at)
    with _advice(file):
        return _lock(document.data, at)


@contextmanager
def _advice(file: str) -> Iterator[None]:
    """Add the hint for a generated file to errors."""
    try:
        yield
    except SpecError as error:
        error.hint = _restore(file)
        raise


def _check_schema(data: object, at: Place) -> None:
    schema = data.get("schema", LOCK_SCHEMA) if isinstance(data, dict) else LOCK_SCHEMA
    if type(schema) is not int or schema not in READ_SCHEMAS:
        raise at.child("schema").error(
            f"the lock has schema {show(schema)}, and this pallasc reads schemas "
            f"{listed(map(str, READ_SCHEMAS))}.",
            "Install the pallasc that wrote it.",
        )


def _lock(data: object, at: Place) -> Lock:
    if not isinstance(data, dict):
        raise expected("a lock", data, at)
    for name in _SECTIONS:
        if name not in data:
            raise at.error(f"field {name!r} of a lock file is missing.")
    for name in data:
        if name not in (*_SECTIONS, *_OPTIONAL):
            raise at.unknown("field", name, [*_SECTIONS, *_OPTIONAL])
    make_component: Callable[..., Component] = Component
    make_entry: Callable[..., Entry] = Entry
    toolchain = _TOOLCHAIN.read(data["toolchain"], at.child("toolchain"))
    variants = _VARIANTS.read(data["variants"], at.child("variants"))
    costs: dict[str, Any] = {
        name: entry.pop("cost") for name, entry in variants.items() if "cost" in entry
    }
    resources: dict[str, Any] = {
        name: entry.pop("resources") for name, entry in variants.items() if "resources" in entry
    }
    return Lock(
        {label: make_component(**component) for label, component in toolchain.items()},
        {name: make_entry(**entry) for name, entry in variants.items()},
        {name: float(cost_s) for name, cost_s in costs.items()},
        {name: Resources(**numbers) for name, numbers in resources.items()},
        _TABLES.read(data.get("tables", {}), at.child("tables")),
    )
