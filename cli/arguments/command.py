"""Commands as click has them, but for three things.

Help texts keep what is laid out by hand, every mistake of usage knows whose help to read, and each
command takes `--traceback`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click


@dataclass(slots=True)
class Talk:
    """What one run of the command line was asked to say about its errors."""

    traceback: bool = False


class Command(click.Command):
    """A command whose help keeps examples and lists as its docstring has them."""

    def __init__(
        self,
        *,
        help: str | None = None,
        params: Sequence[click.Parameter] | None = None,
        **kwargs: Any,
    ) -> None:
        params = [*(params or ()), _traceback_option(hidden=True)]
        super().__init__(help=keep_layout(help or ""), params=params, **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments."""
        with _about(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _about(ctx):
            return super().invoke(ctx)


class Group(click.Group):
    """A group of commands whose help keeps its layout too."""

    hide_traceback = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; without any, show the help as for a mistake of usage."""
        if not args and not ctx.resilient_parsing:
            from pallasc.cli.terminal.output import echo

            echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def __init__(
        self,
        *,
        help: str | None = None,
        params: Sequence[click.Parameter] | None = None,
        **kwargs: Any,
    ) -> None:
        params = [*(params or ()), _traceback_option(hidden=self.hide_traceback)]
        super().__init__(help=keep_layout(help or ""), params=params, **kwargs)


def _traceback_option(*, hidden: bool) -> click.Option:
    """Return the option `--traceback`, which works before and after the command's name."""
    return click.Option(
        ["--traceback"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        hidden=hidden,
        callback=_want_traceback,
        help="Show Python's traceback of an error that ends the command, for a bug report; kernels "
        "that fail to compile have none.",
    )


def _want_traceback(ctx: click.Context, _: click.Parameter, flag: bool) -> None:
    talk = ctx.find_object(Talk)
    if flag and talk is not None:
        talk.traceback = True


@contextmanager
def _about(ctx: click.Context) -> Iterator[None]:
    """Add to a mistake of usage which command it is about; click's parser leaves that out."""
    try:
        yield
    except click.UsageError as error:
        error.ctx = error.ctx or ctx
        raise


def keep_layout(text: str) -> str:
    """Return a docstring in which paragraphs with indented lines are marked as not to be wrapped.

    The mark is click's: a line with nothing but a backspace.
    """
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(f"\b\n{part}" if "\n  " in part else part for part in paragraphs)
