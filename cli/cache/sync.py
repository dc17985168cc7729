"""`pallasc cache sync`: bring what a remote store has, then send what it lacks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import (
    SpecSelection,
    json_option,
    selection_options,
    specs_argument,
    store_option,
)
from pallasc.cli.arguments.remote import remote_option
from pallasc.cli.cache.shared import opened
from pallasc.cli.terminal.output import echo

if TYPE_CHECKING:
    from pallasc.cache.remote.settings import RemoteSettings


@click.command("sync", cls=Command, short_help="Bring what the remote store has, send the rest.")
@specs_argument()
@selection_options
@store_option
@remote_option
@json_option("what was done")
def command(
    specs: tuple[str, ...],
    store_root: Path | None,
    settings: RemoteSettings,
    as_json: bool,
    **selection: Unpack[SpecSelection],
) -> None:
    """Bring what the remote store has for the toolchain here, then send the variants of SPECS.

    This is `pallasc cache pull` and `pallasc cache push SPECS` in one.

    Example:
      pallasc cache sync specs/ --remote s3://bucket/kernels

    --json prints one object:
      schema  1
      pulled  what pallasc cache pull --json prints, without schema
      pushed  what pallasc cache push --json prints, without schema
    """
    from pallasc.cache.remote.transfer import pull, push
    from pallasc.cli.cache import transferring
    from pallasc.cli.terminal.output import json_text
    from pallasc.compiler.builds.remote_tier import is_portable

    store = opened(store_root)
    names = transferring.namespaces(store, every=False)
    pulled = pull(settings, store, names, accept=is_portable, on_step=transferring.steps("brought"))
    found = transferring.find_sendable(specs, store, selection)
    requests = {found.namespace: found.keys}
    pushed = push(settings, store, requests, on_step=transferring.steps("sent"))
    for done in (pulled, pushed):
        transferring.warn_of(done)
    if as_json:
        data = {
            "pulled": transferring.pulled_json(pulled),
            "pushed": transferring.pushed_json(pushed, found),
        }
        echo(json_text(data))
    else:
        echo(transferring.pulled_line(pulled))
        echo(transferring.pushed_line(pushed, found))
