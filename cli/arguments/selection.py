"""Store, selected variants, and input files of a command."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pallasc.cli.arguments.options import file_option, read_by, together
from pallasc.cli.output.text import count, duration, echo
from pallasc.errors import NotCachedError

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.cli.arguments.options import Selection
    from pallasc.compiler.builds.collect import Shard, Share
    from pallasc.compiler.builds.options import Options
    from pallasc.compiler.builds.report import Report
    from pallasc.specs.lock import Lock
    from pallasc.specs.spec import Variant


def open_store(root: Path | None, *, check_folders: bool = True, readable: bool = False) -> Store:
    """Return the store; its warnings go to stderr.

    Args:
        root: folder of the store; same default as `Store`.
        check_folders: reject a store in which something else takes the place of a folder.
        readable: reject a store that exists but cannot be read.

    Raises:
        CorruptError: `check_folders` found such a place.
        ToolError: the store is not `readable`.
    """
    from pallasc.cache.store import Store

    store = Store(root, warn=lambda text: echo(f"warning: {text}", err=True))
    if check_folders:
        store.folders.check(readable=readable)
    return store


def read_existing_lock(path: Path) -> Lock:
    """Return a lock file.

    Raises:
        NotCachedError: it does not exist.
        SpecError: it is damaged.
    """
    from pallasc.specs.loading.lock_file import read_lock
    from pallasc.specs.lock import update_command

    lock = read_lock(path)
    if lock is None:
        raise NotCachedError(f"there is no {path}.", hint=f"Make it with: {update_command(path)}")
    return lock


def build_specs(
    paths: Sequence[str],
    selection: Selection,
    store: Store,
    how: Options,
    *,
    quiet: bool = False,
) -> Report:
    """Build the variants of specs that the store lacks, with progress on stderr.

    Raises:
        PallascError: see `SpecReader.select` and `build`.
    """
    variants = read_variants(paths, selection, store, how, quiet=quiet)
    return build_variants(variants, store, how, quiet=quiet)


def read_variants(
    paths: Sequence[str], selection: Selection, store: Store, how: Options, *, quiet: bool
) -> Sequence[Variant]:
    """Return the selected variants of specs, with progress on stderr.

    Raises:
        PallascError: see `SpecReader.select`.
    """
    from pallasc.cli.output.progress import Reading, store_progress

    with store_progress(store, hits=False, quiet=quiet) as progress:
        reader = Reading(progress, keep_going=False).reader(store, how)
        return reader.select(paths, **selection._asdict()).variants


def build_variants(
    variants: Sequence[Variant], store: Store, how: Options, *, quiet: bool = False
) -> Report:
    """Build the variants that the store lacks, with progress on stderr.

    Raises:
        ToolError: the toolchain is incomplete, or the results cannot be stored and `require_store`
            is set.
    """
    from pallasc.cli.output.build_text import summary
    from pallasc.cli.output.progress import store_progress
    from pallasc.compiler.builds.build import build

    with store_progress(store, hits=False, quiet=quiet) as progress:
        report = build(variants, store=store, options=how, on_event=progress)
    if not quiet and len(report.hits) < len(report.results):
        progress.screen.write(f"{summary(report, progress.screen)}\n")
    return report


def _shard(text: str) -> Shard:
    from pallasc.compiler.builds.collect import parse_shard

    return parse_shard(text)


shard_option = click.option(
    "--shard",
    callback=read_by(_shard),
    metavar="K/N",
    help="Run shard K of N, e.g. 3/8; N jobs with the same lock file cover each variant once.",
)


def take_share(
    shard: Shard | None,
    variants: Sequence[Variant],
    lock: Path | None,
    say: Callable[[str], None],
) -> Share | None:
    """Return this job's share of the variants, and `say` its size; None without `--shard`.

    Raises:
        SpecError: the lock file cannot be read.
    """
    if shard is None:
        return None
    from pallasc.compiler.builds.collect import share_of

    share = share_of(shard, variants, lock)
    line = f"shard {shard}: {len(share.variants):,} of {count(len(variants), 'variant')}"
    if share.expected_s is None:
        line += ", divided without costs: no lock file has any"
    elif share.variants:
        line += f", about {duration(share.expected_s)} of compiling by {share.costs_from}"
    say(line)
    return share


input_options = together(
    click.option(
        "--input",
        "inputs",
        multiple=True,
        metavar="NAME=FILE",
        help="Read an input from a .npy file, or from a .npz file that contains it; repeatable.",
    ),
    file_option(
        "--inputs",
        "Read inputs by name from a .npz file; the other inputs are random.",
        parameter="archive",
    ),
)


def parse_inputs(texts: Iterable[str], archive: Path | None) -> dict[str, Path]:
    """Return the file of each input.

    Args:
        texts: `NAME=FILE` of each `--input`.
        archive: .npz file of `--inputs`.

    Raises:
        click.UsageError: a text is malformed, or an input is given twice.
        SpecError: the archive cannot be read.
    """
    files: dict[str, Path] = {}
    for text in texts:
        name, equals, file = text.partition("=")
        if not (name and equals and file):
            raise click.UsageError(f"--input {text!r} is not NAME=FILE.")
        if name in files:
            raise click.UsageError(f"--input gives {name} twice.")
        files[name] = Path(file)
    if archive is None:
        return files
    from pallasc.compiler.references.arrays import names_in

    for name in names_in(archive):
        if name in files:
            raise click.UsageError(f"--input and --inputs {archive} both provide {name}.")
        files[name] = archive
    return files
