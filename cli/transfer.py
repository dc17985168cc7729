"""`pallasc cache export`, `import`, `push`, and `pull`: copy variants between machines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import asdict

from pallasc.cli.arguments import options
from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.variants import open_store
from pallasc.cli.output.progress import Heartbeat
from pallasc.cli.output.text import count, echo, print_result, print_warnings
from pallasc.errors import CorruptError, SpecError

if TYPE_CHECKING:
    from pallasc.cache.remote.remote import Transfer
    from pallasc.cache.remote.settings import RemoteSettings
    from pallasc.cache.store import Store
    from pallasc.cache.transfer import Imported

_TIMEOUT_S = 60.0


def required_settings(url: str | None, timeout_s: float = _TIMEOUT_S) -> RemoteSettings:
    """Return the settings of the remote store, for a command that needs a remote store.

    Raises:
        SpecError: no remote store is named, or a setting is invalid.
    """
    from pallasc.compiler.builds.options import remote_settings

    settings = remote_settings(os.environ, url=url, timeout_s=timeout_s)
    if settings is None:
        raise SpecError(
            "no remote store is configured.",
            hint="Set it with --remote URL, PALLASC_REMOTE, or remote under [tool.pallasc] in "
            "pyproject.toml.",
        )
    return settings


remote_option = options.together(
    options.option(
        "--remote",
        "URL",
        "URL of the remote store. Default: $PALLASC_REMOTE, or remote in [tool.pallasc].",
        parameter="url",
    ),
    options.option(
        "--timeout",
        "SECONDS",
        "Time limit for one request, in seconds.",
        parameter="timeout_s",
        type=click.FloatRange(min=0, min_open=True, max=86_400),
        default=_TIMEOUT_S,
    ),
    options.packed("settings", required_settings, ("url", "timeout_s")),
)
"""`--remote` and `--timeout` for commands that need a remote store.

The command receives the store's settings as `settings`. Builds have options with defaults instead
(`options._remote_options`)."""

every_option = options.flag(
    "--all", "Include all toolchains, not only the installed one.", parameter="every"
)


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
    """Print the result of a push or a pull, and warn of refused objects and unequal artifacts.

    Args:
        done: result of the transfer.
        moved: text with the number of moved variants.
        parts: numbers and descriptions of other variants; zeros are omitted.
        data: fields of the `--json` object besides the traffic.
        as_json: print JSON.
    """
    stats = done.stats
    print_warnings([f"refused: {text}" for text in stats.refused], stats.refusals)
    print_warnings([f"not deterministic: {text}" for text in stats.conflicts])
    counted = ", ".join([moved, *(f"{number:,} {what}" for number, what in parts if number)])
    sent = f"{stats.bytes_written:,} bytes sent, " if stats.bytes_written else ""
    line = (
        f"{counted}: {sent}{stats.bytes_read:,} bytes received, {count(stats.requests, 'request')}"
    )
    data = {**data, "present": done.present, **stats.to_json()}
    print_result(data, [line], as_json=as_json)


@click.command("export", cls=Command)
@click.argument("file", type=options.FILE)
@click.argument("specs", nargs=-1)
@options.selection_options
@options.store_option
@options.json_option("the exported entries")
def export_command(
    file: Path,
    specs: tuple[str, ...],
    store_root: Path | None,
    as_json: bool,
    selection: options.Selection,
) -> int:
    """Export the store to FILE, to import it on another machine.

    With SPECS, only their variants are exported, if they are in the store. The store is not
    changed. Damaged entries are skipped, and the exit code is then 5. Statistics are not exported.

    Examples:
      pallasc cache export kernels.pack
      pallasc cache export matmul.pack specs/ -k matmul
    """
    from pallasc.cache.transfer import export_file

    store = open_store(store_root, readable=True)
    names: list[str] | None = None
    absent: list[str] = []
    if specs:
        remembered, found, absent = _selected(specs, store, selection)
        names = remembered + found
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
    specs: tuple[str, ...], store: Store, selection: options.Selection
) -> tuple[list[str], list[str], list[str]]:
    """Return the manifest names of specs and cached variants, and the ids of missing variants."""
    from pallasc.compiler.builds.collect import SpecReader
    from pallasc.compiler.inputs.lookup import Lookup, Miss
    from pallasc.compiler.inputs.manifest import installed_or_remembered

    reader = SpecReader(store=store)
    chosen = reader.select(specs, **selection._asdict())
    names, absent = [], []
    with installed_or_remembered(store) as setup:
        lookup = Lookup(setup.context(store), store)
        for variant in chosen.variants:
            found = lookup.find(variant)
            if isinstance(found, Miss):
                absent.append(variant.id)
            else:
                names.append(found.manifest_key)
    return reader.remembered, names, absent


@click.command("import", cls=Command)
@options.files_argument
@options.store_option
@options.json_option("the imported entries")
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
    """
    from pallasc.cache.transfer import import_file

    store = open_store(store_root, readable=True)
    done = [import_file(store, file) for file in files]
    lines = [line for result in done for line in _imported_lines(result)]
    print_result({"imported": [asdict(result) for result in done]}, lines, as_json=as_json)
    return CorruptError.exit_code if any(result.conflicts for result in done) else 0


