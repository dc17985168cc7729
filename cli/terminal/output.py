"""What commands print, and the names of files as CI services have them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from pallasc.errors import SpecError
from pallasc.specs.plain_text import UNDECODED, one_line, printable

JSON_SCHEMA = 1
"""Version of what `--json` prints; a field that changes its meaning raises it."""
_UNDECODED = {code: json.dumps(shown)[1:-1] for code, shown in UNDECODED.items()}


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text as `printable` leaves it: the only way to a standard stream besides `Screen`.

    Args:
        text: lines without colours.
        err: to the standard error output.
        nl: followed by a line feed.
    """
    click.echo(printable(text), err=err, nl=nl)


def echo_command(text: str) -> None:
    """Print a command of a CI service, whose values are escaped already."""
    click.echo(text, err=True)


def json_text(data: Mapping[str, object]) -> str:
    """Return a JSON object with its schema version, keys sorted, in ASCII.

    `##`, which CI services look for, is escaped. Names of files that are not UTF-8 are written as
    they are printed, since many readers reject halves of surrogate pairs.
    """
    whole = {"schema": JSON_SCHEMA, **data}
    text = json.dumps(whole, indent=2, sort_keys=True, ensure_ascii=False)
    if not text.isascii():
        text = text.translate(_UNDECODED)
        text = re.sub(r"[^\x00-\x7f]+", lambda other: json.dumps(other[0])[1:-1], text)
    return text.replace("##", r"#\u0023")


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()
) -> str:
    """Return rows in columns under their headings, a line each, without trailing spaces.

    Args:
        head: one heading a column.
        rows: the cells.
        right: headings of the columns that are aligned to the right.
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


@contextmanager
def refusing(
    path: Path | str, *, hint: str | None = None, doing: str = "written"
) -> Iterator[None]:
    """Make an error of the file system the user's mistake, about the file that was named.

    Raises:
        SpecError: in place of that error.
    """
    try:
        yield
    except OSError as error:
        raise SpecError(f"{path} cannot be {doing}: {error.strerror}.", hint=hint) from error


def write_text(path: Path, text: str) -> None:
    """Write a file that the user named, and say so on the standard error output.

    Raises:
        SpecError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        file = next((parent for parent in path.parents if os.path.isfile(parent)), None)
        reason = error.strerror if file is None else f"{file} is a file, not a folder"
        raise SpecError(
            f"{path} cannot be written: {reason}.", hint="Give --output another path."
        ) from error
    echo(f"wrote {path}", err=True)


STANDARD_OUTPUT = Path("-")
"""What an option names that writes a report to the standard output."""


def check_reports(reports: Mapping[str, Path | None], *, as_json: bool) -> None:
    """Check that reports can be written where options say, before the work is done.

    Args:
        reports: by option, where a report goes; None for none.
        as_json: JSON goes to the standard output.

    Raises:
        click.UsageError: two of them go to the standard output.
        SpecError: a file cannot be written.
    """
    printed = ["--json"] if as_json else []
    for option, path in reports.items():
        if path == STANDARD_OUTPUT:
            printed.append(f"{option} -")
        elif path is not None:
            _check_writable(path, option)
    if len(printed) > 1:
        first, second = printed[:2]
        raise click.UsageError(
            f"{first} and {second} both write to the standard output: "
            f"name a file for {second.removesuffix(' -')}."
        )


def _check_writable(path: Path, option: str) -> None:
    import tempfile

    # /dev/stdout or a pipe: opening one to try it would be seen at its other end.
    if path.exists() and not path.is_file():
        return
    with refusing(path, hint=f"Give {option} another path."):
        path.parent.mkdir(parents=True, exist_ok=True)
        # A report replaces its file by a rename, for which the folder has to be writable.
        with tempfile.TemporaryFile(dir=path.parent):
            pass


def write_report(data: bytes, path: Path, option: str) -> None:
    """Write a report where an option says, "-" for the standard output: the whole file, or nothing.

    Raises:
        SpecError: it cannot be written.
    """
    from pallasc.specs.user_files import replace_file

    if path == STANDARD_OUTPUT:
        # Bytes go to the binary stream, past the encoding of the terminal.
        click.echo(data, nl=False)
        return
    with refusing(path, hint=f"Give {option} another path."):
        if path.exists() and not path.is_file():  # /dev/stdout, or a pipe
            path.write_bytes(data)
            return
    replace_file(path, data)


_ROOTS = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR", "WORKSPACE")
"""Where GitHub, GitLab and Jenkins say which folder that is."""

_NO = ("", "0", "false")


def workspace_root(environment: Mapping[str, str]) -> Path:
    """Return the folder of the repository: the CI service's, else the current one."""
    named = next((environment[name] for name in _ROOTS if environment.get(name)), ".")
    return Path(named).resolve()


def is_ci(environment: Mapping[str, str]) -> bool:
    """Tell whether a CI service started this process: they all set `CI`."""
    return environment.get("CI", "").lower() not in _NO


def relative_file(file: str, root: Path) -> str | None:
    """Return a file's path from `root`, with `/`; None if it is not below it."""
    # A link inside the repository may lead out of it, and the root may itself be a link.
    for path in (Path(os.path.abspath(file)), Path(file).resolve()):
        if path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return None
