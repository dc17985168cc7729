"""Options for the arrays that kernels get: `--input NAME=FILE` and `--inputs FILE`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from pallasc.cli.arguments.options import file_option, together

input_options = together(
    click.option(
        "--input",
        "inputs",
        multiple=True,
        metavar="NAME=FILE",
        help="Take an input from a .npy file, or from a .npz file that has it; repeatable.",
    ),
    file_option(
        "--inputs",
        "Take inputs from a .npz file, which has arrays by their names; others are random.",
        parameter="archive",
    ),
)


def parse_inputs(texts: Iterable[str], archive: Path | None) -> dict[str, Path]:
    """Return the file of each input.

    Args:
        texts: `NAME=FILE` of each `--input`.
        archive: the .npz file of `--inputs`.

    Raises:
        click.UsageError: a text is written otherwise, or an input is given twice.
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
            raise click.UsageError(f"--input gives {name}, which {archive} of --inputs has too.")
        files[name] = archive
    return files
