"""Tables of tuned kernels, `*.tuned.yaml`: the variant to use for a key on a GPU model.

The writer emits exactly these bytes: UTF-8 YAML, schema 1, kernels and rows sorted:

    table    = notes "schema: 1" LF "kernels:" ( " {}" LF | LF { kernel } )
    notes    = { "#" text LF }
    kernel   = "  " scalar ":" LF "    by: " list LF "    rows:" LF { row }
    row      = "      - {gpu: " scalar ", key: " list ", use: {" [ scalar ": " scalar
               { ", " scalar ": " scalar } ] "}" { ", " figure } "}" LF
    list     = "[" [ scalar { ", " scalar } ] "]"
    figure   = "artifact: " digest | "source: " text
             | "us: " number | "spread_percent: " number | "rounds: " n | "device: " text
             | "driver: " text | "clock_mhz: " n | "date: " text, in this order, each once at most
    scalar   = null | true | false | number | plain text of letters, digits and _ . - that YAML
               reads as text | text
    text     = text in double quotes, with YAML escapes for unprintable characters
    digest   = 64 lower-case hexadecimal digits, in double quotes if YAML reads them as a number

* `key` has a value for each parameter of `by`, in order; for a parameter with buckets, the value
  that names the bucket, or an exact value, which takes precedence
* `use` has the value of each tuned parameter; a list or a mapping is written as its label
  (`specs/templates.py`)
* `artifact` is informational: the digest of the measured artifact. A build warns if the variants
  that the row selects compile to other artifacts. `source` is the origin of a row from elsewhere
* the figures are the fields of `specs/tuning.Measured`; unknown figures are omitted

Each row is one line, so that changes are small and easy to review. The file has no checksum, which
any two branches would both change. The reader accepts any YAML with the same content, with the same
restrictions as specs.

History:
    1  the first version.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pallasc.errors import Location, SpecError
from pallasc.specs.canonical import plain
from pallasc.specs.fields import (
    PARAMETER,
    SCALAR,
    Field,
    ListOf,
    MapOf,
    Place,
    Record,
    number,
    text,
)
from pallasc.specs.loading.yaml_text import check_merged, decoded, parse_document, reads_as_text
from pallasc.specs.lock import DIGEST, quoted
from pallasc.specs.spelling import show
from pallasc.specs.templates import Scalar, typed
from pallasc.specs.tuning import Measured, Row, key_text, row_order
from pallasc.specs.user_files import read_regular, replace_file

TABLE_SCHEMA = 1
NOTES = (
    "# Which variants of tuned kernels are used where; review and commit it.",
    "# Written by pallasc tune pick; comments are not kept.",
)

_MOST_BYTES = 64 << 20
_MOST_VALUES = 2_000_000
"""Maximum number of values in one table; a row has about twenty."""

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_HINT = "Correct it, or restore the file; pallasc tune pick writes tables."


class Table(NamedTuple):
    """The rows of one kernel.

    Attributes:
        by: the parameters of the keys.
        rows: the rows, each with its position.
    """

    by: tuple[str, ...]
    rows: tuple[Row, ...]


_ANY = text("a name", r"[\s\S]*")
_DATE = text("a date", r"\d{4}-\d{2}-\d{2}", 'Write it like "2026-11-23".')
_ROW = Record(
    (
        Field("gpu", text("the name of a model"), "The model of GPU, like h100-sxm.", True),
        Field(
            "key",
            ListOf(SCALAR, "values", 0, repeats=True),
            "A value of each parameter of 'by'.",
            True,
        ),
        Field(
            "use",
            MapOf(_ANY, SCALAR, "tuned parameters"),
            "The value of each parameter that is tuned.",
            True,
        ),
        Field("artifact", text("a digest of 64 hexadecimal digits", DIGEST), "What was measured."),
        Field("source", text("text"), "Where the row is from."),
        Field("us", number(whole=False), "Microseconds."),
        Field("spread_percent", number(whole=False), "Interquartile range."),
        Field("rounds", number(), "Rounds."),
        Field("device", text("text"), "The GPU's name."),
        Field("driver", text("text"), "The driver's version."),
        Field("clock_mhz", number(), "SM clock."),
        Field("date", _DATE, "When."),
    )
)
_KERNEL = Record(
    (
        Field("by", ListOf(PARAMETER, "parameters", 0), "The parameters of the keys.", True),
        Field("rows", ListOf(_ROW, "rows", 0, repeats=True), "The rows.", True),
    )
)
_FILE = Record(
    (
        Field("schema", number(), f"Write schema: {TABLE_SCHEMA}.", True),
        Field("kernels", MapOf(_ANY, _KERNEL, "kernels", 0), _HINT, True),
    )
)


def read_table(path: str | os.PathLike[str], shown: str | None = None) -> dict[str, Table]:
    """Read the rows of each kernel in a table; there are none if the file does not exist.

    Args:
        path: the file.
        shown: the path to show in messages, by default `path`.

    Raises:
        SpecError: the file cannot be read, is not a table, or has two rows for one key.
    """
    if not os.path.lexists(path):
        return {}
    name = shown or str(path)
    return parse_table(decoded(read_regular(str(path), most_bytes=_MOST_BYTES), name, _HINT), name)


def parse_table(text: str, file: str) -> dict[str, Table]:
    """Parse the rows of each kernel in the text of a table.

    Args:
        text: content of the file.
        file: its name for messages.

    Raises:
        SpecError: the text is not a table, or has two rows for one key.
    """
    advice = "Take the rows that are right of both sides, and remove the marks."
    check_merged(text, file, "table", advice)
    if not text.strip():
        raise SpecError(
            "the table is empty.",
            location=Location(file),
            hint="Restore the file, or remove it: there need be no table.",
        )
    document = parse_document(text, file, most_values=_MOST_VALUES)
    data, at = document.data, Place(document.place)
    if isinstance(data, dict) and (schema := data.get("schema", TABLE_SCHEMA)) != TABLE_SCHEMA:
        raise at.child("schema").error(
            f"the table has schema {show(schema)}, and this pallasc reads schema {TABLE_SCHEMA}.",
            "Install the pallasc that wrote it.",
        )
    kernels = _FILE.read(data, at)["kernels"]
    return {name: _table(own, at.below(("kernels", name))) for name, own in kernels.items()}


def _table(fields: Mapping[str, Any], at: Place) -> Table:
    by: tuple[str, ...] = fields["by"]
    rows, seen = [], dict[str, Location]()
    for index, each in enumerate(fields["rows"]):
        place = at.below(("rows", index))
        row = _row(each, by, place)
        first = seen.setdefault(typed((row.gpu, row.key)), place.location)
        if first != place.location:
            raise place.error(
                f"a second row for {row.gpu}, {key_text(by, row.key)}; the first is at {first}.",
                "Remove one of them.",
            )
        rows.append(row)
    return Table(by, tuple(rows))


def _row(fields: Mapping[str, Any], by: Sequence[str], at: Place) -> Row:
    if len(fields["key"]) != len(by):
        raise at.child("key").error(
            f"the key has {_counted(fields['key'], 'value')}, and 'by' has "
            f"{_counted(by, 'parameter')}.",
            "Give a value of each parameter of 'by', in its order.",
        )
    figures = {name: own for name, own in fields.items() if name in Measured._fields}
    if figures and "us" not in figures:
        raise at.error("the row has figures of a measurement, and no time.", "Add us: <time>.")
    measured = Measured(**{**figures, "us": float(figures["us"])}) if figures else None
    others = {name: own for name, own in fields.items() if name not in figures}
    return Row(**others, measured=measured, place=at.location)


def _counted(items: Sequence[object], noun: str) -> str:
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"


def table_text(tables: Mapping[str, Table]) -> str:
    """Return the text of a table; it does not depend on the order of the rows."""
    lines = [*NOTES, f"schema: {TABLE_SCHEMA}", "kernels:" if tables else "kernels: {}"]
    for name in sorted(tables):
        by, rows = tables[name].by, sorted(tables[name].rows, key=row_order)
        lines += [f"  {_scalar(name)}:", f"    by: {_listed(by)}"]
        lines += ["    rows:" if rows else "    rows: []", *map(_line, rows)]
    return "\n".join([*lines, ""])


def write_table(path: str | os.PathLike[str], tables: Mapping[str, Table]) -> None:
    """Write a table in one step, and create its folder if needed.

    Raises:
        SpecError: it cannot be written; the old one remains.
    """
    replace_file(Path(path), table_text(tables).encode())


def _line(row: Row) -> str:
    use = ", ".join(f"{_scalar(name)}: {_scalar(value)}" for name, value in row.use.items())
    fields = [f"gpu: {_scalar(row.gpu)}", f"key: {_listed(row.key)}", f"use: {{{use}}}"]
    return f"      - {{{', '.join([*fields, *_figures(row)])}}}"


def _figures(row: Row) -> Iterator[str]:
    if row.artifact is not None:
        yield f"artifact: {_digest(row.artifact)}"
    if row.source:
        yield f"source: {quoted(row.source)}"
    for name, value in row.measured.to_json().items() if row.measured is not None else ():
        yield f"{name}: {quoted(value) if isinstance(value, str) else _scalar(value)}"


def _listed(values: Sequence[Scalar]) -> str:
    return f"[{', '.join(map(_scalar, values))}]"


def _scalar(value: object) -> str:
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) is not None and reads_as_text(value)
        return value if is_plain else quoted(value)
    if isinstance(value, float):
        text = repr(value)  # YAML 1.1 reads 1e-05 as text, and 1.0e-05 as a number
        return text if "." in text else text.replace("e", ".0e")
    return plain(value)


def _digest(text: str) -> str:
    return text if reads_as_text(text) else quoted(text)
