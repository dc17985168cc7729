"""`pallasc import tokamax`: specs and tables of Tokamax's Mosaic GPU kernels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import json_option
from pallasc.cli.terminal.output import echo

if TYPE_CHECKING:
    from pallasc.specs.imports.tokamax_kernels import Kernel
    from pallasc.specs.imports.tokamax_tables import Package

COLUMNS = ("MODEL", "KERNEL", "ENTRIES", "CONFIGURATIONS", "NONE WORKED", "LEFT OUT")
FIGURES = COLUMNS[2:]


@click.command("tokamax", cls=Command, short_help="Tokamax's Mosaic GPU kernels.")
@click.option(
    "--device",
    "asked",
    multiple=True,
    metavar="MODEL",
    help="Only the tables of this GPU: a100, h100, b200. May be repeated; all by default.",
)
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("tokamax"),
    metavar="FOLDER",
    help="Where to write; tokamax by default.",
)
@click.option(
    "--from",
    "source",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="A folder with the package in it, in place of the Tokamax that is installed.",
)
@click.option(
    "--untuned",
    is_flag=True,
    help="Declare calls that no configuration worked for, too, as Tokamax's heuristics run them.",
)
@json_option("what was written and what was left out")
def command(
    asked: tuple[str, ...], folder: Path, source: Path | None, untuned: bool, as_json: bool
) -> None:
    """Write specs and tables of Tokamax's Mosaic GPU kernels from its own tables.

    Tokamax ships what it measured of its kernels on each GPU: attention and its backward pass,
    the gated linear unit, the ragged dot. Of each GPU that pallasc has a model of this writes
    tokamax-h100.yaml, the spec; tokamax-h100.json, its points; tokamax-h100.tuned.yaml, the
    configuration that Tokamax would take for each, with its times. Neither Tokamax nor JAX is
    imported; building the specs needs both, launching their bundles needs neither.

    Files that an earlier import wrote are replaced, others are not. A GPU of which no entry can be
    taken gets none. A damaged table is an error, and nothing is written.

    Examples:
      pallasc import tokamax
      pallasc import tokamax --device h100 -o kernels/
      pallasc import tokamax --from site-packages/ --json

    --json prints one object:
      schema   1
      source   tokamax and its version
      kernels  a list; of each: model, name, entries (that are taken), configurations (different
               ones), several (entries with more than one, of which the fastest is used), untuned
               (entries that no configuration worked for), left (other entries that are not taken,
               how many by reason)
      unknown  folders of GPUs that pallasc has no model of
      files    what was written
    """
    from pallasc.cli.terminal.output import json_text
    from pallasc.specs.imports import tokamax_tables

    package = tokamax_tables.package_in(source) if source else tokamax_tables.installed_package()
    found = _kernels(package, asked)
    files = _write(found, folder, package.source, untuned=untuned)
    unknown = tokamax_tables.other_devices(package)
    if as_json:
        listed = [_json(kernel) for kernels in found.values() for kernel in kernels]
        made = [str(path) for path in files]
        report = {"source": package.source, "kernels": listed, "unknown": unknown, "files": made}
        echo(json_text(report))
        return
    _tell(found, files, unknown, untuned=untuned)


def _kernels(package: Package, asked: tuple[str, ...]) -> dict[str, list[Kernel]]:
    """Return the kernels of each model that was asked for.

    Raises:
        SpecError: there are none.
    """
    from pallasc.errors import SpecError
    from pallasc.specs.imports.tokamax_kernels import kernels_of
    from pallasc.specs.imports.tokamax_tables import chosen, devices, other_devices

    found = {
        model.name: kernels
        for device, model in chosen(devices(package), asked, other_devices(package)).items()
        if (kernels := list(kernels_of(package, device, model)))
    }
    if not found:
        raise SpecError(
            f"{package.root} has no entries of Mosaic GPU kernels that can be imported.",
            hint="Tokamax 0.0.17 has them for a100-sxm-40gb, h100-sxm and b200.",
        )
    return found


def _write(
    found: dict[str, list[Kernel]], folder: Path, source: str, *, untuned: bool
) -> list[Path]:
    """Write the files of each model.

    Raises:
        SpecError: one cannot be written, or is not an import's.
    """
    from pallasc.specs.imports.tokamax_specs import files_of
    from pallasc.specs.user_files import replace_file

    texts = {
        folder / name: text
        for kernels in found.values()
        for name, text in files_of(kernels, source, untuned=untuned).items()
    }
    for path in texts:
        _check_own(path)
    for path, text in texts.items():
        replace_file(path, text.encode())
    return list(texts)


def _check_own(path: Path) -> None:
    """Refuse a spec that no import wrote; its other files are known by its name."""
    from pallasc.errors import SpecError
    from pallasc.specs.imports.tokamax_specs import MARK

    if path.suffixes == [".yaml"] and path.exists():
        with path.open("rb") as file:
            if file.read(len(MARK)) != MARK.encode():
                raise SpecError(
                    f"{path} already exists, and no import wrote it.",
                    hint="Move it away, or name another folder: -o FOLDER.",
                )


def _json(kernel: Kernel) -> dict[str, Any]:
    return {
        "model": kernel.model.name,
        "name": kernel.name,
        "entries": len(kernel.points),
        "configurations": len(kernel.configs()),
        "several": kernel.several,
        "untuned": len(kernel.untuned),
        "left": dict(sorted(kernel.left.items())),
    }


def _tell(
    found: dict[str, list[Kernel]], files: list[Path], unknown: list[str], *, untuned: bool
) -> None:
    """Show what was taken and what was not, and the files."""
    from pallasc.cli.terminal.output import count, table

    kernels = [kernel for own in found.values() for kernel in own]
    rows = [_row(kernel) for kernel in kernels]
    echo(table(COLUMNS, rows, right=FIGURES))
    for kernel in kernels:
        for reason, number in sorted(kernel.left.items()):
            entries = "1 entry" if number == 1 else f"{number:,} entries"
            echo(f"{kernel.name}: {entries} left out: {reason}", err=True)
        if kernel.several:
            shown = count(kernel.several, "time")
            echo(f"{kernel.name}: of several configurations the fastest, {shown}", err=True)
    for model, own in found.items():
        if not any(kernel.points for kernel in own):
            _tell_nothing(model, own, untuned=untuned)
    if unknown:
        echo(f"no model of these GPUs: {', '.join(unknown)}", err=True)
    for path in files:
        echo(f"wrote {path}", err=True)


def _tell_nothing(model: str, kernels: list[Kernel], *, untuned: bool) -> None:
    """Say why nothing is written for a model, if so."""
    if not any(kernel.untuned for kernel in kernels):
        echo(f"{model}: every entry is left out: no file is written", err=True)
    elif not untuned:
        echo(
            f"{model}: no configuration worked for any entry: no file is written; --untuned "
            "declares these calls",
            err=True,
        )


def _row(kernel: Kernel) -> list[str]:
    numbers = (
        len(kernel.points),
        len(kernel.configs()),
        len(kernel.untuned),
        sum(kernel.left.values()),
    )
    return [kernel.model.name, kernel.name, *map("{:,}".format, numbers)]
