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

    figures = stats(opened(store_root))
    if as_json:
        echo(json_text(figures.to_json()))
        return
    limit = "no limit" if figures.limit_bytes is None else f"of at most {figures.limit_bytes:,}"
    totals = figures.totals
    asked = totals.hits + totals.misses
    rate = f", {100 * totals.hits / asked:.0f} % of {asked}" if asked else ""
    rows = [
        ("folder", figures.folder),
        ("artifacts", f"{figures.entries}"),
        *([("source lines", f"{figures.source_lines}")] if figures.source_lines else []),
        *([("packs", f"{figures.packs}")] if figures.packs else []),
        ("bytes", f"{figures.bytes:,} {limit}, {figures.cubin_bytes:,} in cubins"),
        ("hits", f"{totals.hits}{rate}"),
        ("compiled", f"{totals.made} in {totals.spent_s:.1f} s"),
        ("time saved", f"{totals.saved_s:.1f} s"),
        ("quarantined", f"{figures.quarantined}"),
        *(("left alone", f"{name}, of another version") for name in figures.other_versions),
    ]
    echo("\n".join(f"{label:<12} {value}" for label, value in rows))
    warn(figures.warnings)
