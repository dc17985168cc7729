"""`pallasc cache pull`: bring all that a remote store has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import json_option, store_option
from pallasc.cli.arguments.remote import every_option, remote_option
from pallasc.cli.cache.shared import opened
from pallasc.cli.terminal.output import echo

if TYPE_CHECKING:
    from pallasc.cache.remote.settings import RemoteSettings


@click.command("pull", cls=Command, short_help="Bring all that the remote store has.")
@every_option
@store_option
@remote_option
@json_option("what was done")
def command(every: bool, store_root: Path | None, settings: RemoteSettings, as_json: bool) -> None:
    """Bring all variants that the remote store has for the toolchain here into the store.

    A build with --remote brings what it needs by itself; this is for machines that will not reach
    the remote store later. Everything is verified, and signatures are asked for where
    PALLASC_REQUIRE_SIGNED_REMOTE or remote-signed says so; what names paths of another machine is
    refused. Whether sources have changed is looked at by the next build. Ends with exit code 4
    where the remote store cannot be read.

    Examples:
      pallasc cache pull --remote gs://bucket/kernels
      pallasc cache pull --all --store /srv/mirror

    --json prints one object:
      schema   1
      brought  variants that were brought
      present  variants that were here before
      absent   variants that could not be taken
      and url, requests, bytes_read, bytes_written, refusals and more, as in pallasc build --json
    """
    from pallasc.cache.remote.remote import pull
    from pallasc.cli.cache import transferring
    from pallasc.cli.terminal.output import json_text
    from pallasc.compiler.builds.remote_tier import is_portable

    store = opened(store_root)
    names = transferring.namespaces(store, every=every)
    done = pull(settings, store, names, accept=is_portable, on_step=transferring.steps("brought"))
    transferring.warn_of(done)
    if as_json:
        echo(json_text(transferring.pulled_json(done)))
    else:
        echo(transferring.pulled_line(done))
