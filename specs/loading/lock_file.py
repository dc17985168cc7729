"""Read lock files, and report the position of an error in a damaged one.

The form that pallasc writes is read line by line, which is fast even for ten thousand variants.
Other forms, left by an editor or a formatter, are read like specs.
"""

from __future__ import annotations

import re
from pathlib import Path

from pallasc.errors import SpecError
from pallasc.specs.fields import Field, MapOf, Place, Record, number, text
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

_NEWER = "this pallasc reads schemas"
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

_ANY = text("text", r"[\s\S]*")
_DIGEST = text("a digest of 64 hexadecimal digits", DIGEST)
_COMPONENT_FIELDS = Record(
    (Field("version", _ANY, "For people."), Field("digest", _DIGEST, "", True))
)
_RESOURCES = Record(tuple(Field(name, number(), name) for name in Resources._fields))
_ENTRY = Record(
    (
        *(Field(name, _DIGEST, name, True) for name in Entry._fields),
        Field("resources", _RESOURCES, "Numbers."),
        Field("cost", number(whole=False), "Seconds."),
    )
)
_FILE = Record(
    (
        Field("schema", number(), "Version of the format.", True),
        Field("toolchain", MapOf(_ANY, _COMPONENT_FIELDS, "components", 0), "The tools.", True),
        Field("tables", MapOf(_ANY, _DIGEST, "tables", 0), "Tables of tuned kernels."),
        Field("variants", MapOf(_ANY, _ENTRY, "variants", 0), "The variants.", True),
    )
)


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
    try:
        document = parse_document(text, file, most_values=_MOST_VALUES)
        return _lock(document.data, Place(document.place))
    except SpecError as error:
        error.hint = error.hint if _NEWER in error.message else _restore(file)
        raise


def _lock(data: object, at: Place) -> Lock:
    schema = data.get("schema", LOCK_SCHEMA) if isinstance(data, dict) else LOCK_SCHEMA
    if type(schema) is not int or schema not in READ_SCHEMAS:
        raise at.child("schema").error(
            f"the lock has schema {show(schema)}, and {_NEWER} {listed(map(str, READ_SCHEMAS))}.",
            "Install the pallasc that wrote it.",
        )
    fields = _FILE.read(data, at)
    variants = fields["variants"]
    return Lock(
        {label: Component(**component) for label, component in fields["toolchain"].items()},
        {name: Entry(*(own[part] for part in Entry._fields)) for name, own in variants.items()},
        {name: float(own["cost"]) for name, own in variants.items() if "cost" in own},
        {
            name: Resources(**own["resources"])
            for name, own in variants.items()
            if "resources" in own
        },
        fields.get("tables", {}),
    )
