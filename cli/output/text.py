"""Text on the standard streams: terminal capabilities, tables, times in words, errors."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import click

from pallasc.errors import CompileError, Location, PallascError, SpecError
from pallasc.specs.spelling import UNDECODED, one_line, printable

JSON_SCHEMA = 1
"""Schema version of `--json`; increased when the meaning of a field changes."""
_UNDECODED = {code: json.dumps(shown)[1:-1] for code, shown in UNDECODED.items()}

STATUS_COLOURS = {
    "hit": "cyan",
    "lowered": "cyan",
    "shared": "cyan",
    "compiled": "green",
    "failed": "red",
    "missing": "yellow",
    "skipped": "yellow",
}

NO_KERNELS = "no kernels"
"""Shown for a plan with only copies and fills."""

_MOST_WARNINGS = 5


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text, with control characters escaped by `printable`.

    All output goes through this module or `Screen`.

    Args:
        text: lines without colors.
        err: print to stderr.
        nl: append a line feed.
    """
    click.echo(printable(text), err=err, nl=nl)


def echo_command(text: str) -> None:
    """Print a workflow command for a CI service; its values are already escaped."""
    click.echo(text, err=True)


def echo_bytes(data: bytes) -> None:
    """Print a file's bytes to the binary stdout, regardless of the terminal's encoding."""
    click.echo(data, nl=False)


def json_text(data: Mapping[str, object]) -> str:
    """Return a JSON object in ASCII, with the schema version and sorted keys.

    `##` is escaped because CI services read commands after it. File names that are not UTF-8 are
    written as they are printed, because many readers reject lone surrogates.
    """
    whole = {"schema": JSON_SCHEMA, **data}
    text = json.dumps(whole, indent=2, sort_keys=True, ensure_ascii=False)
    if not text.isascii():
        text = text.translate(_UNDECODED)
        text = re.sub(r"[^\x00-\x7f]+", lambda other: json.dumps(other[0])[1:-1], text)
    return text.replace("##", r"#\u0023")


def fields(value: object, *names: str) -> dict[str, Any]:
    """Return attributes of an object by name, for its `--json` object."""
    return {name: getattr(value, name) for name in names}


def print_result(
    data: Mapping[str, object],
    lines: Iterable[str],
    *,
    as_json: bool,
    warnings: Sequence[str] = (),
) -> None:
    """Print a result on stdout as JSON, or as lines, with its warnings on stderr."""
    echo(json_text(data) if as_json else "\n".join(lines))
    print_warnings(() if as_json else warnings)


def print_warnings(warnings: Sequence[str], number: int | None = None) -> None:
    """Print the first few warnings, and the number of the others."""
    for warning in warnings[:_MOST_WARNINGS]:
        echo(f"warning: {warning}", err=True)
    left = (len(warnings) if number is None else number) - _MOST_WARNINGS
    if left > 0:
        echo(f"warning: and {left:,} more, which --json lists", err=True)


class Screen(NamedTuple):
    """An output stream and its capabilities.

    Attributes:
        stream: the stream.
        live: whether lines at the bottom can be redrawn.
        colour: whether colors are used.
    """

    stream: TextIO
    live: bool = False
    colour: bool = False

    def write(self, text: str) -> None:
        """Write and flush text."""
        self.stream.write(text)
        self.stream.flush()

    def size(self) -> tuple[int, int]:
        """Return the current columns and rows; 80 and 24 if unknown."""
        try:
            columns, rows = os.get_terminal_size(self.stream.fileno())
        except (OSError, ValueError):
            columns = rows = 0
        if columns and rows:  # a pseudo-terminal is 0 by 0 until its size is set
            return columns, rows
        import shutil

        return shutil.get_terminal_size()  # from COLUMNS and LINES, if set

    def paint(self, text: str, colour: str | None) -> str:
        """Return text in a color, if the screen has colors."""
        return click.style(text, fg=colour) if self.colour and colour else text

    def paint_status(self, line: str, status: str) -> str:
        """Return a line with the status at its beginning in the status's color."""
        end = len(status)
        return self.paint(line[:end], STATUS_COLOURS[status]) + line[end:]


