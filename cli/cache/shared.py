"""What the commands of `pallasc cache` share: the store, and its warnings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pallasc.cli.terminal.output import echo

if TYPE_CHECKING:
    from pallasc.cache.store import Store

_MOST_WARNINGS = 5


def opened(root: Path | None, *, check_folders: bool = True) -> Store:
    """Return the store, which must be readable, or not exist.

    Raises:
        ToolError: it is not a folder, or cannot be listed.
        CorruptError: a folder is not its own, and `check_folders` is set.
    """
    from pallasc.cli.arguments.selection import open_store

    store = open_store(root, check_folders=False)
    if check_folders:
        store.folders.check(readable=True)
    else:
        any(store.folders.refused())
    return store


def warn(warnings: Sequence[str]) -> None:
    """Print the first few warnings, and how many more there are."""
    for warning in warnings[:_MOST_WARNINGS]:
        echo(f"warning: {warning}", err=True)
    if len(warnings) > _MOST_WARNINGS:
        left = len(warnings) - _MOST_WARNINGS
        echo(f"warning: and {left:,} more, which --json lists", err=True)
