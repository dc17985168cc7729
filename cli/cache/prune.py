"""`pallasc cache prune`: remove what is no longer needed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import (
    dry_run_option,
    json_option,
    store_option,
    together,
)
from pallasc.cli.cache.shared import opened, warn
from pallasc.cli.terminal.output import count, echo
from pallasc.errors import SpecError, ToolError

if TYPE_CHECKING:
    from pallasc.cache.prune import Pruned

_REASONS = {
    "age": "not used within the age limit, ",
    "size": "over the size limit, ",
    "clear": "",  # the user asked for all of it
}


@click.command("prune", cls=Command)
@dry_run_option
@together(
    click.option("--size", metavar="SIZE", help="Keep at most this much: 5GiB, 300MB, none."),
    click.option(
        "--age",
        metavar="AGE",
        help="Remove what has not been used for this long: 30d, 12h, none.",
    ),
)
@click.option("--all", "everything", is_flag=True, help="Remove all, and reset the statistics.")
@click.option(
    "--remote",
    metavar="URL",
    help="Prune this remote store instead: packs that were not used for --age, and those used "
    "longest ago until the others fit --size.",
)
@click.option(
    "--keep",
    multiple=True,
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep the artifacts that this lock file names; repeatable.",
)
@store_option
@json_option("what was removed")
def command(
    dry_run: bool,
    everything: bool,
    remote: str | None,
    keep: tuple[Path, ...],
    store_root: Path | None,
    as_json: bool,
    size: str | None,
    age: str | None,
) -> int:
    """Make the store fit its limits, and remove what dead processes left.

    What was used longest ago goes first; a pack, which holds many artifacts, goes whole. What
    --keep names or a running build holds stays, and so does a blob that is younger than five
    minutes; where that leaves the store over a limit, the output says why. With --all, only what
    running builds hold stays. Ends with exit code 4 where something cannot be looked at or removed.

    A remote store is pruned only where --remote names it, with --size or --age; its server may
    have a rule for that, which is better. Packs that no catalog names go after a day. Ends with
    exit code 4 where a catalog is damaged; its packs stay.

    Examples:
      pallasc cache prune --dry-run
      pallasc cache prune --size 2GiB --age 30d --keep pallasc.lock
      pallasc cache prune --remote s3://bucket/kernels --age 90d --dry-run

    --json prints one object:
      dry_run       whether nothing was removed
      limit_bytes, limit_age_s   the limits, null for none
      bytes_before, bytes_after, excess_bytes
      records, blobs, manifests  how many of each went
      evicted       artifacts that went, and why; packs the same of packs
      kept          what stays though a limit says otherwise, and why
      leftovers     of dead processes
      held, complete, warnings
    and with --remote: url, dry_run, packs, unknown (objects that no catalog names), bytes,
    kept_packs, kept_bytes, unread
    """
    if everything and (remote is not None or keep or size is not None or age is not None):
        raise click.UsageError("--all takes no --remote, --keep, --size, or --age.")
    if remote is not None:
        if keep:
            raise click.UsageError("--keep is for a local store: leave it or --remote out.")
        return _prune_remote(remote, dry_run, as_json, size=size, age=age)
    from pallasc.cache.evict import read_limits
    from pallasc.cache.prune import clear, prune

    if everything:
        return _show_pruned(clear(opened(store_root), dry_run=dry_run), as_json)
    keys, store = _locked(keep), opened(store_root)
    pruned = prune(store, limits=read_limits(size, age), keep=keys, dry_run=dry_run)
    return _show_pruned(pruned, as_json)


def _locked(files: Sequence[Path]) -> frozenset[str]:
    """Return the action keys that lock files name.

    Raises:
        SpecError: one does not exist, is damaged, or is no lock file.
    """
    keys: set[str] = set()
    for file in files:
        from pallasc.specs.loading.lock_file import read_lock

        try:
            lock = read_lock(file)
        except SpecError as error:
            error.hint = "--keep takes a lock file, such as pallasc.lock."
            raise
        if lock is None:
            raise SpecError(f"there is no {file}.", hint="--keep takes a lock file.")
        keys.update(entry.action for entry in lock.variants.values())
    return frozenset(keys)


def _prune_remote(
    url: str, dry_run: bool, as_json: bool, *, size: str | None, age: str | None
) -> int:
    """Prune a remote store by the limits of the command line, and show what went.

    Raises:
        click.UsageError: neither limit is given.
        SpecError: the URL or a limit is wrong.
        RemoteError: the remote store fails, or can neither list nor delete.
    """
    from pallasc.cache.evict import parse_age, parse_size
    from pallasc.cache.remote.remote import prune as prune_packs
    from pallasc.cli.terminal.output import json_text
    from pallasc.compiler.builds.options import remote_settings

    if size is None and age is None:
        raise click.UsageError("--remote needs --size or --age: what is the remote store to fit?")
    settings = remote_settings(os.environ, url=url)
    if settings is None:
        raise click.UsageError("--remote names no remote store.")
    done = prune_packs(
        settings,
        max_age_s=None if age is None else parse_age(age, what="--age"),
        max_bytes=None if size is None else parse_size(size, what="--size"),
        dry_run=dry_run,
    )
    if as_json:
        data = {"url": settings.address.text, "dry_run": dry_run, **done._asdict()}
        echo(json_text(data))
        return ToolError.exit_code if done.unread else 0
    would = "would remove" if dry_run else "removed"
    unknown = f", {count(done.unknown, 'object')} that no catalog names" if done.unknown else ""
    echo(f"{would} {count(done.packs, 'pack')}{unknown}: {done.bytes:,} bytes")
    stays = "would stay" if dry_run else "stay"
    echo(f"{count(done.kept_packs, 'pack')} {stays}: {done.kept_bytes:,} bytes")
    warn(done.unread)
    return ToolError.exit_code if done.unread else 0


def _show_pruned(pruned: Pruned, as_json: bool) -> int:
    """Show what was removed, and return the exit code."""
    from pallasc.cli.terminal.output import json_text

    if as_json:
        echo(json_text(pruned.to_json()))
    else:
        echo("\n".join(_lines(pruned)))
        warn(pruned.warnings)
    return ToolError.exit_code if pruned.warnings else 0


def _lines(pruned: Pruned) -> Iterator[str]:
    """Yield a line for each artifact removed, for each reason to retain some, and the sums."""
    would = "would remove" if pruned.dry_run else "removed"
    for eviction in pruned.evictions:
        unit = eviction.unit
        if unit.is_pack:
            what = f"pack {unit.name[:12]} of {count(len(unit.keys), 'artifact')}"
        else:
            what = ", ".join(pruned.names.get(unit.name, [])) or unit.name[:12]
        yield f"{would} {what}: {_REASONS[eviction.reason]}{eviction.bytes:,} bytes"
    yield from _retained_lines(pruned)
    number = len(pruned.evictions) - pruned.records
    packs = f"{count(number, 'pack')}, " if number else ""
    yield (
        f"{would} {packs}{count(pruned.records, 'record')}, {count(pruned.blobs, 'blob')}, "
        f"{count(pruned.manifests, 'manifest')}: "
        f"{pruned.freed_bytes:,} of {pruned.plan.bytes_before:,} bytes"
    )
    yield from _excess_lines(pruned)


def _retained_lines(pruned: Pruned) -> Iterator[str]:
    reasons = {
        "kept": "named by --keep",
        "in use": "held by a running build",
        "young": f"made less than {pruned.limits.grace_s:.0f} s ago, or by a running build",
    }
    would = "would keep" if pruned.dry_run else "kept"
    for retained in pruned.plan.retained:
        what = count(retained.files, "file")
        if retained.records:
            what = count(retained.records, "artifact")
        yield f"{would} {what}: {reasons[retained.reason]}, {retained.bytes:,} bytes"
    if not pruned.plan.complete:
        yield f"{would} everything: not all of the store could be read"


def _excess_lines(pruned: Pruned) -> Iterator[str]:
    limit = pruned.limits.max_bytes
    if limit and pruned.excess_bytes:  # `clear` has a limit of 0 bytes, which nobody asked for
        still = "would still be" if pruned.dry_run else "is still"
        yield f"the store {still} {pruned.excess_bytes:,} bytes over its limit of {limit:,} bytes"
