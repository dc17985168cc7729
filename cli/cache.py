"""`pallasc cache`: manage the store, copy it between machines, share it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import asdict

from pallasc.cache.format import size
from pallasc.cli.arguments.command import Command, Group
from pallasc.cli.arguments.options import (
    Selection,
    dry_run_option,
    every_option,
    files_argument,
    json_option,
    remote_option,
    required_settings,
    selection_options,
    specs_argument,
    store_option,
)
from pallasc.cli.output.progress import Heartbeat
from pallasc.cli.output.text import count, echo, json_text, print_result, table
from pallasc.errors import CorruptError, SpecError, ToolError

if TYPE_CHECKING:
    from pallasc.cache.prune import Pruned
    from pallasc.cache.remote.remote import NamespaceStats, Transfer
    from pallasc.cache.remote.settings import RemoteSettings
    from pallasc.cache.store import Store
    from pallasc.cache.transfer import Imported
    from pallasc.cache.verify import Verified


@click.group(
    "cache",
    cls=Group,
    short_help="Manage and share the store: stats, verify, prune, export, pull.",
)
def command() -> None:
    """Manage the store of compiled artifacts.

    The store is in $PALLASC_CACHE_DIR, or by default in pallasc in the user's cache folder.
    $PALLASC_CACHE_SIZE limits its size (default: 10GiB); least recently used entries are removed
    first.

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
@click.option(
    "--remote",
    is_flag=False,
    flag_value="",
    metavar="[URL]",
    help="Show a remote store instead. Default: $PALLASC_REMOTE, or remote in [tool.pallasc].",
)
@every_option
@click.option("--verify", "verifies", is_flag=True, help="Read and verify the whole remote store.")
@store_option
@json_option("the statistics")
def stats_command(
    remote: str | None, every: bool, verifies: bool, store_root: Path | None, as_json: bool
) -> int:
    """Show statistics of the store, or of a remote store.

    The statistics of the store are its contents, and the time that it has saved. With --remote,
    they are the contents for the installed toolchain, or with --all for all toolchains.
    --verify reads every object and compares it with its digest; the exit code is 5 if any is
    damaged. Builds ignore damaged objects, and builds with --remote-write replace them.

    Examples:
      pallasc cache stats
      pallasc cache stats --remote s3://bucket/kernels
      pallasc cache stats --remote --all --verify

    --json with --remote prints one object:
      schema      1
      url         URL of the remote store
      namespaces  list with one item per toolchain, each with: namespace, here (true for the
                  installed toolchain), variants, packs, bytes, oldest_use_s and newest_use_s (of
                  packs, in seconds since 1970)
      faults      faults found by --verify, or null
    """
    if remote is not None:
        return _show_remote(remote, _opened(store_root), every, verifies, as_json)
    if every or verifies:
        raise click.UsageError(f"--{'all' if every else 'verify'} needs --remote.")
    from pallasc.cache.evict import read_limits
    from pallasc.cache.inventory import stats
    from pallasc.cache.uses import read_totals

    store, limits = _opened(store_root), read_limits()
    figures, totals = stats(store), read_totals(store)
    bounds = {"limit_bytes": limits.max_bytes, "limit_age_s": limits.max_age_s}
    data = {**figures.to_json(), **bounds, **asdict(totals)}
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
        *(("ignored", f"{name}, different version") for name in figures.other_versions),
    ]
    print_result(data, (f"{label:<12} {value}" for label, value in rows), as_json=as_json)
    _warn(() if as_json else figures.warnings)
    return 0


def _show_remote(url: str, store: Store, every: bool, verifies: bool, as_json: bool) -> int:
    from pallasc.cache.remote.remote import survey, verify
    from pallasc.compiler.builds.remote_tier import namespace_here

    settings = required_settings(url or None)
    here = [namespace_here(store)]
    names = None if every else here
    found = survey(settings, names)
    faults = verify(settings, names) if verifies else None
    rows = [{**each._asdict(), "here": each.namespace in here} for each in found]
    url = settings.address.text
    lines = [url, _namespaces(found, time.time())]
    print_result({"url": url, "namespaces": rows, "faults": faults}, lines, as_json=as_json)
    _warn(() if as_json else tuple(faults or ()))
    return CorruptError.exit_code if faults else 0


