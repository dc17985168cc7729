"""Store, selected variants, and input files of a command."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pallasc.cli.arguments.options import file_option, together
from pallasc.cli.output.text import echo

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.cli.arguments.options import Selection
    from pallasc.compiler.builds.options import Options
    from pallasc.compiler.builds.report import Report
    from pallasc.specs.spec import Variant


def open_store(root: Path | None, *, check_folders: bool = True) -> Store:
    """Return the store; its warnings go to stderr.

    Args:
        root: folder of the store; same default as `Store`.
        check_folders: reject a store in which something else takes the place of a folder.

    Raises:
        CorruptError: `check_folders` found such a place.
    """
    from pallasc.cache.store import Store

    store = Store(root, warn=lambda text: echo(f"warning: {text}", err=True))
    if check_folders:
        store.folders.check()
    return store


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
    from pallasc.cli.output.progress import Reading, store_progress

    with store_progress(store, hits=False, quiet=quiet) as progress:
        reader = Reading(progress, keep_going=False).reader(store, how)
        variants = reader.select(paths, **selection._asdict()).variants
    return build_variants(variants, store, how, quiet=quiet)


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
