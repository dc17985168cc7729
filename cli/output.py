"""Data for the standard output: tables, JSON, files."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from pallasc.errors import SpecError

JSON_SCHEMA = 1
"""Version of what `--json` prints; a field that changes its meaning raises it."""


def json_text(data: Mapping[str, Any]) -> str:
    """Return one JSON object with its schema version, keys sorted."""
    return json.dumps({"schema": JSON_SCHEMA, **data}, indent=2, sort_keys=True)


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()
) -> str:
    """Return rows in columns under their headings, without spaces at the ends of lines.

    Args:
        head: one heading a column.
        rows: the cells.
        right: headings of the columns that are aligned to the right.
    """
    lines = [list(head), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if name in right else cell.ljust(width)
            for name, cell, width in zip(head, line, widths, strict=True)
        ).rstrip()
        for line in lines
    )


def count(number: int, noun: str) -> str:
    """Return `1 variant` or `1,024 variants`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def write_text(path: Path, text: str) -> None:
    """Write a file that the user named, and say on the standard error output that it is there.

    Raises:
        SpecError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        file = next((one for one in path.parents if os.path.isfile(one)), None)
        reason = error.strerror if file is None else f"{file} is a file, not a folder"
        raise SpecError(
            f"{path} cannot be written: {reason}.", hint="Give --output another path."
        ) from error
    click.echo(f"wrote {path}", err=True)
