"""`pallasc cache export` and `import`: a store as one file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import (
    SpecSelection,
    json_option,
    selection_options,
    store_option,
)
from pallasc.cli.cache.shared import opened
from pallasc.cli.terminal.output import count, echo
from pallasc.errors import CorruptError

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.cache.transfer import Imported


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
