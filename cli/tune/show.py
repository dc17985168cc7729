"""`pallasc tune show`: list the rows of the tables that specs name."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Unpack

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
from pallasc.cli.output.text import echo
from pallasc.specs.canonical import variant_id
from pallasc.specs.gpus import MODELS
from pallasc.specs.templates import Scalar
from pallasc.specs.tuning import Row, use_text

_DIGITS = 12
_HEADS = ["KERNEL", "GPU", "KEY", "USE", "TIME", "SPREAD", "ROUNDS", "DATE", "FROM"]


class RowTarget(NamedTuple):
    """GPU model of a row and its architecture, "" if unknown."""

    name: str
    arch: str


class KernelRow(NamedTuple):
    """A row of a kernel, in a form that `-k` can select from.

    Attributes:
        row: the row.
        name: the kernel.
        key: the values of its key, by parameter.
        params: the parameters of the key, then the tuned ones.
        target: the GPU model that the row is for.
        id: a variant id with the parameters in this order.
    """

    row: Row
    name: str
    key: dict[str, Scalar]
    params: tuple[tuple[str, Scalar], ...]
    target: RowTarget
    id: str

    @classmethod
    def of(cls, row: Row, name: str, by: tuple[str, ...]) -> KernelRow:
        """Return a row of a kernel whose keys have these parameters."""
        key = dict(zip(by, row.key, strict=True))
        params = (*key.items(), *row.use.items())
        model = MODELS.get(row.gpu)
        target = RowTarget(row.gpu, model.arch if model is not None else "")
        return cls(row, name, key, params, target, variant_id(name, params, row.gpu))


@click.command("show", cls=Command, short_help="Show the rows of the tables of tuned kernels.")
@specs_argument()
@expression_option(
    "Select rows that match EXPR, as in pallasc build: a kernel name, a value of a key or of a "
    "tuned parameter, target=MODEL."
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
    """Show the rows of the tables of SPECS: the variant used for each key, and its measurements.

    Tables are checked against the specs. Nothing is compiled. The FROM column shows the origin of
    the row, or the first digits of the digest of the measured artifact.

    Examples:
      pallasc tune show kernels.yaml
      pallasc tune show kernels.yaml -k "target=h100-sxm and m=1024"
      pallasc tune show specs/ --json | jq ".rows[].us"

    --json prints one object:
      schema  1
      rows    list, each with: kernel, file, line, gpu, key (by parameter), use (by parameter),
              artifact, and, if known: source, us, spread_percent, rounds, device, driver,
              clock_mhz, date
    """
    from pallasc.cli.arguments.selection import open_store
    from pallasc.cli.output.text import json_text, table
    from pallasc.compiler.builds.collect import SpecReader
    from pallasc.specs.loading.select import select
    from pallasc.specs.loading.tuned_table import Tables

    reader = SpecReader(store=open_store(store_root), **limits)
    known = reader.select(specs).specs
    tables = Tables(known)
    tuned = {
        (spec.name, id(own)): (spec.name, own)
        for spec in known
        if spec.tune is not None and (own := tables.of(spec, spec.tune)) is not None
    }
    rows = [KernelRow.of(row, name, own.by) for name, own in tuned.values() for row in own.rows]
    if rows and expression is not None:
        rows = select(rows, expression, noun="rows")
    if as_json:
        echo(json_text({"rows": list(map(_json, rows))}))
    elif rows:
        echo(table(_HEADS, list(map(_line, rows))))
    elif any(spec.tune is not None for spec in known):
        echo("The tables of these specs have no rows.", err=True)
    else:
        echo("No kernel of these specs is tuned.", err=True)


def _json(own: KernelRow) -> dict[str, object]:
    row = own.row
    return {
        "kernel": own.name,
        "file": row.place.file if row.place else None,
        "line": row.place.line if row.place else None,
        "gpu": row.gpu,
        "key": own.key,
        "use": row.use,
        "artifact": row.artifact,
        **({"source": row.source} if row.source else {}),
        **(row.measured.to_json() if row.measured is not None else {}),
    }


def _line(own: KernelRow) -> list[str]:
    row, figures = own.row, ["", "", "", ""]
    if measured := row.measured:
        spread = f"{measured.spread_percent:g} %" if measured.spread_percent else ""
        figures = [f"{measured.us:g} us", spread, f"{measured.rounds or ''}", measured.date]
    origin = row.source or (row.artifact or "")[:_DIGITS]
    return [own.name, row.gpu, use_text(own.key), use_text(row.use), *figures, origin]
