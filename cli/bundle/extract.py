"""`pallasc bundle extract`: cubins, PTX and plans out of a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import Selection, json_option, size_option
from pallasc.cli.bundle.options import bundle_selection_options, file_argument
from pallasc.cli.terminal.output import echo


@click.command("extract", cls=Command, short_help="Write cubins, plans and PTX into files.")
@file_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    metavar="FOLDER",
    help="Where to write; each variant gets a folder in it.",
)
@click.option("--force", is_flag=True, help="Replace files that are there.")
@size_option(
    "--max-size",
    "most_bytes",
    "Write nothing if the total is larger than this; none for no limit.",
    default="4GiB",
    show_default=True,
)
@bundle_selection_options
@json_option("what was written")
def command(
    file: Path,
    output: Path,
    force: bool,
    most_bytes: int | None,
    as_json: bool,
    **selection: Unpack[Selection],
) -> int:
    """Write cubins, launch plans and records of variants into files, and PTX where there is any.

    Nothing is written where a file already exists and --force is left out, or where the bundle
    declares more bytes than --max-size: a few compressed bytes can become very many. Cubins are
    those of the bundle, without their debug sections unless it was made with --keep-debug.

    Examples:
      pallasc bundle extract kernels.pallasc -o shown/
      pallasc bundle extract kernels.pallasc -o shown/ --target sm_90a -k matmul

    --json prints one object:
      schema  1
      file    the bundle
      files   a list; of each: variant, path, bytes
    """
    from pallasc.cli.bundle.options import selected_entries
    from pallasc.cli.terminal.output import count, json_text
    from pallasc.specs.bundle.bundle import open_bundle
    from pallasc.specs.bundle.unpack import unpack

    with open_bundle(file) as bundle:
        entries = selected_entries(bundle, **selection)
        written = unpack(bundle, entries, output, force=force, most_bytes=most_bytes)
    if as_json:
        files = [
            {"variant": made.variant, "path": str(made.path), "bytes": made.size}
            for made in written
        ]
        echo(json_text({"file": str(file), "files": files}))
    text = f"{count(len(written), 'file')} of {count(len(entries), 'variant')}"
    echo(f"wrote {text} to {output}", err=True)
    return 0
