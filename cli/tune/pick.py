"""`pallasc tune pick`: the rows of a table from what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import (
    ProcessLimits,
    count_option,
    json_option,
    reading_options,
    store_option,
)
from pallasc.cli.terminal.output import echo

if TYPE_CHECKING:
    from pallasc.cli.tune.pick_inputs import TunedSpecs
    from pallasc.specs.tuned.pick import KernelRows

WITHIN_PERCENT = 3.0


@click.command("pick", cls=Command, short_help="Write the table from what was measured.")
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RESULTS..."
)
@click.option(
    "--specs",
    multiple=True,
    required=True,
    type=click.Path(),
    metavar="SPECS",
    help="The specs that were planned; repeatable.",
)
@click.option(
    "--within",
    type=click.FloatRange(0, 1000),
    default=WITHIN_PERCENT,
    show_default=True,
    metavar="PERCENT",
    help="How much slower than the best of its key a variant may be.",
)
@count_option(
    "--at-most", "Use N configurations of a kernel at most; keys then lose what they must."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="TABLE",
    help="The table to write, instead of those that the specs name.",
)
@click.option("--dry-run", is_flag=True, help="Show what would change, and write nothing.")
@reading_options
@store_option
@json_option("what was picked and what changed")
def command(
    files: tuple[Path, ...],
    specs: tuple[str, ...],
    within: float,
    at_most: int | None,
    output: Path | None,
    dry_run: bool,
    store_root: Path | None,
    as_json: bool,
    **limits: Unpack[ProcessLimits],
) -> int:
    """Write which variants are used, from RESULTS of pallasc tune run.

    Taken are as few configurations, sets of values of what is tuned, as are within --within of the
    best for every key, and of those the fastest. What is not known to be within does not count as
    within. A bucket gets one row, and a key that this row does not suit gets its own. Rows of
    other GPUs, and of keys that were not measured, stay as they are. The same results give the same
    bytes, in whatever order they are given.

    Refused are results of two GPUs, of a GPU that the points are not compiled for, of two artifacts
    of one point, that were cut, that are older than a row that they would replace, or that have a
    round in common. Each row notes the digest of the artifact that was measured; a build warns if
    its variant compiles to another one.

    Examples:
      pallasc tune pick results.jsonl --specs kernels.yaml
      pallasc tune pick results.jsonl --specs kernels.yaml --dry-run
      pallasc tune pick one.jsonl two.jsonl --specs specs/ --within 5 --at-most 4

    Exit code 1 means that no key has results to the end, and nothing is written.

    --json prints one object:
      schema   1
      written  the tables that were written
      kernels  a list; of each: kernel, gpu, table, keys, configurations (measured, used, smallest),
               artifacts (measured, used), loss_percent (mean, worst), uses, default, rows (of each:
               change, gpu, key, before, after), beyond, padded, unfinished, without
    """
    from pallasc.cli.arguments.selection import open_store
    from pallasc.cli.tune.pick_inputs import read_specs
    from pallasc.compiler.builds.collect import SpecReader
    from pallasc.specs.loading.tune_results import read_results
    from pallasc.specs.tuned.pick import pick

    _check_name(output)
    results = [read_results(file) for file in files]
    store = open_store(store_root)
    found, results = read_specs(SpecReader(store=store, **limits), specs, output, results)
    decided = pick(
        results,
        found.kernels(),
        within,
        most=at_most,
    )
    written = [] if dry_run else _write(found, decided)
    _tell(found, decided, written, within, as_json=as_json)
    return 0 if any(own.picked.served for own in decided) else 1


def _check_name(output: Path | None) -> None:
    """Refuse the name of a table that folders of specs would take for a spec."""
    from pallasc.specs.loading.tune_fields import TABLE_SUFFIX

    if output is not None and not output.name.endswith(TABLE_SUFFIX):
        raise click.UsageError(f"-o {output}: the name of a table ends in {TABLE_SUFFIX}.")


def _write(found: TunedSpecs, decided: Sequence[KernelRows]) -> list[Path]:
    """Write the tables that have changed, and return their paths."""
    from pallasc.specs.loading.tuned_table import Table, table_text, write_table
    from pallasc.specs.tuned.merge import rows_after

    written = []
    for path, before in found.tables.items():
        after = dict(before)
        for own in decided:
            name = own.picked.kernel.name
            if found.paths[name] == path and own.picked.served:
                after[name] = Table(found.tunes[name].by, rows_after(own.changes))
        if not any(found.paths[own.picked.kernel.name] == path and own.picked.served
                   for own in decided):  # fmt: skip
            continue
        if not path.exists() or table_text(after) != path.read_text(encoding="utf-8"):
            write_table(path, after)
            written.append(path)
    return written


def _tell(
    found: TunedSpecs,
    decided: Sequence[KernelRows],
    written: Sequence[Path],
    within: float,
    *,
    as_json: bool,
) -> None:
    from pallasc.cli.terminal.output import json_text
    from pallasc.cli.tune.pick_text import decided_json, decided_text, remarks

    if as_json:
        kernels = [
            {"table": found.files[own.picked.kernel.name], **decided_json(own)} for own in decided
        ]
        echo(json_text({"kernels": kernels, "written": list(map(str, written))}))
    else:
        for own in decided:
            echo(decided_text(own, found.tunes[own.picked.kernel.name], within))
    for own in decided:
        for line in remarks(own, found.tunes[own.picked.kernel.name], within):
            echo(line, err=True)
    for path in found.tables:
        names = [own for own in decided if found.paths[own.picked.kernel.name] == path]
        shown = found.files[names[0].picked.kernel.name] if names else str(path)
        stayed = "as it was" if path.exists() else "not written"
        echo(f"{shown} is {'written' if path in written else stayed}", err=True)
