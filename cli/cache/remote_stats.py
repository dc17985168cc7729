"""`pallasc cache remote-stats`: what a remote store has."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pallasc.cache.sizes import size
from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import json_option, store_option
from pallasc.cli.arguments.remote import every_option, remote_option
from pallasc.cli.cache.shared import opened, warn
from pallasc.cli.terminal.output import echo

if TYPE_CHECKING:
    from pallasc.cache.remote.settings import RemoteSettings
    from pallasc.cache.remote.survey import NamespaceStats

_DAY_S = 86_400.0


@click.command("remote-stats", cls=Command, short_help="Show what the remote store has.")
@every_option
@click.option("--verify", "verifies", is_flag=True, help="Read all of it, and name what is wrong.")
@store_option
@remote_option
@json_option("the figures")
def command(
    every: bool,
    verifies: bool,
    store_root: Path | None,
    settings: RemoteSettings,
    as_json: bool,
) -> int:
    """Show what the remote store has for the toolchain here.

    With --verify everything is read and compared with its digests; the exit code is 5 where
    something is wrong. Builds do not use what is wrong, and builds that write send it anew.

    Examples:
      pallasc cache remote-stats --remote s3://bucket/kernels
      pallasc cache remote-stats --all --verify

    --json prints one object:
      schema      1
      url         of the remote store
      namespaces  a list, one for each toolchain; of each: namespace, here (whether it is that of
                  the toolchain here), variants, artifacts, indexes, packs, bytes, oldest_use_s,
                  newest_use_s (of packs, in seconds since 1970)
      faults      what --verify found, or null
    """
    from pallasc.cache.remote.survey import survey, verify
    from pallasc.cli.cache import transferring
    from pallasc.cli.terminal.output import json_text
    from pallasc.errors import CorruptError

    names = transferring.namespaces(opened(store_root), every=every)
    here = transferring.namespaces(opened(store_root), every=False) if every else names
    found = survey(settings, names)
    faults = verify(settings, names) if verifies else None
    if as_json:
        rows = [{**each._asdict(), "here": each.namespace in (here or ())} for each in found]
        data = {"url": settings.address.text, "namespaces": rows, "faults": faults}
        echo(json_text(data))
    else:
        echo(_text(settings.address.text, found, time.time()))
        warn(tuple(faults or ()))
    return CorruptError.exit_code if faults else 0


def _text(url: str, found: list[NamespaceStats], now_s: float) -> str:
    """Return a table of the namespaces, with the sums where there are several."""
    from pallasc.cli.terminal.output import table

    rows = [
        [
            each.namespace[:12],
            f"{each.variants:,}",
            f"{each.artifacts:,}",
            f"{each.packs:,}",
            size(each.bytes),
            _age(each.newest_use_s, now_s),
            _age(each.oldest_use_s, now_s),
        ]
        for each in found
    ]
    head = ["NAMESPACE", "VARIANTS", "ARTIFACTS", "PACKS", "SIZE", "USED", "OLDEST"]
    return f"{url}\n{table(head, rows, right=head[1:])}"


def _age(time_s: int, now_s: float) -> str:
    """Return how long ago something was, in days."""
    if not time_s:
        return "-"
    days = max(0.0, now_s - time_s) / _DAY_S
    return "today" if days < 1 else f"{days:.0f} d ago"
