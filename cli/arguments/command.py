"""click commands with a few additions.

Help texts keep hand-formatted paragraphs, long option lists are grouped, every usage error refers
to the help of its command, and each command has `--traceback`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import click


class ErrorOptions:
    """Settings for how this run reports errors."""

    def __init__(self) -> None:
        self.traceback = False


class Command(click.Command):
    """A command whose help keeps the layout of examples and lists in its docstring.

    Attributes:
        groups: headings for a long list of options, each with the names of its parameters.
    """

    hide_traceback = True
    groups: ClassVar[Mapping[str, Sequence[str]]] = {}

    def __init__(
        self,
        *,
        help: str | None = None,
        params: Sequence[click.Parameter] | None = None,
        **kwargs: Any,
    ) -> None:
        params = [*(params or ()), _traceback_option(hidden=self.hide_traceback)]
        super().__init__(help=keep_layout(help or ""), params=params, **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments."""
        with _usage_errors_of(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _usage_errors_of(ctx):
            return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under the headings of `groups`; ungrouped options come last."""
        if not self.groups:
            super().format_options(ctx, formatter)
            return
        options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        records = {p.name: record for p in options if (record := p.get_help_record(ctx))}
        groups = {
            heading: [records.pop(name) for name in names if name in records]
            for heading, names in self.groups.items()
        }
        for heading, rows in {**groups, "Other": list(records.values())}.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


class Group(Command, click.Group):
    """A command group whose help keeps its layout."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. Without arguments, print the help and exit with code 2."""
        if not args and not ctx.resilient_parsing:
            from pallasc.cli.output.text import echo

            echo(ctx.get_help(), err=True)
            ctx.exit(2)  # as in click 8.2; older versions exit with 0
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments start with.

        Raises:
            click.UsageError: the command does not exist; the message suggests similar names.
        """
        name, commands = args[0], self.list_commands(ctx)
        # click has a better message for an unknown option, and shell completion must not fail.
        if name not in commands and not name.startswith("-") and not ctx.resilient_parsing:
            from pallasc.specs.spelling import suggestion

            hint = suggestion(name, commands, otherwise="Commands")
            raise click.UsageError(f"no such command {name!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)


def _traceback_option(*, hidden: bool) -> click.Option:
    """Return the `--traceback` option, which works before and after the command's name."""
    return click.Option(
        ["--traceback"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        hidden=hidden,
        callback=_show_traceback,
        help="Show the Python traceback of an error that ends the command, for bug reports.",
    )


def _show_traceback(ctx: click.Context, _: click.Parameter, flag: bool) -> None:
    options = ctx.find_object(ErrorOptions)
    if flag and options is not None:
        options.traceback = True


@contextmanager
def _usage_errors_of(ctx: click.Context) -> Iterator[None]:
    """Attach the command's context to usage errors; click's parser raises some without context."""
    try:
        yield
    except click.UsageError as error:
        # `main` needs the context to append "See COMMAND --help." to the message.
        error.ctx = error.ctx or ctx
        raise


def keep_layout(text: str) -> str:
    """Prevent click from rewrapping docstring paragraphs that contain indented lines.

    click's marker for this is a line with only a backspace.
    """
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(f"\b\n{part}" if "\n  " in part else part for part in paragraphs)
