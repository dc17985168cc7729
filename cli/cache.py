"""`pallasc cache`: manage the store, copy it between machines, share it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import asdict

from pallasc.cache.format import size
from pallasc.cli import transfer
from pallasc.cli.arguments import options
from pallasc.cli.arguments.command import Command, Group
from pallasc.cli.arguments.variants import open_store, read_existing_lock
from pallasc.cli.output.text import count, print_result, table
from pallasc.errors import CorruptError, SpecError, ToolError

if TYPE_CHECKING:
    from pallasc.cache.prune import Pruned
    from pallasc.cache.remote.remote import NamespaceStats
    from pallasc.cache.store import Store
    from pallasc.cache.verify import Verified


@click.group(
    "cache",
    cls=Group,
    short_help="Manage and share the store: stats, verify, prune, export, pull.",
)
def command() -> None:
    """Manage the store of compiled artifacts.

    The store is in $PALLASC_CACHE_DIR, or by default in ~/.cache/pallasc. $PALLASC_CACHE_SIZE
    limits its size (default: 10GiB); least recently used entries are removed first.

    A group of users can share a store: put it in a folder of that group with mode 2775. Any umask
    works. Each user trusts the entries of the others, unless $PALLASC_REQUIRE_SIGNED_STORE is 1.

    Machines can share a remote store. Builds with --remote use it automatically; push and pull copy
    variants without a build.

    Examples:
      pallasc cache stats
      pallasc cache verify --repair
      pallasc cache prune --dry-run
    """


_DAY_S = 86_400.0


@command.command("stats", cls=Command)
@options.option(
    "--remote",
    "[URL]",
    "Show a remote store instead. Default: $PALLASC_REMOTE, or remote in [tool.pallasc].",
    is_flag=False,
    flag_value="",
)
@transfer.every_option
@options.flag("--verify", "Read and verify the whole remote store.", parameter="verifies")
@options.store_option
@options.json_option("the statistics")
def stats_command(
    remote: str | None, every: bool, verifies: bool, store_root: Path | None, as_json: bool
) -> int:
    """Show statistics of the store, or of a remote store.

    For a store, these are its contents and the compile time that hits have saved. For a remote
    store, they are its contents for the installed toolchain, or with --all for all toolchains.
    --verify reads every object and compares it with its digest; the exit code is 5 if an object is
    damaged. Builds ignore damaged objects, and builds with --remote-write replace them.

    Examples:
      pallasc cache stats
      pallasc cache stats --remote s3://bucket/kernels
      pallasc cache stats --remote --all --verify
    """
    if remote is not None:
        return _show_remote(remote, open_store(store_root, readable=True), every, verifies, as_json)
    if every or verifies:
        raise click.UsageError(f"--{'all' if every else 'verify'} needs --remote.")
    from pallasc.cache.evict import read_limits
    from pallasc.cache.inventory import stats
    from pallasc.cache.uses import read_totals

    store, limits = open_store(store_root, readable=True), read_limits()
    figures, totals = stats(store), read_totals(store)
    bounds = {"limit_bytes": limits.max_bytes, "limit_age_s": limits.max_age_s}
    data = {**asdict(figures), **bounds, **asdict(totals)}
    limit = "no limit" if limits.max_bytes is None else f"of at most {limits.max_bytes:,}"
    asked = totals.hits + totals.misses
    rate = f", {100 * totals.hits / asked:.0f} % of {asked}" if asked else ""
    rows = [
        ("folder", figures.folder),
        ("artifacts", f"{figures.entries}"),
        *([("packs", f"{figures.packs}")] if figures.packs else []),
        ("bytes", f"{figures.bytes:,} {limit}"),
        ("hits", f"{totals.hits}{rate}"),
        ("compiled", f"{totals.made} in {totals.spent_s:.1f} s"),
        ("time saved", f"{totals.saved_s:.1f} s"),
        ("quarantined", f"{figures.quarantined}"),
    ]
    lines = [f"{label:<12} {value}" for label, value in rows]
    print_result(data, lines, as_json=as_json, warnings=figures.warnings)
    return 0


def _show_remote(url: str, store: Store, every: bool, verifies: bool, as_json: bool) -> int:
    from pallasc.cache.remote.remote import survey, verify
    from pallasc.compiler.builds.remote_tier import namespace_here

    settings = transfer.required_settings(url or None)
    try:
        here = [namespace_here(store)]
    except ToolError:
        if not every:
            raise
        here = []
    names = None if every else here
    found = survey(settings, names)
    faults = verify(settings, names) if verifies else None
    rows = [{**each._asdict(), "here": each.namespace in here} for each in found]
    url = settings.address.text
    lines = [url, _namespaces(found, time.time())]
    if faults is not None:
        packs = count(sum(each.packs for each in found), "pack")
        lines.append(f"verified {packs}: {count(len(faults), 'fault')}")
    data = {"url": url, "namespaces": rows, "faults": faults}
    print_result(data, lines, as_json=as_json, warnings=faults or ())
    return CorruptError.exit_code if faults else 0


def _namespaces(found: list[NamespaceStats], now_s: float) -> str:
    rows = []
    for each in found:
        numbers = [f"{each.variants:,}", f"{each.packs:,}", size(each.bytes)]
        rows.append([each.namespace[:12], *numbers, _age(each.newest_use_s, now_s)])
    head = ["NAMESPACE", "VARIANTS", "PACKS", "SIZE", "USED"]
    return table(head, rows, right=head[1:])


def _age(time_s: int, now_s: float) -> str:
    if not time_s:
        return "-"
    days = max(0.0, now_s - time_s) / _DAY_S
    return "today" if days < 1 else f"{days:.0f} d ago"


@command.command("verify", cls=Command)
@options.flag("--repair", "Move damaged files to quarantine; the next build rebuilds them.")
@options.store_option
@options.json_option("the findings")
def verify_command(repair: bool, store_root: Path | None, as_json: bool) -> int:
    """Read the whole store and check every digest and field.

    This finds damaged and foreign files, but not forged files with valid checksums.

    --repair moves damaged files to the store's quarantine. The next build rebuilds them.

    The exit code is 5 if anything is damaged or unreadable and was not repaired.

    Examples:
      pallasc cache verify
      pallasc cache verify --repair
    """
    from pallasc.cache.verify import verify

    store = open_store(store_root, check_folders=False)
    any(store.folders.refused())  # raises an error if this is not a store
    verified = verify(store, repair=repair)
    print_result(verified.to_json(), _verified_lines(verified), as_json=as_json)
    return 0 if all(finding.repaired for finding in verified.findings) else 5


def _verified_lines(verified: Verified) -> Iterator[str]:
    for finding in verified.findings:
        state = "repaired" if finding.repaired else "damaged"
        yield f"{state}  {finding.kind} {finding.path}: {finding.reason}"
    packs = f"{count(verified.packs, 'pack')}, " if verified.packs else ""
    yield (
        f"{count(verified.records, 'record')}, {count(verified.blobs, 'blob')}, "
        f"{count(verified.manifests, 'manifest')}, {packs}read {count(verified.bytes, 'byte')}: "
        f"{count(len(verified.findings), 'finding')}"
    )


_REASONS = {
    "age": "not used within the age limit, ",
    "size": "over the size limit, ",
    "clear": "",  # --all needs no reason
}


@command.command("prune", cls=Command)
@options.flag("--dry-run", "List what would be removed, without removing it.")
@options.option("--size", "SIZE", "Maximum size to keep: 5GiB, 300MB, none.")
@options.option("--age", "AGE", "Remove entries not used for this long: 30d, 12h, none.")
@options.flag("--all", "Remove all entries and reset the statistics.", parameter="everything")
@options.option(
    "--remote",
    "[URL]",
    "Prune a remote store instead: remove packs unused for --age, then the least recently used "
    "until the rest fits --size. Default: $PALLASC_REMOTE, or remote in [tool.pallasc].",
    is_flag=False,
    flag_value="",
)
@options.file_option("--keep", "Keep the artifacts in this lock file; repeatable.", multiple=True)
@options.store_option
@options.json_option("the removed entries")
def prune_command(
    dry_run: bool,
    everything: bool,
    remote: str | None,
    keep: tuple[Path, ...],
    store_root: Path | None,
    as_json: bool,
    size: str | None,
    age: str | None,
) -> int:
    """Shrink the store, and remove leftovers of dead processes.

    The least recently used entries are removed first. A pack contains many artifacts and is removed
    as a whole. Artifacts named by --keep, artifacts in use by a running build, and artifacts with a
    blob younger than five minutes are kept. With --all, only artifacts in use by running builds are
    kept. The exit code is 4 if anything cannot be read or removed.

    To prune a remote store, use --remote with --size or --age. Only builds that may write to it
    record when they used a pack; a pack that only other builds read counts as unused. If the server
    supports lifecycle rules, prefer them. A plain web server cannot list packs, so its store cannot
    be pruned; a store on a WebDAV server can. Packs that no catalog (index) lists are removed after
    a day. If a catalog is damaged, its packs are kept and the exit code is 4.

    Examples:
      pallasc cache prune --dry-run
      pallasc cache prune --size 2GiB --age 30d --keep pallasc.lock
      pallasc cache prune --remote s3://bucket/kernels --age 90d --dry-run
    """
    if everything and (remote is not None or keep or size is not None or age is not None):
        raise click.UsageError("--all cannot be used with --remote, --keep, --size, or --age.")
    if remote is not None:
        if keep:
            raise click.UsageError("--keep is for a local store and cannot be used with --remote.")
        return _prune_remote(remote, dry_run, as_json, size=size, age=age)
    from pallasc.cache.evict import read_limits
    from pallasc.cache.prune import clear, prune

    if everything:
        return _show_pruned(clear(open_store(store_root, readable=True), dry_run=dry_run), as_json)
    try:
        keys = {own.action for file in keep for own in read_existing_lock(file).variants.values()}
    except SpecError as error:
        error.hint = "--keep takes a lock file, such as pallasc.lock."
        raise
    store, limits = open_store(store_root, readable=True), read_limits(size, age)
    pruned = prune(store, limits=limits, keep=frozenset(keys), dry_run=dry_run)
    return _show_pruned(pruned, as_json)


def _prune_remote(
    url: str, dry_run: bool, as_json: bool, *, size: str | None, age: str | None
) -> int:
    """Prune a remote store to the given limits, and print the result.

    Raises:
        click.UsageError: neither limit is given.
        SpecError: no remote store is named, or the URL or a limit is invalid.
        RemoteError: the remote store fails, or can neither list nor delete.
    """
    from pallasc.cache.evict import parse_age, parse_size
    from pallasc.cache.remote.remote import prune as prune_packs

    if size is None and age is None:
        raise click.UsageError("--remote needs --size or --age.")
    settings = transfer.required_settings(url or None)
    done = prune_packs(
        settings,
        max_age_s=None if age is None else parse_age(age, what="--age"),
        max_bytes=None if size is None else parse_size(size, what="--size"),
        dry_run=dry_run,
    )
    would = "would remove" if dry_run else "removed"
    unknown = f", {count(done.unknown, 'object')} that no catalog lists" if done.unknown else ""
    lines = [
        f"{would} {count(done.packs, 'pack')}{unknown}: {done.bytes:,} bytes",
        f"kept {count(done.kept_packs, 'pack')}: {done.kept_bytes:,} bytes",
    ]
    data = {"url": settings.address.text, "dry_run": dry_run, **done._asdict()}
    print_result(data, lines, as_json=as_json, warnings=done.unread)
    return ToolError.exit_code if done.unread else 0


def _show_pruned(pruned: Pruned, as_json: bool) -> int:
    """Print the result of pruning, and return the exit code."""
    lines, warnings = _pruned_lines(pruned), pruned.warnings
    print_result(pruned.to_json(), lines, as_json=as_json, warnings=warnings)
    return ToolError.exit_code if pruned.warnings else 0


def _pruned_lines(pruned: Pruned) -> Iterator[str]:
    """Yield a line per removed artifact, the number of kept ones, and the totals."""
    would = "would remove" if pruned.dry_run else "removed"
    for eviction in pruned.evictions:
        unit = eviction.unit
        if unit.is_pack:
            what = f"pack {unit.name[:12]} of {count(len(unit.keys), 'artifact')}"
        else:
            what = ", ".join([*pruned.names.get(unit.name, []), unit.name[:12]])
        yield f"{would} {what}: {_REASONS[eviction.reason]}{eviction.bytes:,} bytes"
    if pruned.plan.held:
        yield f"kept {count(pruned.plan.held, 'artifact')}: named by --keep, in use, or new"
    if not pruned.plan.complete:
        yield "kept everything: not all of the store could be read"
    number = len(pruned.evictions) - pruned.records
    packs = f"{count(number, 'pack')}, " if number else ""
    yield (
        f"{would} {packs}{count(pruned.records, 'record')}, {count(pruned.blobs, 'blob')}, "
        f"{count(pruned.manifests, 'manifest')}: "
        f"{pruned.freed_bytes:,} of {pruned.plan.bytes_before:,} bytes"
    )
    limit = pruned.limits.max_bytes
    if limit and pruned.excess_bytes:  # `clear` has a limit of 0 bytes, not set by the user
        yield f"still {pruned.excess_bytes:,} bytes over the limit of {limit:,} bytes"


for _command in (
    transfer.export_command,
    transfer.import_command,
    transfer.push_command,
    transfer.pull_command,
):
    command.add_command(_command)
