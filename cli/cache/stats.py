"""`pallasc cache stats`: what the store holds, and what it saved."""

from __future__ import annotations

from pathlib import Path

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import json_option, store_option
from pallasc.cli.cache.shared import opened, warn
from pallasc.cli.terminal.output import echo


@click.command("stats", cls=Command)
@store_option
@json_option("the figures")
def command(store_root: Path | None, as_json: bool) -> None:
    """Show what the store holds and how much time it has saved.

    Example:
      pallasc cache stats
    """
    from pallasc.cache.upkeep.stats import stats
    from pallasc.cli.terminal.output import json_text

    found = stats(opened(store_root))
    if as_json:
        echo(json_text(found.to_json()))
        return
    limit = "no limit" if found.limit_bytes is None else f"of at most {found.limit_bytes:,}"
    totals = found.totals
    asked = totals.hits + totals.misses
    rate = f", {100 * totals.hits / asked:.0f} % of {asked}" if asked else ""
    rows = [
        ("folder", found.folder),
        ("artifacts", f"{found.entries} ({found.pins} pinned)"),
        ("bytes", f"{found.bytes:,} {limit}, {found.cubin_bytes:,} in cubins"),
        ("hits", f"{totals.hits}{rate}"),
        ("compiled", f"{totals.made} in {totals.spent_s:.1f} s"),
        ("time saved", f"{totals.saved_s:.1f} s"),
        ("quarantined", f"{found.quarantined}"),
        *(("left alone", f"{name}, of another version") for name in found.other_versions),
    ]
    echo("\n".join(f"{label:<12} {value}" for label, value in rows))
    warn(found.warnings)
