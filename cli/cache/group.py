"""`pallasc cache`: look after the store; each command has a file of its own."""

from __future__ import annotations

import click

from pallasc.cli.arguments.command import Group
from pallasc.cli.cache import (
    prune,
    stats,
    transfer,
    verify,
)


@click.group(
    "cache",
    cls=Group,
    short_help="Manage and share the store: stats, verify, prune, export, pull.",
)
def command() -> None:
    """Manage the store of compiled artifacts.

    It lies in $PALLASC_CACHE_DIR, else in pallasc below the user's cache folder.
    $PALLASC_CACHE_SIZE limits its size, 10GiB by default; what was used longest ago goes first.
    Users of a group share a store in a folder of that group with the mode 2775, whatever their
    umask; each trusts what the others put there, unless $PALLASC_REQUIRE_SIGNED_STORE is 1.

    A remote store behind it is shared by machines: push and pull move variants, and builds do so
    by themselves with --remote.

    Examples:
      pallasc cache stats
      pallasc cache verify --repair
      pallasc cache prune --dry-run
    """


for _command in (
    stats.command,
    verify.command,
    prune.command,
    transfer.export_command,
    transfer.import_command,
    transfer.push_command,
    transfer.pull_command,
):
    command.add_command(_command)
