"""`pallasc bundle create`: the variants of specs in one file, or one for each target."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pallasc.cli.arguments.layout import Command
from pallasc.cli.arguments.options import (
    compile_options,
    fail_on_warning_option,
    json_option,
    require_store_option,
    selection_options,
    signed_store_option,
    specs_argument,
    store_option,
    supervision_options,
    traceback_option,
)
from pallasc.cli.bundle.options import output_option
from pallasc.cli.terminal.output import echo

if TYPE_CHECKING:
    from pallasc.compiler.builds.bundling import Made, Source


@click.command("create", cls=Command, short_help="Write variants of specs into a bundle.")
@specs_argument()
@output_option("The bundle to write; what was there is replaced in one step.")
@click.option(
    "--split-by",
    type=click.Choice(["target", "arch"]),
    help="Write one bundle for each model or architecture, named after it: FILE-h100-sxm.pallasc.",
)
@click.option("--keep-debug", is_flag=True, help="Leave debug sections in the cubins.")
@click.option("--keep-ptx", is_flag=True, help="Take the PTX along, which no launch needs.")
@click.option(
    "--level",
    type=int,
    default=19,
    show_default=True,
    metavar="N",
    help="How hard to compress, 1 to 22.",
)
@click.option("--frozen", is_flag=True, help="Compile nothing; fail where something is missing.")
@click.option("--locked", is_flag=True, help="Fail where something is not as the lock file says.")
@click.option(
    "--lock",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The lock file of --frozen and --locked; pallasc.lock when left out.",
)
@selection_options
@compile_options
@supervision_options
@store_option
@require_store_option
@fail_on_warning_option
@signed_store_option
@json_option("what was written")
@traceback_option()
def command(
    specs: tuple[str, ...],
    output: Path,
    frozen: bool,
    targets: tuple[str, ...],
    expression: str | None,
    store_root: Path | None,
    require_signed: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Write the variants of SPECS into a bundle; what the store does not have is built first.

    All of them are written, or nothing. --frozen compiles nothing, and where there is a lock file
    all must be as it says.

    The bundle says from which spec files and which commit it was made, with which toolchain, and
    whether files that git tracks differed from the commit. The same sources give the same bytes in
    every folder and on every machine.

    Examples:
      pallasc bundle create specs/ -o kernels.pallasc
      pallasc bundle create specs/ -o hopper.pallasc --target sm_90a --frozen
      pallasc bundle create specs/ -o norms.pallasc -k "rmsnorm or layernorm"
      pallasc bundle create specs/ -o dist/kernels.pallasc --split-by arch

    --json prints one object:
      schema      1
      bundles     a list; of each: file, target (or null), bytes, digest (of all its content),
                  variants (their ids)
      provenance  a list; of each: builder, toolchain, specs, commit, dirty, changed
    """
    from pallasc.cli.arguments.selection import open_store
    from pallasc.cli.render.live import stderr_progress
    from pallasc.cli.render.reading import Reading
    from pallasc.cli.render.remarks import remarks
    from pallasc.cli.render.summary import summary
    from pallasc.compiler.builds.bundling import make_bundle
    from pallasc.compiler.builds.selection import read_wanted

    store = open_store(store_root, require_signed=require_signed)
    with stderr_progress(hits=False) as progress:
        store.warn_by(lambda text: progress.say(f"warning: {text}"))
        wanted = read_wanted(
            specs,
            store=store,
            targets=targets,
            expression=expression,
            timeout_s=options["timeout_s"],
            memory_bytes=options["memory_bytes"],
            frozen=frozen,
            on_tick=Reading(progress, keep_going=False).tick,
        )
        source: Source = "frozen" if frozen else "compile"
        made = make_bundle(wanted, output, store=store, source=source, on_event=progress, **options)
    for note in made.report.notes:
        if note not in store.warnings:
            echo(f"warning: {note}", err=True)
    for line in remarks(made.report, added=False) if not made.report.exit_code else ():
        echo(line, err=True)
    if made.report.exit_code:
        progress.screen.write(f"{summary(made.report, progress.screen)}\n")
        echo(f"{output} is not written.", err=True)
        return made.report.exit_code
    _tell(made)
    if as_json:
        from pallasc.cli.terminal.output import json_text

        echo(json_text(_json(made)))
    return 0


def _tell(made: Made) -> None:
    from pallasc.cli.terminal.output import count
    from pallasc.specs.bundle.provenance import differing

    for text in sorted({differing(origin) for origin in made.provenance if origin.dirty}):
        echo(f"warning: {text}; the bundle says so", err=True)
    for one in made.bundles:
        variants = count(len(one.variants), "variant")
        echo(f"wrote {one.path}: {variants}, {one.size:,} bytes", err=True)


def _json(made: Made) -> Mapping[str, Any]:
    from dataclasses import asdict

    return {
        "bundles": [
            {
                "file": str(one.path),
                "target": one.target,
                "bytes": one.size,
                "digest": one.digest,
                "variants": list(one.variants),
            }
            for one in made.bundles
        ],
        "provenance": [asdict(origin) for origin in made.provenance],
    }
