"""Root of the command line: imports commands on demand, and handles the end of every run.

Only click is imported before the command is known.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from pallasc.cli.arguments.command import ErrorOptions, Group
from pallasc.cli.output.exits import as_interrupts
from pallasc.errors import PallascError

COMMANDS = (
    "build",
    "list",
    "inspect",
    "diff",
    "check",
    "report",
    "run",
    "bench",
    "tune",
    "warm",
    "machine",
    "lock",
    "bundle",
    "cache",
    "targets",
    "doctor",
    "init",
)
"""All commands, in the order of the help."""

_PLACES = {"tune": "tune.group:command", "targets": "list:targets_command"}
"""Modules and names of the commands that are not `pallasc.cli.<name>.command`."""

_CLOSED = (("stdin", "r", os.O_RDONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY))
"""Replacements for closed streams; stdout is read-only so that writing to it fails."""


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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments start with.

        Raises:
            click.UsageError: the command does not exist; the message suggests similar names.
        """
        name = args[0]
        # click has a better message for an unknown option, and shell completion must not fail.
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            from pallasc.specs.spelling import suggestion

            hint = suggestion(name, COMMANDS, otherwise="Commands")
            raise click.UsageError(f"no such command {name!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; if stdout's reader goes away, like `head`, end without a message."""
        try:
            # Flush here: a failing flush at Python's exit would give exit code 120.
            code = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            from pallasc.cli.output.exits import CLOSED_PIPE

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
    and their targets. Compiled kernels are kept in a store, so nothing is compiled twice. An
    artifact in the store has two names: its digest, and its action key, the digest of all inputs.
    `pallasc build --json` prints both.

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
        from pallasc.cli.output.exits import is_output_error

        if not is_output_error(error):
            raise
        return _end(error, options)
    return int(code or 0)  # most commands return None


def _end(
    error: PallascError | click.ClickException | click.Abort | OSError, options: ErrorOptions
) -> int:
    """Print why the run ends, if possible, and return its exit code."""
    from pallasc.cli.output.exits import failure
    from pallasc.cli.output.text import echo

    text, exit_code = failure(error)
    try:
        if options.traceback:
            import traceback

            echo("".join(traceback.format_exception(error)), err=True, nl=False)
        echo(text, err=True)
    except OSError:
        pass  # nothing can be printed; the exit code has to do
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
            # Collecting the stream object must not free its descriptor for the next file.
            stream = os.fdopen(number, mode, encoding="utf-8", errors="replace", closefd=False)
            setattr(sys, name, stream)


def _discard_output() -> None:
    """Redirect broken streams to /dev/null, so that Python's flush at exit does not fail."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
