"""End of a run: error texts, exit codes, and SIGTERM and SIGHUP handled like Ctrl-C."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import click

from pallasc.errors import CompileError, Location, PallascError

USAGE = 2
INTERRUPTED = 130
CLOSED_PIPE = 141
"""Exit code of shells for a program that wrote to a closed pipe: 128 + SIGPIPE."""
OUTPUT_LOST = 74
"""`EX_IOERR` of sysexits.h: the output could not be written."""


def failure(error: PallascError | click.ClickException | click.Abort | OSError) -> tuple[str, int]:
    """Return text and exit code for an error; an `OSError` is an output error."""
    if isinstance(error, OSError):
        return (f"error: the output cannot be written: {error.strerror}.", OUTPUT_LOST)
    if isinstance(error, PallascError):
        return (f"error: {error_text(error)}", error.exit_code)
    if isinstance(error, click.UsageError):
        return (_usage_text(error), USAGE)
    if isinstance(error, click.ClickException):
        return (f"error: {error.format_message()}", USAGE)
    return ("interrupted", INTERRUPTED)  # click raises Abort for KeyboardInterrupt


def is_output_error(error: OSError) -> bool:
    """Return True if writing to a standard stream failed, rather than to a file or the store.

    Streams write below Python, so the innermost frame belongs to click or to the command line.
    """
    import traceback

    place = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        place = Path(frame.f_code.co_filename)
    folders = (Path(click.__file__).parent, Path(__file__).parents[1])
    # Errors of files opened by name contain the name; errors of streams do not.
    return (
        error.filename is None
        and place is not None
        and any(place.is_relative_to(folder) for folder in folders)
    )


def error_text(error: PallascError) -> str:
    """Return an error as text; the error of a failed compilation includes its source line."""
    line = _source_line(error.location) if isinstance(error, CompileError) else ""
    if not line:
        return str(error)
    hint = [f"  {error.hint}"] if error.hint else []
    return "\n".join([f"{error.location}: {error.message}", f"    {line}", *hint])


def error_line(error: PallascError | None) -> str:
    """Return the first line of an error's message, or "" without an error."""
    from pallasc.specs.spelling import one_line, printable

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


def _usage_text(error: click.UsageError) -> str:
    command = error.ctx.command_path if error.ctx else "pallasc"
    message = error.format_message()
    return f"error: {message}\n  See {command} --help."


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
_UNHANDLED = (signal.SIG_DFL, signal.default_int_handler)
_DEAF_S = 10.0
"""Longer than a run needs to end its workers and print the final messages."""
_AGAIN_S = 0.02


@contextmanager
def as_interrupts() -> Iterator[None]:
    """Raise `KeyboardInterrupt` for the first of these signals, unless they are handled or ignored.

    Later signals are ignored until the process ends, so that they do not interrupt the cleanup of
    workers. After ten seconds another signal counts, in case the first was lost. Python drops
    exceptions raised in finalizers; after that, a timer interrupts again.
    """
    # Only the main thread can set handlers.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    # nohup ignores SIGHUP, and a program that calls `main` may have its own handlers; keep both.
    ours = [number for number, handler in before.items() if handler in _UNHANDLED]
    report, first = sys.unraisablehook, _First()

    def hook(dropped: Any) -> None:
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            report(dropped)
        elif signal.SIGALRM in ours:
            # Repeated, because a signal just before a blocking call does not end the call. A thread
            # would need locks, which the code that the finalizer interrupted may hold.
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S, _AGAIN_S)

    for number in ours:
        signal.signal(number, first)
    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = report
        for number in ours:
            # Python restores its own handlers long before the process ends, but keeps SIG_IGN.
            is_over = first.came_s is not None
            signal.signal(number, signal.SIG_IGN if is_over else before[number])


class _First:
    """Signal handler that raises `KeyboardInterrupt` for the first of several signals."""

    def __init__(self) -> None:
        self.came_s: float | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now_s, is_again = time.monotonic(), number == signal.SIGALRM
        if is_again:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if is_again or self.came_s is None or now_s - self.came_s > _DEAF_S:
            self.came_s = now_s
            raise KeyboardInterrupt
