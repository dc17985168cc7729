"""The `pallasc` command: imports subcommands on demand, handles signals, prints final errors.

To start quickly, it imports only click before the subcommand is known.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import click

from pallasc.cli.arguments.command import ErrorOptions, Group
from pallasc.errors import PallascError

USAGE = 2
INTERRUPTED = 130
CLOSED_PIPE = 141
"""Exit code of shells for a program that wrote to a closed pipe: 128 + SIGPIPE."""
OUTPUT_LOST = 74
"""`EX_IOERR` of sysexits.h: the output could not be written."""

COMMANDS = (
    "build", "list", "inspect", "diff", "check", "report", "run", "bench", "tune", "warm",
    "machine", "lock", "bundle", "cache", "targets", "doctor", "init",
)  # fmt: skip
"""All commands, in the order of the help."""

_PLACES = {
    "targets": "list:targets_command",
    "machine": "warm:machine_command",
}
"""Module and attribute of each command that is not at `pallasc.cli.<name>.command`."""

_CLOSED = (("stdin", "r", os.O_RDONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY))
"""Standard streams, with the modes in which /dev/null is opened to replace a closed one.
stdout is opened read-only, so that writing results to it fails."""


class LazyGroup(Group):
    """A group that imports its commands on demand."""

    hide_traceback = False

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, None if it does not exist."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = _PLACES.get(cmd_name, f"{cmd_name}:command").partition(":")
        command: click.Command = getattr(import_module(f"pallasc.cli.{module}"), attribute)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; end without a message if stdout's reader, such as `head`, closes it."""
        try:
            # Flush here: a failing flush at Python's exit would give exit code 120.
            code = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _discard_output()
            ctx.exit(CLOSED_PIPE)
        return code


def _show_version(ctx: click.Context, _: click.Parameter, flag: bool) -> None:
    if flag and not ctx.resilient_parsing:
        from pallasc.cli.output.text import echo
        from pallasc.version import installed_version

        echo(f"pallasc {installed_version()}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def root() -> None:
    """Compile Pallas Mosaic GPU kernels ahead of time, without a GPU.

    A spec (YAML, or Python with @pallasc.kernel or pallasc.declare) declares kernels, their arrays,
    and their targets. Compiled kernels, called artifacts, are kept in a store, so nothing is
    compiled twice. An artifact can be named by its digest, or by its action key: the digest of
    everything that the compilation depends on. `pallasc build --json` prints both.

    Results are printed to standard output, everything else to standard error. Without a command,
    pallasc prints this help to standard error and exits with code 2; so do groups of commands such
    as `bundle` and `cache`.

    Examples:
      pallasc init                               write a small spec to start from
      pallasc build kernels.yaml                 compile it
      pallasc inspect kernels.yaml --plan        show the launch plans
      pallasc build specs/ --target b200 -k matmul

    Exit codes:
      0    success
      1    a kernel failed to compile, or a check found a problem
      2    invalid command line, or a mistake in a spec
      3    missing from the store, or different from the lock file
      4    a tool, package, or device is missing
      5    corrupt or unsigned content, or a budget exceeded
      74   the output cannot be written
      130  interrupted
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: arguments without the program name; by default, this process's arguments.
    """
    options = ErrorOptions()
    _replace_closed_streams()
    try:
        with as_interrupts():
            # In standalone mode, click would print errors and exit.
            code = root.main(arguments, prog_name="pallasc", standalone_mode=False, obj=options)
        sys.stdout.flush()
    except (PallascError, click.ClickException, click.Abort) as error:
        return _end(error, options)
    # A full disk or a lost terminal can make any write fail.
    except OSError as error:
        if not is_output_error(error):
            raise
        return _end(error, options)
    return int(code or 0)  # Most commands return None.


def _end(
    error: PallascError | click.ClickException | click.Abort | OSError, options: ErrorOptions
) -> int:
    """Print the error that ends this run, if possible, and return the exit code."""
    from pallasc.cli.output.text import echo

    text, exit_code = failure(error)
    try:
        if options.traceback:
            import traceback

            echo("".join(traceback.format_exception(error)), err=True, nl=False)
        echo(text, err=True)
    except OSError:
        pass  # Nothing can be printed: only the exit code shows the error.
    _discard_output()
    return exit_code


def _replace_closed_streams() -> None:
    """Replace standard streams that were closed when Python started.

    Otherwise the next opened file would get a standard stream's descriptor, and libraries that
    print would write into it.
    """
    for name, mode, access in _CLOSED:
        if getattr(sys, name) is None:
            number = os.open(os.devnull, access)
            # Workers inherit the standard streams by descriptor.
            os.set_inheritable(number, True)
            # closefd: when the stream is garbage-collected, its descriptor must stay in use.
            stream = os.fdopen(number, mode, encoding="utf-8", errors="replace", closefd=False)
            setattr(sys, name, stream)


def _discard_output() -> None:
    """Redirect broken streams to /dev/null, so that Python's flush at exit does not fail."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def failure(error: PallascError | click.ClickException | click.Abort | OSError) -> tuple[str, int]:
    """Return message and exit code for an error; an `OSError` means that output was lost."""
    if isinstance(error, OSError):
        return (f"error: the output cannot be written: {error.strerror}.", OUTPUT_LOST)
    if isinstance(error, PallascError):
        from pallasc.cli.output.text import error_text

        return (f"error: {error_text(error)}", error.exit_code)
    if isinstance(error, click.UsageError):
        return (_usage_text(error), USAGE)
    if isinstance(error, click.ClickException):
        return (f"error: {error.format_message()}", USAGE)
    return ("interrupted", INTERRUPTED)  # click raises Abort for KeyboardInterrupt


def is_output_error(error: OSError) -> bool:
    """Return True if an error is from writing to a standard stream, not to a file or the store.

    Streams write in C code, so the innermost Python frame belongs to click or to `pallasc.cli`.
    """
    import traceback

    place = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        place = Path(frame.f_code.co_filename)
    folders = (Path(click.__file__).parent, Path(__file__).parent)
    # Errors of files opened by name contain the name; errors of streams do not.
    return (
        error.filename is None
        and place is not None
        and any(place.is_relative_to(folder) for folder in folders)
    )


def _usage_text(error: click.UsageError) -> str:
    command = error.ctx.command_path if error.ctx else "pallasc"
    message = error.format_message()
    return f"error: {message}\n  See {command} --help."


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
_UNHANDLED = (signal.SIG_DFL, signal.default_int_handler)
_DEAF_S = 10.0
"""Further signals are ignored for this long; ending workers and final messages takes less."""
_AGAIN_S = 0.02


@contextmanager
def as_interrupts() -> Iterator[None]:
    """Raise `KeyboardInterrupt` when one of `_SIGNALS` arrives, unless it is handled or ignored.

    Later signals are ignored until the process ends, so that they do not interrupt the cleanup of
    workers; but after ten seconds another signal counts, in case the first was lost. If Python
    drops the exception, because a finalizer was running, a timer raises it again.
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
            # The timer repeats, because a signal just before a blocking call does not end the call.
            # A thread would need locks, which the interrupted code may hold.
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S, _AGAIN_S)

    for number in ours:
        signal.signal(number, first)
    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = report
        if signal.SIGALRM in ours:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number in ours:
            # Python restores its own handlers long before the process ends, but keeps SIG_IGN.
            is_over = first.came_s is not None and number != signal.SIGALRM
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