def wants_colour(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Return True on a terminal, unless NO_COLOR is set (https://no-color.org)."""
    allowed = not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
    return stream.isatty() and allowed


def can_redraw(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Return True if lines can be redrawn: on a terminal that is not a CI log.

    Several CI services run jobs on a terminal and log everything written to it.
    """
    if environment.get("TERM") == "dumb" or is_ci(environment):
        return False
    return stream.isatty()


def stderr_screen() -> Screen:
    """Return a screen for this process's stderr."""
    stream = sys.stderr
    return Screen(stream, can_redraw(stream, os.environ), wants_colour(stream, os.environ))


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()
) -> str:
    """Return a table with headings, one line per row, without trailing spaces.

    Args:
        head: heading of each column.
        rows: cells of each row.
        right: headings of the right-aligned columns.
    """
    lines = [list(head), *(list(map(one_line, row)) for row in rows)]
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


def first_of(names: Sequence[str], most: int, noun: str = "more") -> str:
    """Return the first few names, and the number of the others: `a, b and 3 more`."""
    left = len(names) - most
    return ", ".join(names[:most]) + (f" and {left:,} {noun}" if left > 0 else "")


def duration(seconds: float) -> str:
    """Return `1.2 s`, `14 s`, `3 min 20 s` or `2 h 05 min`."""
    return f"{seconds:.1f} s" if seconds < 9.95 else elapsed(round(seconds))


def elapsed(seconds: float) -> str:
    """Return a duration in whole seconds, for something that is still running."""
    rounded = int(seconds)
    if rounded < 120:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60:02} min"


def about(seconds: float) -> str:
    """Return a rough estimate: `about 25 s`, `about 3 min`."""
    if seconds <= 55:
        return f"about {max(1, math.ceil(seconds / 5)) * 5} s"
    if seconds < 5400:
        return f"about {max(1, round(seconds / 60))} min"
    return f"about {round(seconds / 3600)} h"


@contextmanager
def refusing(
    path: Path | str, *, hint: str | None = None, doing: str = "written"
) -> Iterator[None]:
    """Convert file system errors into a `SpecError` that names the user's path.

    Raises:
        SpecError: the block raised an `OSError`.
    """
    try:
        yield
    except OSError as error:
        raise SpecError(f"{path} cannot be {doing}: {error.strerror}.", hint=hint) from error


def write_text(path: Path, text: str) -> None:
    """Write a file that the user named, and report it on stderr.

    Raises:
        SpecError: the file cannot be written.
    """
    with refusing(path, hint="Give --output another path."):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    echo(f"wrote {path}", err=True)


_ROOTS = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR", "WORKSPACE")
"""Variables in which GitHub, GitLab and Jenkins store the path of the repository."""


def workspace_root(environment: Mapping[str, str]) -> Path:
    """Return the repository's folder: as set by the CI service, else the current folder."""
    named = next((environment[name] for name in _ROOTS if environment.get(name)), ".")
    try:
        return Path(named).resolve()
    except FileNotFoundError:  # the current folder was removed
        return Path(named)


def is_ci(environment: Mapping[str, str]) -> bool:
    """Return True if a CI service started this process; they all set `CI`."""
    return environment.get("CI", "").lower() not in ("", "0", "false")


def relative_file(file: str, root: Path) -> str | None:
    """Return a file's path relative to `root`, with `/`; None if it is not below `root`."""
    # A link inside the repository may point outside, and the root itself may be a link.
    for path in (Path(os.path.abspath(file)), Path(file).resolve()):
        if path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return None


def error_text(error: PallascError) -> str:
    """Return an error as text; the error of a failed compilation includes its source line."""
    line = _source_line(error.location) if isinstance(error, CompileError) else ""
    if not line:
        return str(error)
    hint = [f"  {error.hint}"] if error.hint else []
    return "\n".join([f"{error.location}: {error.message}", f"    {line}", *hint])


def error_line(error: PallascError | None) -> str:
    """Return the first line of an error's message, or "" without an error."""
    lines = printable(error.message).strip().splitlines() if error else []
    return one_line(lines[0]) if lines else ""


def _source_line(location: Location | None) -> str:
    """Return `12 | text of the line`, or "" if it is not Python or cannot be read."""
    if location is None or not location.line or not location.file.endswith(".py"):
        return ""
    import linecache

    linecache.checkcache(location.file)  # the file may have been edited during a watch
    # linecache respects the source encoding, and returns "" if it cannot read the file.
    text = linecache.getline(location.file, location.line).strip()
    return f"{location.line} | {text}" if text else ""
