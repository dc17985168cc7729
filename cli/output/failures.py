"""Turns errors into the text that a user sees and the exit code of the process."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import click

from pallasc.errors import CompileError, Location, PallascError

USAGE = 2
INTERRUPTED = 130
CLOSED_PIPE = 141
"""As shells report a program that wrote into a closed pipe: 128 + SIGPIPE."""
OUTPUT_LOST = 74
"""`EX_IOERR` of sysexits.h: what was to be printed could not be written."""


class Failure(NamedTuple):
    """How a run ends: what goes to the standard error output, and the exit code."""

    text: str
    exit_code: int


def failure(error: PallascError | click.ClickException | click.Abort) -> Failure:
    """Return how a run ends with this error."""
    if isinstance(error, PallascError):
        return Failure(f"error: {error_text(error)}", error.exit_code)
    if isinstance(error, click.UsageError):
        return Failure(_usage_text(error), USAGE)
    if isinstance(error, click.ClickException):
        return Failure(f"error: {error.format_message()}", USAGE)
    return Failure("interrupted", INTERRUPTED)  # click's Abort stands for KeyboardInterrupt


def is_output_error(error: OSError) -> bool:
    """Tell whether writing to a standard stream failed, not a file or the store.

    Streams write below Python, so the innermost frame is that of click or of the command line.
    """
    import traceback

    place = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        place = Path(frame.f_code.co_filename)
    folders = (Path(click.__file__).parent, Path(__file__).parents[1])
    # Files that are opened by name have it in their errors; streams have none.
    return (
        error.filename is None
        and place is not None
        and any(place.is_relative_to(folder) for folder in folders)
    )


def output_failure(error: OSError) -> Failure:
    """Return how a run ends whose output cannot be written."""
    return Failure(f"error: the output cannot be written: {error.strerror}.", OUTPUT_LOST)


def error_text(error: PallascError) -> str:
    """Return an error's own text; a kernel that failed to compile shows its source line too."""
    line = _source_line(error.location) if isinstance(error, CompileError) else ""
    if not line:
        return str(error)
    hint = [f"  {error.hint}"] if error.hint else []
    return "\n".join([f"{error.location}: {error.message}", f"    {line}", *hint])


def _source_line(location: Location | None) -> str:
    """Return `12 | the text of the line`, or nothing where it is not Python or cannot be read."""
    if location is None or not location.line or not location.file.endswith(".py"):
        return ""
    import linecache

    linecache.checkcache(location.file)  # a watch shows errors of what was edited meanwhile
    # linecache honours a coding line, and gives "" for what it cannot read.
    text = linecache.getline(location.file, location.line).strip()
    return f"{location.line} | {text}" if text else ""


def _usage_text(error: click.UsageError) -> str:
    command = error.ctx.command_path if error.ctx else "pallasc"
    message = error.format_message()
    return f"error: {message}\n  See {command} --help."
