"""`pallasc bundle create`: the variants of specs in one file, or one for each target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import (
    Selection,
    build_options,
    fail_on_warning_option,
    frozen_options,
    json_option,
    quiet_option,
    selection_options,
    specs_argument,
)
from pallasc.cli.bundle.options import output_option
from pallasc.cli.output.text import echo
from pallasc.errors import PallascError

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.compiler.builds.bundling import BundleResult, FindLines, Source, SplitBy
    from pallasc.compiler.builds.options import Options
    from pallasc.compiler.builds.report import VariantResult


@click.command("create", cls=Command, short_help="Write variants of specs into a bundle.")
@specs_argument()
@output_option
@click.option(
    "--split-by",
    type=click.Choice(["target", "arch"]),
    help="Write one bundle for each model or architecture, named after it: FILE-h100-sxm.pallasc.",
)
@click.option("--keep-debug", is_flag=True, help="Leave debug sections in the cubins.")
@click.option("--keep-ptx", is_flag=True, help="Add the PTX, which no launch needs.")
@click.option(
    "--lines",
    is_flag=True,
    help="Add the lines of your source, with their text, for `pallasc inspect`.",
)
@click.option(
    "--level",
    type=int,
    default=19,
    show_default=True,
    metavar="N",
    help="How hard to compress, 1 to 22.",
)
@frozen_options
@selection_options
@build_options()
@fail_on_warning_option
@quiet_option
@json_option("what was written")
def command(
    specs: tuple[str, ...],
    output: Path,
    frozen: bool,
    selection: Selection,
    store_root: Path | None,
    quiet: bool,
    as_json: bool,
    split_by: SplitBy | None,
    keep_debug: bool,
    keep_ptx: bool,
    lines: bool,
    level: int,
    lock: Path | None,
    locked: bool,
    how: Options,
) -> int:
    """Write the variants of SPECS into a bundle; what the store does not have is built first.

    Either all of them are written, or nothing. With --frozen nothing is compiled, and where there
    is a lock file, everything must agree with it.

    The bundle records the spec files and the commit that it was made from, the toolchain, and
    whether files that git tracks differed from the commit. The same sources give the same bytes in
    every folder and on every machine.

    Examples:
      pallasc bundle create specs/ -o kernels.pallasc
      pallasc bundle create specs/ -o hopper.pallasc --target sm_90a --frozen
      pallasc bundle create specs/ -o norms.pallasc -k "rmsnorm or layernorm"
      pallasc bundle create specs/ -o dist/kernels.pallasc --split-by arch
      pallasc bundle create specs/ -o debug.pallasc --keep-ptx --lines

    --json prints one object:
      schema      1
      bundles     a list; of each: file, target (or null), bytes, digest (of all its content),
                  variants (their ids)
      provenance  a list; of each: builder, toolchain, specs, commit, dirty, changed
    """
    from pallasc.cli.arguments.selection import open_store
    from pallasc.cli.output.build_text import print_notes, remarks, summary
    from pallasc.cli.output.progress import Reading, store_progress
    from pallasc.compiler.builds.bundling import BundleOptions, make_bundle

    store = open_store(store_root)
    with store_progress(store, hits=False, quiet=quiet) as progress:
        reader = Reading(progress, keep_going=False).reader(store, how, frozen=frozen)
        source: Source = "frozen" if frozen else "compile"
        made = make_bundle(
            reader.select(specs, **selection._asdict()),
            output,
            store=store,
            options=BundleOptions(
                source=source,
                lock=lock,
                locked=locked,
                split_by=split_by,
                keep_debug=keep_debug,
                keep_ptx=keep_ptx,
                level=level,
                lines=_finder(store, how, progress.mention) if lines else None,
                build=how,
            ),
            on_event=progress,
        )
    print_notes(made.report, store)
    is_remarked = not (quiet or made.report.exit_code)
    for line in remarks(made.report, added=False) if is_remarked else ():
        echo(line, err=True)
    if made.report.exit_code:
        progress.screen.write(f"{summary(made.report, progress.screen, quiet=quiet)}\n")
        echo(f"{output} is not written.", err=True)
        return made.report.exit_code
    _tell(made, quiet=quiet)
    if as_json:
        from pallasc.cli.output.text import json_text

        echo(json_text(_json(made)))
    return 0


def _finder(store: Store, options: Options, say: Callable[[str], None]) -> FindLines:
    """Return what finds the source lines of a build, all of them or none."""
    from pallasc.cli.output.source_text import found_lines
    from pallasc.specs.artifacts.source_lines import to_json

    def find(results: Sequence[VariantResult]) -> list[bytes]:
        records = []
        for lines in found_lines(results, store, options, say).values():
            if isinstance(lines, PallascError):
                raise lines
            records.append(to_json(lines))
        return records

    return find


def _tell(made: BundleResult, *, quiet: bool) -> None:
    from pallasc.cli.output.text import count
    from pallasc.specs.bundle.manifest import differing

    for text in sorted({differing(origin) for origin in made.provenance if origin.dirty}):
        echo(f"warning: {text}; the bundle says so", err=True)
    for bundle in () if quiet else made.bundles:
        variants = count(len(bundle.variants), "variant")
        echo(f"wrote {bundle.path}: {variants}, {bundle.size:,} bytes", err=True)


def _json(made: BundleResult) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "bundles": [
            {
                "file": str(bundle.path),
                "target": bundle.target,
                "bytes": bundle.size,
                "digest": bundle.digest,
                "variants": list(bundle.variants),
            }
            for bundle in made.bundles
        ],
        "provenance": [asdict(origin) for origin in made.provenance],
    }
