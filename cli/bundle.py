"""`pallasc bundle`: many compiled variants in one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pallasc.cli.layout import Command, Group
from pallasc.cli.options import (
    compile_options,
    json_option,
    selection_options,
    specs_argument,
    store_option,
    traceback_option,
)

if TYPE_CHECKING:
    from pallasc.compiler.report import Report
    from pallasc.specs.bundle.bundle import Bundle
    from pallasc.specs.bundle.manifest import Entry


@click.group(
    "bundle",
    cls=Group,
    invoke_without_command=True,
    short_help="Pack compiled variants into one file: create, list, verify.",
)
@traceback_option()
@click.pass_context
def command(ctx: click.Context) -> None:
    """Pack compiled variants into one file that travels.

    A bundle holds cubins and launch plans, compressed and each once, with a checksum over every
    part. The same variants give the same bytes, in whatever order they were built.

    Examples:
      pallasc bundle create specs/ -o kernels.pallasc
      pallasc bundle list kernels.pallasc
      pallasc bundle verify kernels.pallasc
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


_FILE = click.argument("file", type=click.Path(path_type=Path), metavar="FILE")


@command.command("create", cls=Command)
@specs_argument()
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE",
    help="The bundle to write; what was there is replaced in one step.",
)
@click.option("--keep-debug", is_flag=True, help="Leave debug sections in the cubins.")
@click.option("--frozen", is_flag=True, help="Compile nothing; fail where something is missing.")
@selection_options
@compile_options
@store_option
@traceback_option()
def create_command(
    specs: tuple[str, ...],
    output: Path,
    keep_debug: bool,
    frozen: bool,
    targets: tuple[str, ...],
    expression: str | None,
    jobs: int | None,
    ptxas: Path | None,
    store_root: Path | None,
) -> int:
    """Write the variants of SPECS into a bundle; what the store does not have is built first.

    Examples:
      pallasc bundle create specs/ -o kernels.pallasc
      pallasc bundle create specs/ -o hopper.pallasc --target sm_90a --frozen
    """
    from pallasc.cli.output import count
    from pallasc.cli.progress import stderr_progress
    from pallasc.cli.selection import load_variants, open_store
    from pallasc.cli.summary import summary
    from pallasc.compiler.build import build

    store = open_store(store_root)
    variants = load_variants(
        specs, store=store, targets=targets, expression=expression, frozen=frozen
    )
    with stderr_progress(hits=False) as progress:
        store.warn_by(lambda text: progress.say(f"warning: {text}"))
        report = build(
            variants, store=store, jobs=jobs, ptxas=ptxas, frozen=frozen, on_event=progress
        )
    if report.exit_code:
        click.echo(summary(report, progress.screen), err=True)
        click.echo(f"{output} is not written.", err=True)
        return report.exit_code
    _write(report, output, keep_debug=keep_debug)
    size = output.stat().st_size
    click.echo(f"wrote {output}: {count(len(report.results), 'variant')}, {size:,} bytes", err=True)
    return 0


def _write(report: Report, output: Path, *, keep_debug: bool) -> None:
    from pallasc import __version__
    from pallasc.specs.bundle.items import item_of
    from pallasc.specs.bundle.provenance import Provenance
    from pallasc.specs.bundle.writer import write_bundle

    results = [result for result in report.results if result.artifact is not None]
    items = [
        item_of(result.variant.name, dict(result.variant.params), result.artifact)
        for result in results
        if result.artifact is not None
    ]
    first = results[0].artifact if results else None
    versions: dict[str, Any] = dict(first.toolchain["versions"]) if first else {}
    origin = Provenance(builder=f"pallasc {__version__}", toolchain=versions)
    write_bundle(output, items, keep_debug=keep_debug, provenance=[origin])


@command.command("list", cls=Command)
@_FILE
@json_option("the variants")
@traceback_option()
def list_command(file: Path, as_json: bool) -> int:
    """List the variants of a bundle.

    --json prints one object:
      schema    1
      file      the bundle
      bytes     its size
      digest    of all its content
      variants  a list; of each: id, name, params, target, arch, inputs, outputs, minimum_driver,
                digest (of the artifact, as in store and lock), bytes (compressed)
    """
    from pallasc.cli.output import json_text, table
    from pallasc.specs.bundle.bundle import open_bundle

    with open_bundle(file) as bundle:
        entries = list(bundle.entries())
        if as_json:
            listed = [_entry_json(bundle, entry) for entry in entries]
            head = {"file": str(file), "bytes": bundle.size, "digest": bundle.digest}
            click.echo(json_text({**head, "variants": listed}))
            return 0
        rows = [[e.id, e.arch, f"{bundle.stored_bytes(e):,}", e.digest[:12]] for e in entries]
    click.echo(table(["VARIANT", "ARCH", "BYTES", "DIGEST"], rows, right={"BYTES"}))
    return 0


def _entry_json(bundle: Bundle, entry: Entry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "name": entry.name,
        "params": dict(entry.params),
        "target": entry.target,
        "arch": entry.arch,
        "inputs": [str(array) for array in entry.inputs],
        "outputs": [str(array) for array in entry.outputs],
        "minimum_driver": dict(entry.minimum_driver),
        "digest": entry.digest,
        "bytes": bundle.stored_bytes(entry),
    }


@command.command("verify", cls=Command)
@_FILE
@json_option("the result")
@traceback_option()
def verify_command(file: Path, as_json: bool) -> int:
    """Read all of a bundle and compare it with its digests; exit code 5 if something is wrong.

    --json prints one object:
      schema    1
      file      the bundle
      variants  how many it holds
      digest    of all its content
    """
    from pallasc.cli.output import count, json_text
    from pallasc.specs.bundle.bundle import open_bundle

    with open_bundle(file) as bundle:
        bundle.verify()
        number, digest = len(bundle), bundle.digest
    if as_json:
        click.echo(json_text({"file": str(file), "variants": number, "digest": digest}))
    else:
        click.echo(f"{file} is whole: {count(number, 'variant')}, content {digest[:12]}")
    return 0