def _imported_lines(done: Imported) -> Iterator[str]:
    for key in done.conflicts:
        yield f"conflict  {key}: the file has a different artifact; the store keeps its own"
    left = [
        (done.existed, "already there"),
        (done.kept, "manifests of this store kept"),
        (done.unsigned, "entries skipped: not signed by a trusted key"),
    ]
    more = "".join(f", {number:,} {what}" for number, what in left if number)
    yield f"{done.file}: {count(done.artifacts, 'artifact')} imported{more}"


@click.command("push", cls=Command, short_help="Send variants to the remote store.")
@options.specs_argument()
@options.selection_options
@options.store_option
@remote_option
@options.json_option("the result")
def push_command(
    specs: tuple[str, ...],
    store_root: Path | None,
    settings: RemoteSettings,
    as_json: bool,
    selection: options.Selection,
) -> None:
    """Send the variants of SPECS from the store to the remote store.

    Nothing is compiled, and variants that the remote store already has are not sent again. A build
    with --remote-write automatically sends the variants that it compiles. Variants that depend on
    paths of this machine are not sent; a warning shows why. The exit code is 4 if the remote store
    cannot be reached or written.

    Examples:
      pallasc cache push specs/ --remote s3://bucket/kernels
      PALLASC_REMOTE=file:///srv/kernels pallasc cache push specs/ -k matmul
    """
    from pallasc.cache.remote.remote import push
    from pallasc.compiler.builds.remote_tier import namespace_here, sendable

    store = open_store(store_root, readable=True)
    _, names, lacking = _selected(specs, store, selection)
    keys, bound = sendable(names, store)
    print_warnings([f"{variant} is not sent: {why}" for variant, why in bound.items()])
    own = {namespace_here(store): tuple(dict.fromkeys(keys))}
    done = push(settings, store, own, on_step=_steps("sent"))
    absent = len(lacking) + done.left
    moved = f"sent {count(done.moved, 'variant')}, {done.present:,} already there"
    parts = [(absent, "are not in the store"), (len(bound), "depend on this machine")]
    data = {"sent": done.moved, "absent": absent, "bound": bound}
    _report_moved(done, moved, parts, data, as_json=as_json)


@click.command("pull", cls=Command, short_help="Fetch all variants from the remote store.")
@every_option
@options.store_option
@remote_option
@options.json_option("the result")
def pull_command(
    every: bool, store_root: Path | None, settings: RemoteSettings, as_json: bool
) -> int:
    """Fetch all variants for the installed toolchain from the remote store into the store.

    A build with --remote automatically fetches the variants that it needs. Use pull if this machine
    cannot reach the remote store during later builds. Everything is verified; signatures are
    required if PALLASC_REQUIRE_SIGNED_REMOTE or remote-signed is set. Variants that depend on paths
    of another machine are refused. The next build checks for changed sources.

    The exit code is 4 if the remote store cannot be read or the store cannot be written, and 5 if
    anything was refused (missing packs, damaged or unsigned entries) or artifacts differ. The other
    variants are stored.

    Examples:
      pallasc cache pull --remote gs://bucket/kernels
      pallasc cache pull --all --store /srv/mirror
    """
    from pallasc.cache.remote.remote import pull
    from pallasc.compiler.builds.remote_tier import is_portable, namespace_here

    store = open_store(store_root, readable=True)
    names = None if every else [namespace_here(store)]
    done = pull(settings, store, names, accept=is_portable, on_step=_steps("fetched"))
    moved = f"fetched {count(done.moved, 'variant')}, {done.present:,} already there"
    if not done.moved + done.present + done.left:
        moved = "the remote store has no variants to fetch"
    data = {"brought": done.moved, "absent": done.left}
    _report_moved(done, moved, [(done.left, "could not be fetched")], data, as_json=as_json)
    return CorruptError.exit_code if done.stats.refusals or done.stats.conflicts else 0
