"""Commands as click has them, with a few additions.

Help texts keep paragraphs that are laid out by hand, long lists of options are grouped, every usage
error names the command whose help to read, and each command takes `--traceback`. What a docstring
says about `--json` is on the page `docs/json.md` and not in the help.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import click


class ErrorOptions:
    """How this run of the command line reports an error."""

    def __init__(self) -> None:
        self.traceback = False


_JSON = "\n\n--json "
"""What the paragraph of a docstring begins with that describes the JSON output; it is the last."""


class Command(click.Command):
    """A command whose help keeps examples and lists as its docstring has them.

    Attributes:
        json_text: what the command's docstring says about `--json`, "" if it says nothing.
        groups: the headings in a long list of options, each with the names of its parameters.
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
        text, mark, described = inspect.cleandoc(help or "").partition(_JSON)
        self.json_text = (mark + described).strip()
        super().__init__(help=keep_layout(text), params=params, **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments."""
        with _usage_errors_of(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _usage_errors_of(ctx):
            return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options below the headings of `groups`; those of no group come last."""
        if not self.groups:
            super().format_options(ctx, formatter)
            return
        options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        records = {p.name: record for p in options if (record := p.get_help_record(ctx))}
        for heading, names in self.groups.items():
            with formatter.section(heading):
                formatter.write_dl([records.pop(name) for name in names])
        with formatter.section("Other"):
            formatter.write_dl(list(records.values()))


class Group(Command, click.Group):
    """A group of commands whose help keeps its layout too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; without any, show the help and end with exit code 2."""
        if not args and not ctx.resilient_parsing:
            from pallasc.cli.output.text import echo

            echo(ctx.get_help(), err=True)
            ctx.exit(2)  # as in click 8.2; older ones end with 0
        return super().parse_args(ctx, args)


def _traceback_option(*, hidden: bool) -> click.Option:
    """Return the option `--traceback`, which works before and after the command's name."""
    return click.Option(
        ["--traceback"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        hidden=hidden,
        callback=_show_traceback,
        help="Show Python's traceback of an error that ends the command, for a bug report; kernels "
        "that fail to compile have none.",
    )


def _show_traceback(ctx: click.Context, _: click.Parameter, flag: bool) -> None:
    options = ctx.find_object(ErrorOptions)
    if flag and options is not None:
        options.traceback = True


@contextmanager
def _usage_errors_of(ctx: click.Context) -> Iterator[None]:
    """Attach the command's context to usage errors; click's parser raises some without it."""
    try:
        yield
    except click.UsageError as error:
        # Without it the message would name no command whose help to read.
        error.ctx = error.ctx or ctx
        raise


def keep_layout(text: str) -> str:
    """Return a docstring in which click does not rewrap paragraphs that have indented lines.

    The mark for that is click's own: a line that holds only a backspace.
    """
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(f"\b\n{part}" if "\n  " in part else part for part in paragraphs)
