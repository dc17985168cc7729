"""`pallasc cache stats`: figures of the store, or of a remote store."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import asdict

from pallasc.cache.format import size
from pallasc.cli.arguments.build_options import every_option, required_settings
from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import json_option, store_option
from pallasc.cli.cache.shared import opened, warn
from pallasc.cli.terminal.output import echo

if TYPE_CHECKING:
    from pallasc.cache.remote.remote import NamespaceStats
    from pallasc.cache.store import Store

_DAY_S = 86_400.0


@click.command("stats", cls=Command)
@click.option(
    "--remote",
    is_flag=False,
    flag_value="",
    metavar="[URL]",
    help="Show this remote store instead, or the one that PALLASC_REMOTE or [tool.pallasc] names.",
)
@every_option
@click.option("--verify", "verifies", is_flag=True, help="Read all of the remote store.")
@store_option
@json_option("the figures")
def command(
    remote: str | None, every: bool, verifies: bool, store_root: Path | None, as_json: bool
) -> int:
    """Show what the store holds and how much time it has saved, or what a remote store holds.

    With --remote, figures are for the toolchain here, or with --all for every one. --verify reads
    everything and compares it with its digests; the exit code is 5 where something is wrong.
    Builds do not use damaged objects, and builds that write send them again.

    Examples:
      pallasc cache stats
      pallasc cache stats --remote s3://bucket/kernels
      pallasc cache stats --remote --all --verify

    --json with --remote prints one object:
      schema      1
      url         of the remote store
      namespaces  a list, one for each toolchain; of each: namespace, here (whether it is the
                  namespace of the toolchain here), variants, packs, bytes, oldest_use_s,
                  newest_use_s (of packs, in seconds since 1970)
      faults      what --verify found, or null
    """
    if remote is not None:
        return _show_remote(remote, opened(store_root), every, verifies, as_json)
    if every or verifies:
        raise click.UsageError(f"--{'all' if every else 'verify'} needs --remote.")
    from pallasc.cache.evict import read_limits
    from pallasc.cache.inventory import stats
    from pallasc.cache.uses import read_totals
    from pallasc.cli.terminal.output import json_text

    store, limits = opened(store_root), read_limits()
    figures, totals = stats(store), read_totals(store)
    if as_json:
        told = {"limit_bytes": limits.max_bytes, "limit_age_s": limits.max_age_s}
        echo(json_text({**figures.to_json(), **told, **asdict(totals)}))
        return 0
    limit = "no limit" if limits.max_bytes is None else f"of at most {limits.max_bytes:,}"
    asked = totals.hits + totals.misses
    rate = f", {100 * totals.hits / asked:.0f} % of {asked}" if asked else ""
    rows = [
        ("folder", figures.folder),
        ("artifacts", f"{figures.entries}"),
        *([("source lines", f"{figures.source_lines}")] if figures.source_lines else []),
        *([("packs", f"{figures.packs}")] if figures.packs else []),
        ("bytes", f"{figures.bytes:,} {limit}"),
        ("hits", f"{totals.hits}{rate}"),
        ("compiled", f"{totals.made} in {totals.spent_s:.1f} s"),
        ("time saved", f"{totals.saved_s:.1f} s"),
        ("quarantined", f"{figures.quarantined}"),
        *(("left alone", f"{name}, of another version") for name in figures.other_versions),
    ]
    echo("\n".join(f"{label:<12} {value}" for label, value in rows))
    warn(figures.warnings)
    return 0


def _show_remote(url: str, store: Store, every: bool, verifies: bool, as_json: bool) -> int:
    from pallasc.cache.remote.remote import survey, verify
    from pallasc.cli.cache.transfer import namespaces
    from pallasc.cli.terminal.output import json_text
    from pallasc.errors import CorruptError

    settings = required_settings(url or None)
    here = namespaces(store, every=False) or []
    names = None if every else here
    found = survey(settings, names)
    faults = verify(settings, names) if verifies else None
    if as_json:
        rows = [{**each._asdict(), "here": each.namespace in here} for each in found]
        data = {"url": settings.address.text, "namespaces": rows, "faults": faults}
        echo(json_text(data))
    else:
        echo(_table(settings.address.text, found, time.time()))
        warn(tuple(faults or ()))
    return CorruptError.exit_code if faults else 0


def _table(url: str, found: list[NamespaceStats], now_s: float) -> str:
    from pallasc.cli.terminal.output import table

    rows = [
        [
            each.namespace[:12],
            f"{each.variants:,}",
            f"{each.packs:,}",
            size(each.bytes),
            _age(each.newest_use_s, now_s),
            _age(each.oldest_use_s, now_s),
        ]
        for each in found
    ]
    head = ["NAMESPACE", "VARIANTS", "PACKS", "SIZE", "USED", "OLDEST"]
    return f"{url}\n{table(head, rows, right=head[1:])}"


def _age(time_s: int, now_s: float) -> str:
    if not time_s:
        return "-"
    days = max(0.0, now_s - time_s) / _DAY_S
    return "today" if days < 1 else f"{days:.0f} d ago"