def _namespaces(found: list[NamespaceStats], now_s: float) -> str:
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
    return table(head, rows, right=head[1:])


def _age(time_s: int, now_s: float) -> str:
    if not time_s:
        return "-"
    days = max(0.0, now_s - time_s) / _DAY_S
    return "today" if days < 1 else f"{days:.0f} d ago"


@command.command("verify", cls=Command)
@click.option(
    "--repair",
    is_flag=True,
    help="Move damaged files to quarantine; the next build rebuilds them.",
)
@store_option
@json_option("the findings")
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

    verified = verify(_opened(store_root, check_folders=False), repair=repair)
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
    "clear": "",  # the user asked for all of it
}


@command.command("prune", cls=Command)
@dry_run_option
@click.option("--size", metavar="SIZE", help="Maximum size to keep: 5GiB, 300MB, none.")
@click.option("--age", metavar="AGE", help="Remove entries not used for this long: 30d, 12h, none.")
@click.option(
    "--all", "everything", is_flag=True, help="Remove all entries and reset the statistics."
)
@click.option(
    "--remote",
    metavar="URL",
    help="Prune this remote store instead: packs not used for --age, then the least recently used "
    "ones until the rest fits --size.",
)
@click.option(
    "--keep",
    multiple=True,
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep the artifacts in this lock file; repeatable.",
)
@store_option
@json_option("the removed entries")
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
    """Shrink the store to its limits, and remove leftovers of dead processes.

    The least recently used entries are removed first. A pack contains many artifacts and is removed
    as a whole. Artifacts named by --keep, artifacts in use by a running build, and blobs younger
    than five minutes are kept; if the store is still over a limit, the output shows why. With
    --all, only artifacts in use by running builds are kept. The exit code is 4 if anything cannot
    be read or removed.

    A remote store is pruned only with --remote, and needs --size or --age. If its server has
    lifecycle rules, prefer those. Packs that are in no catalog are removed after a day. If a
    catalog is damaged, its packs are kept and the exit code is 4.

    Examples:
      pallasc cache prune --dry-run
      pallasc cache prune --size 2GiB --age 30d --keep pallasc.lock
      pallasc cache prune --remote s3://bucket/kernels --age 90d --dry-run

    --json prints one object:
      dry_run       true if nothing was removed
      limit_bytes, limit_age_s   the limits, null for no limit
      bytes_before, bytes_after, excess_bytes
      records, blobs, manifests  number of each removed
      evicted       removed artifacts, with the reason; packs has the same for packs
      kept          entries kept in spite of a limit, with the reason
      leftovers     leftovers of dead processes
      held, complete, warnings
    with --remote instead: url, dry_run, packs, unknown (objects that are in no catalog), bytes,
    kept_packs, kept_bytes, unread
    """
    if everything and (remote is not None or keep or size is not None or age is not None):
        raise click.UsageError("--all takes no --remote, --keep, --size, or --age.")
    if remote is not None:
        if keep:
            raise click.UsageError("--keep is for a local store and cannot be used with --remote.")
        return _prune_remote(remote, dry_run, as_json, size=size, age=age)
    from pallasc.cache.evict import read_limits
    from pallasc.cache.prune import clear, prune

    if everything:
        return _show_pruned(clear(_opened(store_root), dry_run=dry_run), as_json)
    keys, store = _locked(keep), _opened(store_root)
    pruned = prune(store, limits=read_limits(size, age), keep=keys, dry_run=dry_run)
    return _show_pruned(pruned, as_json)


