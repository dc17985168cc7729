"""Help texts: click wraps paragraphs, and keeps those that are laid out by hand."""

from __future__ import annotations

import inspect
from typing import Any

import click


class Command(click.Command):
    """A command whose help keeps examples and lists as its docstring has them."""

    def __init__(self, *, help: str | None = None, **kwargs: Any) -> None:
        super().__init__(help=keep_layout(help or ""), **kwargs)


class Group(click.Group):
    """A group of commands whose help keeps its layout too."""

    def __init__(self, *, help: str | None = None, **kwargs: Any) -> None:
        super().__init__(help=keep_layout(help or ""), **kwargs)


def keep_layout(text: str) -> str:
    """Return a docstring in which paragraphs with indented lines are marked as not to be wrapped.

    The mark is click's: a line with nothing but a backspace.
    """
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(f"\b\n{part}" if "\n  " in part else part for part in paragraphs)
