"""`pallasc cache push`: send variants of the store to a remote one."""

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


@click.command("push", cls=Command, short_help="Send variants to the remote store.")
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
    """Send the variants of SPECS that the store has to the remote store.

    Nothing is compiled, and what is there already is not sent again. A build with --remote-write
    does this by itself for what it compiles. What depends on paths of this machine is not sent; a
    warning says why. Ends with exit code 4 where the remote store cannot be reached or written.

    Examples:
      pallasc cache push specs/ --remote s3://bucket/kernels
      PALLASC_REMOTE=file:///srv/kernels pallasc cache push specs/ -k matmul

    --json prints one object:
      schema   1
      sent     variants that were sent
      present  variants that were there before
      absent   variants that the store lacks
      bound    why variants depend on this machine, by their ids
      and url, requests, bytes_read, bytes_written, refusals and more, as in pallasc build --json
    """
    from pallasc.cache.remote.remote import push
    from pallasc.cli.cache import transferring
    from pallasc.cli.terminal.output import json_text

    store = opened(store_root)
    found = transferring.find_sendable(specs, store, selection)
    requests = {found.namespace: found.keys}
    done = push(settings, store, requests, on_step=transferring.steps("sent"))
    transferring.warn_of(done)
    if as_json:
        echo(json_text(transferring.pushed_json(done, found)))
    else:
        echo(transferring.pushed_line(done, found))