def _locked(files: Sequence[Path]) -> frozenset[str]:
    """Return the action keys in lock files.

    Raises:
        SpecError: a file does not exist, is damaged, or is not a lock file.
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
    """Prune a remote store to the given limits, and print the result.

    Raises:
        click.UsageError: neither limit is given.
        SpecError: the URL or a limit is invalid.
        RemoteError: the remote store fails, or can neither list nor delete.
    """
    from pallasc.cache.evict import parse_age, parse_size
    from pallasc.cache.remote.remote import prune as prune_packs
    from pallasc.compiler.builds.options import remote_settings

    if size is None and age is None:
        raise click.UsageError("--remote needs --size or --age.")
    settings = remote_settings(os.environ, url=url)
    if settings is None:
        raise click.UsageError("--remote names no remote store.")
    done = prune_packs(
        settings,
        max_age_s=None if age is None else parse_age(age, what="--age"),
        max_bytes=None if size is None else parse_size(size, what="--size"),
        dry_run=dry_run,
    )
    would, stays = ("would remove", "would stay") if dry_run else ("removed", "stay")
    unknown = f", {count(done.unknown, 'object')} that no catalog names" if done.unknown else ""
    lines = [
        f"{would} {count(done.packs, 'pack')}{unknown}: {done.bytes:,} bytes",
        f"{count(done.kept_packs, 'pack')} {stays}: {done.kept_bytes:,} bytes",
    ]
    data = {"url": settings.address.text, "dry_run": dry_run, **done._asdict()}
    print_result(data, lines, as_json=as_json)
    _warn(() if as_json else done.unread)
    return ToolError.exit_code if done.unread else 0


def _show_pruned(pruned: Pruned, as_json: bool) -> int:
    """Print the result of pruning, and return the exit code."""
    print_result(pruned.to_json(), _pruned_lines(pruned), as_json=as_json)
    _warn(() if as_json else pruned.warnings)
    return ToolError.exit_code if pruned.warnings else 0


def _pruned_lines(pruned: Pruned) -> Iterator[str]:
    """Yield a line per removed artifact, the reasons for keeping others, and the totals."""
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
        "in use": "in use by a running build",
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
    if limit and pruned.excess_bytes:  # `clear` has a limit of 0 bytes, not set by the user
        still = "would still be" if pruned.dry_run else "is still"
        yield f"the store {still} {pruned.excess_bytes:,} bytes over its limit of {limit:,} bytes"


def _steps(what: str) -> Callable[[int, int], None]:
    """Return a callback that reports the progress of a transfer from time to time.

    Args:
        what: past participle for the message, such as "sent".
    """
    heartbeat = Heartbeat(2.0)

    def step(done: int, total: int) -> None:
        if done < total and heartbeat.is_due():
            echo(f"{what} {done:,} of {count(total, 'variant')}", err=True)

    return step


def _report_moved(
    done: Transfer,
    moved: str,
    parts: Sequence[tuple[int, str]],
    data: Mapping[str, object],
    *,
    as_json: bool,
) -> None:
    """Print the result of a push or a pull, with refused objects and nondeterministic compilations.

    Args:
        done: result of the transfer.
        moved: text with the number of moved variants.
        parts: numbers and descriptions of other variants; zeros are omitted.
        data: fields of the `--json` object besides the traffic.
        as_json: print JSON.
    """
    stats = done.stats
    _warn([f"refused: {text}" for text in stats.refused], stats.refusals, end="")
    for text in stats.conflicts[:_MOST_WARNINGS]:
        echo(f"warning: not deterministic: {text}", err=True)
    counted = ", ".join([moved, *(f"{number:,} {what}" for number, what in parts if number)])
    line = (
        f"{counted}: {stats.bytes_written:,} bytes written, {stats.bytes_read:,} bytes read, "
        f"{count(stats.requests, 'request')}"
    )
    data = {**data, "present": done.present, **stats.to_json()}
    print_result(data, [line], as_json=as_json)


@command.command("export", cls=Command)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("specs", nargs=-1)
@selection_options
@store_option
@json_option("the exported entries")
def export_command(
    file: Path,
    specs: tuple[str, ...],
    store_root: Path | None,
    as_json: bool,
    selection: Selection,
) -> int:
    """Export the store to FILE, for `pallasc cache import` on another machine.

    With SPECS, only their variants are exported, if they are in the store. The store is not
    changed. Damaged entries are skipped, and the exit code is then 5. Statistics are not exported.

    Examples:
      pallasc cache export kernels.pack
      pallasc cache export matmul.pack specs/ -k matmul

    --json prints one object: file, artifacts, manifests, bytes, and absent (ids of variants of
    SPECS that are not in the store)
    """
    from pallasc.cache.transfer import export_file

    store = _opened(store_root)
    names: list[str] | None = None
    absent: list[str] = []
    if specs:
        names, absent = _selected(specs, store, selection)
    elif any(selection):
        raise click.UsageError("Options that select variants need SPECS.")
    store.read_only = True
    done = export_file(store, file, names)
    lacking = f"; the store lacks {count(len(absent), 'variant')}" if absent else ""
    wrote = f"wrote {file}: {count(done.artifacts, 'artifact')}, {done.bytes:,} bytes{lacking}"
    data = {"file": str(file), **done._asdict(), "absent": absent}
    print_result(data, [wrote], as_json=as_json)
    return CorruptError.exit_code if store.warnings else 0


def _selected(
    specs: tuple[str, ...], store: Store, selection: Selection
) -> tuple[list[str], list[str]]:
    """Return the manifest names of specs and cached variants, and the ids of missing variants."""
    from pallasc.compiler.builds.collect import SpecReader
    from pallasc.compiler.inputs.lookup import Lookup
    from pallasc.compiler.inputs.manifest import installed_or_remembered

    reader = SpecReader(store=store)
    chosen = reader.select(specs, **selection._asdict())
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


@command.command("import", cls=Command)
@files_argument
@store_option
@json_option("the imported entries")
def import_command(files: tuple[Path, ...], store_root: Path | None, as_json: bool) -> int:
    """Import files written by `pallasc cache export` into the store.

    Each file is verified completely first; nothing is imported from a damaged file. If the store
    and a file have different artifacts under the same action key, the compilation is not
    deterministic: the key is printed, and the store keeps its artifact. Signatures are copied; no
    new ones are made. If $PALLASC_REQUIRE_SIGNED_STORE is 1, only entries signed by a trusted key
    are imported.

    The exit code is 5 if a file is damaged or artifacts differ.

    Example:
      pallasc cache import shards/*.pack

    --json prints one object: imported, a list with one item per file: file, artifacts and manifests
    (number imported), existed (artifacts already in the store), kept (manifests of the store that
    were not replaced), unsigned, conflicts (action keys)
    """
    from pallasc.cache.transfer import import_file

    store = _opened(store_root)
    done = []
    for file in files:
        done.append(import_file(store, file))
        if not as_json:
            echo("\n".join(_imported_lines(done[-1])))
    if as_json:
        echo(json_text({"imported": [result.to_json() for result in done]}))
    return CorruptError.exit_code if any(result.conflicts for result in done) else 0


def _imported_lines(done: Imported) -> Iterator[str]:
    for key in done.conflicts:
        yield f"conflict  {key}: the file has a different artifact; the store keeps its own"
    left = [
        (done.existed, "already there"),
        (done.kept, "requests unchanged"),
        (done.unsigned, "entries skipped: not signed by a trusted key"),
    ]
    more = "".join(f", {number:,} {what}" for number, what in left if number)
    yield f"{done.file}: {count(done.artifacts, 'artifact')} imported{more}"


@command.command("push", cls=Command, short_help="Send variants to the remote store.")
@specs_argument()
@selection_options
@store_option
@remote_option
@json_option("the result")
def push_command(
    specs: tuple[str, ...],
    store_root: Path | None,
    settings: RemoteSettings,
    as_json: bool,
    selection: Selection,
) -> None:
    """Send the variants of SPECS from the store to the remote store.

    Nothing is compiled, and variants that the remote store already has are not sent again. A build
    with --remote-write sends the variants that it compiles automatically. Variants that depend on
    paths of this machine are not sent; a warning shows why. The exit code is 4 if the remote store
    cannot be reached or written.

    Examples:
      pallasc cache push specs/ --remote s3://bucket/kernels
      PALLASC_REMOTE=file:///srv/kernels pallasc cache push specs/ -k matmul

    --json prints one object:
      schema   1
      sent     number of variants sent
      present  number of variants that the remote store already had
      absent   number of variants that are not in the store
      bound    variants that depend on this machine: the reason, by variant id
      and url, requests, bytes_read, bytes_written, refusals and more, as in pallasc build --json
    """
    from pallasc.cache.remote.remote import push
    from pallasc.compiler.builds.collect import SpecReader
    from pallasc.compiler.builds.remote_tier import sendable

    store = _opened(store_root)
    variants = SpecReader(store=store).select(specs, **selection._asdict()).variants
    found = sendable(variants, store)
    bound = [f"{variant} is not sent: {why}" for variant, why in found.bound.items()]
    _warn(bound, end=" that depend on this machine are not sent")
    done = push(settings, store, {found.namespace: found.keys}, on_step=_steps("sent"))
    absent = found.absent + done.left
    _report_moved(
        done,
        f"sent {count(done.moved, 'variant')}, {done.present:,} already there",
        [(absent, "are not in the store"), (len(bound), "depend on this machine")],
        {"sent": done.moved, "absent": absent, "bound": found.bound},
        as_json=as_json,
    )


@command.command("pull", cls=Command, short_help="Fetch all variants from the remote store.")
@every_option
@store_option
@remote_option
@json_option("the result")
def pull_command(
    every: bool, store_root: Path | None, settings: RemoteSettings, as_json: bool
) -> None:
    """Fetch all variants for the installed toolchain from the remote store into the store.

    A build with --remote fetches the variants that it needs automatically. Use pull on machines
    that cannot reach the remote store later. Everything is verified; signatures are required if
    PALLASC_REQUIRE_SIGNED_REMOTE or remote-signed is set. Variants with paths of another machine
    are rejected. The next build checks for changed sources. The exit code is 4 if the remote store
    cannot be read.

    Examples:
      pallasc cache pull --remote gs://bucket/kernels
      pallasc cache pull --all --store /srv/mirror

    --json prints one object:
      schema   1
      brought  number of variants fetched
      present  number of variants that the store already had
      absent   number of variants that could not be fetched
      and url, requests, bytes_read, bytes_written, refusals and more, as in pallasc build --json
    """
    from pallasc.cache.remote.remote import pull
    from pallasc.compiler.builds.remote_tier import is_portable, namespace_here

    store = _opened(store_root)
    names = None if every else [namespace_here(store)]
    done = pull(settings, store, names, accept=is_portable, on_step=_steps("fetched"))
    moved = f"fetched {count(done.moved, 'variant')}, {done.present:,} already there"
    if not done.moved + done.present + done.left:
        moved = "the remote store has no variants to fetch"
    data = {"brought": done.moved, "absent": done.left}
    _report_moved(done, moved, [(done.left, "could not be fetched")], data, as_json=as_json)


_MOST_WARNINGS = 5


def _opened(root: Path | None, *, check_folders: bool = True) -> Store:
    """Return the store, which must be readable or not exist.

    Raises:
        ToolError: the store is not a folder, or cannot be listed.
        CorruptError: a folder is not the store's own, and `check_folders` is set.
    """
    from pallasc.cli.arguments.selection import open_store

    store = open_store(root, check_folders=False)
    if check_folders:
        store.folders.check(readable=True)
    else:
        any(store.folders.refused())
    return store


def _warn(
    warnings: Sequence[str], number: int | None = None, *, end: str = ", which --json lists"
) -> None:
    """Print the first few warnings, and the number of the others."""
    for warning in warnings[:_MOST_WARNINGS]:
        echo(f"warning: {warning}", err=True)
    left = (len(warnings) if number is None else number) - _MOST_WARNINGS
    if left > 0:
        echo(f"warning: and {left:,} more{end}", err=True)
