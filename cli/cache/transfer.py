"""pallasc cache export, import, push, and pull: move artifacts between stores."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from pallasc.cli.arguments.build_options import every_option, remote_option
from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import (
    SpecSelection,
    json_option,
    selection_options,
    specs_argument,
    store_option,
)
from pallasc.cli.cache.shared import opened
from pallasc.cli.terminal.output import count, echo
from pallasc.cli.terminal.screen import Heartbeat
from pallasc.errors import CorruptError

if TYPE_CHECKING:
    from pallasc.cache.remote.remote import Transfer
    from pallasc.cache.remote.settings import RemoteSettings
    from pallasc.cache.store import Store
    from pallasc.cache.transfer import Imported
    from pallasc.cli.arguments.options import SpecSelection
    from pallasc.compiler.builds.remote_tier import Sendable


_MOST_NAMED = 5


def steps(what: str) -> Callable[[int, int], None]:
    """Return a callback that reports from time to time how far a transfer is.

    Args:
        what: is done with variants: `sent`.
    """
    heartbeat = Heartbeat(time.monotonic(), first_s=2.0)

    def step(done: int, total: int) -> None:
        if done < total and heartbeat.is_due(time.monotonic()):
            echo(f"{what} {done:,} of {count(total, 'variant')}", err=True)

    return step


def namespaces(store: Store, *, every: bool) -> list[str] | None:
    """Return the namespace of the toolchain here, None for those of all toolchains.

    Raises:
        ToolError: no toolchain is installed, and the store remembers none.
    """
    if every:
        return None
    from pallasc.compiler.builds.remote_tier import namespace_here

    return [namespace_here(store)]


def find_sendable(specs: tuple[str, ...], store: Store, selection: SpecSelection) -> Sendable:
    """Return what of the selected variants may be sent, and say what may not."""
    from pallasc.cli.arguments.selection import load_variants
    from pallasc.compiler.builds.remote_tier import sendable

    variants = load_variants(specs, store=store, timeout_s=None, memory_bytes=None, **selection)
    found = sendable(variants, store)
    for number, (variant, why) in enumerate(found.bound.items()):
        if number < _MOST_NAMED:
            echo(f"warning: {variant} is not sent: {why}", err=True)
    if len(found.bound) > _MOST_NAMED:
        left = len(found.bound) - _MOST_NAMED
        echo(f"warning: and {left:,} more that depend on this machine are not sent", err=True)
    return found


def pushed_json(done: Transfer, found: Sendable) -> dict[str, object]:
    """Return what `--json` prints of a push."""
    return {
        "sent": done.moved,
        "present": done.present,
        "absent": found.absent + done.left,
        "bound": found.bound,
        **done.stats.to_json(),
    }


def pulled_json(done: Transfer) -> dict[str, object]:
    """Return what `--json` prints of a pull."""
    return {
        "brought": done.moved,
        "present": done.present,
        "absent": done.left,
        **done.stats.to_json(),
    }


def pushed_line(done: Transfer, found: Sendable) -> str:
    """Return a line for a push."""
    parts = [f"sent {count(done.moved, 'variant')}", f"{done.present:,} were there"]
    if found.absent + done.left:
        parts.append(f"{found.absent + done.left:,} are not in the store")
    if found.bound:
        parts.append(f"{len(found.bound):,} depend on this machine")
    return f"{', '.join(parts)}: {_traffic(done)}"


def pulled_line(done: Transfer) -> str:
    """Return a line for a pull."""
    if not done.moved + done.present + done.left:
        return f"the remote store has no variants to bring: {_traffic(done)}"
    parts = [f"brought {count(done.moved, 'variant')}", f"{done.present:,} were there"]
    if done.left:
        parts.append(f"{done.left:,} could not be taken")
    return f"{', '.join(parts)}: {_traffic(done)}"


def warn_of(done: Transfer) -> None:
    """Print what was refused, and what is not deterministic."""
    stats = done.stats
    for text in stats.refused[:_MOST_NAMED]:
        echo(f"warning: refused: {text}", err=True)
    if stats.refusals > _MOST_NAMED:
        echo(f"warning: and {stats.refusals - _MOST_NAMED:,} more", err=True)
    for text in stats.conflicts[:_MOST_NAMED]:
        echo(f"warning: not deterministic: {text}", err=True)


def _traffic(done: Transfer) -> str:
    stats = done.stats
    return (
        f"{stats.bytes_written:,} bytes written, {stats.bytes_read:,} bytes read, "
        f"{count(stats.requests, 'request')}"
    )


@click.command("export", cls=Command)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("specs", nargs=-1)
@selection_options
@store_option
@json_option("what was exported")
def export_command(
    file: Path,
    specs: tuple[str, ...],
    store_root: Path | None,
    as_json: bool,
    **selection: Unpack[SpecSelection],
) -> int:
    """Write the store into FILE, for `pallasc cache import` on another machine.

    With SPECS, FILE gets their variants alone, as far as the store has them. The store is only
    read. Ends with exit code 5 where something in it is damaged, and leaves that out. Statistics
    are not exported.

    Examples:
      pallasc cache export kernels.pack
      pallasc cache export matmul.pack specs/ -k matmul

    --json prints one object: file, artifacts, manifests, bytes, and absent (ids of variants of
    SPECS that the store lacks)
    """
    from pallasc.cache.transfer import export_file
    from pallasc.cli.terminal.output import json_text

    store = opened(store_root)
    names: list[str] | None = None
    absent: list[str] = []
    if specs:
        names, absent = _selected(specs, store, selection)
    elif selection["targets"] or selection["expression"] or selection["all_points"]:
        raise click.UsageError("Options that select variants need SPECS.")
    store.read_only = True
    done = export_file(store, file, names)
    if as_json:
        echo(json_text({"file": str(file), **done._asdict(), "absent": absent}))
    else:
        lacking = f"; the store lacks {count(len(absent), 'variant')}" if absent else ""
        echo(f"wrote {file}: {count(done.artifacts, 'artifact')}, {done.bytes:,} bytes{lacking}")
    return CorruptError.exit_code if store.warnings else 0


def _selected(
    specs: tuple[str, ...], store: Store, selection: SpecSelection
) -> tuple[list[str], list[str]]:
    """Return names of manifests of variants and Python specs, and ids of absent variants."""
    from pallasc.compiler.builds.collect import SpecReader
    from pallasc.compiler.inputs.lookup import Lookup
    from pallasc.compiler.inputs.manifest import installed_or_remembered

    reader = SpecReader(store=store)
    chosen = reader.select(
        specs,
        selection["targets"],
        selection["expression"],
        all_points=selection["all_points"],
    )
    names, absent = list(reader.remembered), []
    with installed_or_remembered(store) as setup:
        lookup = Lookup(setup.context(store), store)
        for variant in chosen.variants:
            found = lookup.find(lookup.requests.of(variant))
            if found.artifact is None:
                absent.append(variant.id)
            else:
                names.append(found.manifest_key)
    return names, absent


@click.command("import", cls=Command)
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@store_option
@json_option("what was taken")
def import_command(files: tuple[Path, ...], store_root: Path | None, as_json: bool) -> int:
    """Take what `pallasc cache export` wrote into FILE into the store.

    Every byte is verified first: a file with any damage is refused, and nothing of it is stored.
    Where store and file have different artifacts under one action key, the compilation is not
    deterministic: the key is named, and the store keeps its own. Signatures are copied, nothing is
    signed; where $PALLASC_REQUIRE_SIGNED_STORE is 1, only what a trusted key signed is taken.

    Ends with exit code 5 where a file is damaged, or artifacts differ.

    Example:
      pallasc cache import shards/*.pack

    --json prints one object: imported, a list; of each file: file, artifacts and manifests (how
    many were taken), existed (artifacts that the store had), kept (manifests of the store that
    stay), unsigned, conflicts (action keys)
    """
    from pallasc.cache.transfer import import_file
    from pallasc.cli.terminal.output import json_text

    store = opened(store_root)
    done = []
    for file in files:
        done.append(import_file(store, file))
        if not as_json:
            echo("\n".join(_lines(done[-1])))
    if as_json:
        echo(json_text({"imported": [result.to_json() for result in done]}))
    return CorruptError.exit_code if any(result.conflicts for result in done) else 0


def _lines(done: Imported) -> Iterator[str]:
    for key in done.conflicts:
        yield f"conflict  {key}: the file has another artifact, and the store keeps its own"
    left = [
        (done.existed, "already there"),
        (done.kept, "requests kept as they are"),
        (done.unsigned, "entries left: no trusted key signed them"),
    ]
    more = "".join(f", {number:,} {what}" for number, what in left if number)
    yield f"{done.file}: {count(done.artifacts, 'artifact')} imported{more}"


@click.command("push", cls=Command, short_help="Send variants to the remote store.")
@specs_argument()
@selection_options
@store_option
@remote_option
@json_option("what was done")
def push_command(
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
    from pallasc.cli.cache import transfer as transferring
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


@click.command("pull", cls=Command, short_help="Bring all that the remote store has.")
@every_option
@store_option
@remote_option
@json_option("what was done")
def pull_command(
    every: bool, store_root: Path | None, settings: RemoteSettings, as_json: bool
) -> None:
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
    from pallasc.cli.cache import transfer as transferring
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
