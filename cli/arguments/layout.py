"""Commands as click has them, but for two things.

Help texts keep what is laid out by hand, and every mistake of usage knows whose help to read.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click


class Command(click.Command):
    """A command whose help keeps examples and lists as its docstring has them."""

    def __init__(self, *, help: str | None = None, **kwargs: Any) -> None:
        super().__init__(help=keep_layout(help or ""), **kwargs)

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

    def __init__(self, *, help: str | None = None, **kwargs: Any) -> None:
        super().__init__(help=keep_layout(help or ""), **kwargs)


@contextmanager
def _about(ctx: click.Context) -> Iterator[None]:
    """Say of a mistake of usage which command it is about; click's parser leaves that out."""
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
