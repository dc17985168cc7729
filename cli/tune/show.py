"""`pallasc tune show`: the rows of the tables that specs name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import (
    ProcessLimits,
    expression_option,
    json_option,
    reading_options,
    specs_argument,
    store_option,
)
from pallasc.cli.terminal.output import echo

if TYPE_CHECKING:
    from pallasc.specs.spec import Spec
    from pallasc.specs.tuning import Row

_DIGITS = 12
_HEADS = ["KERNEL", "GPU", "KEY", "USE", "TIME", "SPREAD", "ROUNDS", "DATE", "FROM"]


@click.command("show", cls=Command, short_help="Show the rows of the tables of tuned kernels.")
@specs_argument()
@expression_option(
    "Take only the rows that match EXPR, as in pallasc build: a kernel's name, a value of a key or "
    "of what is used, target=MODEL."
)
@reading_options
@store_option
@json_option("the rows")
def command(
    specs: tuple[str, ...],
    expression: str | None,
    store_root: Path | None,
    as_json: bool,
    **limits: Unpack[ProcessLimits],
) -> None:
    """Show which variants the tables of SPECS use where, and what was measured of them.

    The tables are checked against the specs, and nothing is compiled. FROM is the beginning of the
    digest of the artifact that was measured, or the source of the row. A row whose variant is now
    compiled to another artifact has no mark; a build warns of it.

    Examples:
      pallasc tune show kernels.yaml
      pallasc tune show kernels.yaml -k "target=h100-sxm and m=1024"
      pallasc tune show specs/ --json | jq ".rows[].us"

    --json prints one object:
      schema  1
      rows    a list; of each: kernel, file, line, gpu, key (by parameter), use (by parameter),
              artifact, and what is known of source, measured_as, us, spread_percent, rounds,
              device, driver, clock_mhz, date
    """
    from pallasc.cli.arguments.selection import open_store
    from pallasc.cli.terminal.output import json_text, table
    from pallasc.compiler.builds.collect import SpecReader
    from pallasc.specs.loading.select import select
    from pallasc.specs.loading.tuned_points import Tables
    from pallasc.specs.tuned.listed import KernelRow

    reader = SpecReader(store=open_store(store_root), **limits)
    known = reader.select(specs).specs
    tables = Tables(known)
    tuned = {
        (spec.name, own.places): (spec.name, own)
        for spec in known
        if spec.tune is not None and (own := tables.of(spec, spec.tune)) is not None
    }
    rows = [KernelRow(name, own.by, row) for name, own in tuned.values() for row in own.rows]
    if rows and expression is not None:
        rows = select(rows, expression, noun="rows")
    if as_json:
        echo(json_text({"rows": [row_json(each.name, each.by, each.row) for each in rows]}))
    elif rows:
        echo(table(_HEADS, [_line(each.name, each.by, each.row) for each in rows]))
    else:
        echo(no_rows_text(known), err=True)


def no_rows_text(specs: Iterable[Spec]) -> str:
    """Return why specs have no rows."""
    if any(spec.tune is not None for spec in specs):
        return "The tables of these specs have no rows."
    return "No kernel of these specs is tuned."


def row_json(kernel: str, by: Sequence[str], row: Row) -> dict[str, object]:
    """Return what `--json` prints of a row."""
    return {
        "kernel": kernel,
        "file": row.place.file if row.place else None,
        "line": row.place.line if row.place else None,
        "gpu": row.gpu,
        "key": dict(zip(by, row.key, strict=True)),
        "use": row.use,
        "artifact": row.artifact,
        **({"source": row.source} if row.source else {}),
        **({"measured_as": row.measured_as} if row.measured_as else {}),
        **(row.measured.to_json() if row.measured is not None else {}),
    }


def _line(kernel: str, by: Sequence[str], row: Row) -> list[str]:
    from pallasc.specs.tuning import key_text, use_text

    figures = ["", "", "", ""]
    if row.measured is not None:
        own = row.measured
        spread = f"{own.spread_percent:g} %" if own.spread_percent else ""
        figures = [f"{own.us:g} us", spread, f"{own.rounds or ''}", own.date]
    origin = row.source or (row.measured_as or row.artifact or "")[:_DIGITS]
    mark = "*" if row.measured_as is not None else ""
    return [kernel, row.gpu, key_text(by, row.key), use_text(row.use), *figures, f"{origin}{mark}"]
