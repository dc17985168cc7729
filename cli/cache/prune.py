"""`pallasc cache prune` and `clear`: remove what need not stay."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pallasc.cli.arguments.layout import Command
from pallasc.cli.arguments.options import json_option, store_option, traceback_option
from pallasc.cli.cache.shared import opened, warn
from pallasc.cli.terminal.output import echo
from pallasc.errors import ToolError

if TYPE_CHECKING:
    from pallasc.cache.upkeep.limits import Limits
    from pallasc.cache.upkeep.prune import Pruned


@click.command("prune", cls=Command)
@click.option("--dry-run", is_flag=True, help="Only tell what would go.")
@click.option("--size", metavar="SIZE", help="Keep at most this much: 5GiB, 300MB, none.")
@click.option("--age", metavar="AGE", help="Drop what was not used for so long: 30d, 12h, none.")
@store_option
@json_option("what went")
@traceback_option()
def prune_command(
    dry_run: bool, size: str | None, age: str | None, store_root: Path | None, as_json: bool
) -> int:
    """Make the store fit its limits, and clear what dead processes left.

    What was used longest ago goes first; never what a pin names or a running build holds, nor a
    blob that is younger than five minutes. What stays over a limit is told with its reason.
    Ends with exit code 4 where something cannot be looked at or removed.

    Examples:
      pallasc cache prune --dry-run
      pallasc cache prune --size 2GiB --age 30d
    """
    from pallasc.cache.upkeep.prune import prune

    pruned = prune(opened(store_root), limits=_limits(size, age), dry_run=dry_run)
    return _show_pruned(pruned, as_json)


@click.command("clear", cls=Command)
@click.option("--dry-run", is_flag=True, help="Only tell what would go.")
@store_option
@json_option("what went")
@traceback_option()
def clear_command(dry_run: bool, store_root: Path | None, as_json: bool) -> int:
    """Remove everything but what pins name and running builds hold.

    The statistics begin anew. Ends with exit code 4 where something cannot be looked at or removed.

    Example:
      pallasc cache clear --dry-run
    """
    from pallasc.cache.upkeep.prune import clear

    return _show_pruned(clear(opened(store_root), dry_run=dry_run), as_json)


def _limits(size: str | None, age: str | None) -> Limits:
    from dataclasses import replace

    from pallasc.cache.upkeep.limits import limits_from_environment, parse_age, parse_size

    limits = limits_from_environment()
    if size is not None:
        limits = replace(limits, max_bytes=parse_size(size, what="--size"))
    if age is not None:
        limits = replace(limits, max_age_s=parse_age(age, what="--age"))
    return limits


def _show_pruned(pruned: Pruned, as_json: bool) -> int:
    """Show what went, and return the exit code."""
    from pallasc.cli.render.pruned_text import pruned_lines
    from pallasc.cli.terminal.output import json_text

    if as_json:
        echo(json_text(pruned.to_json()))
    else:
        echo("\n".join(pruned_lines(pruned)))
        warn(pruned.warnings)
    return ToolError.exit_code if pruned.warnings else 0
