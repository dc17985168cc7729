"""`pallasc tune pick`: write the rows of a table from results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pallasc.cli.arguments import variants as given
from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import count_option, json_option
from pallasc.cli.output.text import count, echo, fields, json_text, table
from pallasc.errors import SpecError
from pallasc.specs.canonical import canonical_text
from pallasc.specs.tuning import Row, key_text, use_text

if TYPE_CHECKING:
    from pallasc.cli.arguments.variants import Work
    from pallasc.specs.spec import Spec, Variant
    from pallasc.specs.tuning import Tune
    from pallasc.tuning.pick import Key, Picked, RowChange, TunedKernel

WITHIN_PERCENT = 3.0
_MARKS = {"added": "+", "changed": "~", "measured": "=", "dropped": "-"}
_MOST_NAMED = 5
_HEAD = ("", "GPU", "KEY", "BEFORE", "AFTER", "µs", "SLOWER")


@click.command("pick", cls=Command, short_help="Write the table from measurements.")
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RESULTS..."
)
@click.option(
    "--specs",
    multiple=True,
    required=True,
    type=click.Path(),
    metavar="SPECS",
    help="Specs from which the job was planned; repeatable.",
)
@click.option(
    "--within",
    type=click.FloatRange(0, 1000),
    default=WITHIN_PERCENT,
    show_default=True,
    metavar="PERCENT",
    help="Allowed slowdown of a variant relative to the best one for its key.",
)
@count_option(
    "--at-most", "Maximum number of configurations per kernel, even if some keys get slower."
)
@click.option("--dry-run", is_flag=True, help="Show the changes without writing them.")
@given.reading_options
@json_option("the picked variants and the changes")
def command(
    files: tuple[Path, ...],
    within: float,
    at_most: int | None,
    dry_run: bool,
    as_json: bool,
    work: Work,
) -> int:
    """Write the tables of tuned kernels, from RESULTS of pallasc tune run.

    A configuration is a set of values of the tuned parameters. Pick selects few configurations,
    such that each key has one that is slower than the key's best by at most --within. A
    configuration counts only if the measurements prove that it is within this limit. Each bucket
    of keys gets one row; a key for which that row is too slow gets a separate row. Rows of other
    GPUs, and of keys and buckets without measurements, are kept. The order of RESULTS does not
    change the table.

    Pick rejects truncated results, results from two GPUs or from a GPU for which the points are not
    compiled, results older than a row, and results of one key in two files. Each row records the
    digest of the measured artifact; a build warns if the row's variant compiles to a different
    artifact.

    Examples:
      pallasc tune pick results.jsonl --specs kernels.yaml
      pallasc tune pick results.jsonl --specs kernels.yaml --dry-run
      pallasc tune pick one.jsonl two.jsonl --specs specs/ --within 5 --at-most 4

    If no key has complete results, nothing is written, and the exit code is 1.
    """
    from pallasc.tuning.pick import pick, with_model
    from pallasc.tuning.results import read_results

    results = [read_results(file) for file in files]
    tuned = [spec for spec in work.reader().specs(work.specs) if spec.tune is not None]
    if not tuned:
        raise SpecError(
            f"no kernel of {', '.join(work.specs)} has 'tune'.",
            hint="Name tuned parameters in the spec, then plan and measure.",
        )
    models = [model for spec in tuned for model in spec.models.values()]
    results = [with_model(file, models) for file in results]
    kernels = _read_kernels(tuned, results[0].start.model)
    decided = pick(results, kernels, within, most=at_most)
    written = [] if dry_run else _write(decided, kernels)
    if as_json:
        listed = [{"table": kernels[own.name].shown, **_json(own)} for own in decided]
        echo(json_text({"kernels": listed, "written": [str(path) for path in written]}))
    for own in decided:
        tune = kernels[own.name].tune
        if not as_json:
            echo(_text(own, tune))
        for line in _remarks(own, tune, within):
            echo(line, err=True)
    for path, shown in {own.table: own.shown for own in kernels.values()}.items():
        stayed = "unchanged" if path.exists() else "not written"
        echo(f"{shown} is {'written' if path in written else stayed}", err=True)
    return 0 if any(own.served for own in decided) else 1


def _read_kernels(specs: Sequence[Spec], model: str | None) -> dict[str, TunedKernel]:
    """Return the tuned kernels of specs for a model, by name.

    Raises:
        SpecError: a spec or a table is invalid, or two specs tune a kernel differently.
    """
    from pallasc.specs.loading.matrix import expand
    from pallasc.specs.loading.tuned_table import read_table, table_shown
    from pallasc.tuning.pick import TunedKernel

    declared = {(spec.location, spec.name): spec for spec in specs}
    points: dict[str, list[Variant]] = {}
    for variant in expand(list(declared.values()), all_points=True):
        if variant.target.name == model:
            points.setdefault(variant.name, []).append(variant)
    kernels: dict[str, TunedKernel] = {}
    for name, variants in points.items():
        own = dict.fromkeys(variant.location for variant in variants)
        spec, *others = [declared[location, name] for location in own]
        tune: Any = spec.tune
        if other := next((each for each in others if each.tune != tune), None):
            raise SpecError(
                f"two specs tune {name} on {model} in different ways.",
                location=other.where("tune"),
                hint="Write the same 'tune' in both.",
            )
        path, shown = Path(spec.base_dir, tune.table), table_shown(spec, tune)
        table = read_table(path, shown).get(name)
        ids = {variant.id for variant in variants}
        kernels[name] = TunedKernel(tune, ids, table.rows if table else (), path, shown)
    return kernels


def _write(decided: Sequence[Picked], kernels: Mapping[str, TunedKernel]) -> list[Path]:
    """Write the tables that have changed, and return their paths."""
    from pallasc.specs.loading.tuned_table import Table, read_table, table_text, write_table

    changed: dict[tuple[Path, str], dict[str, Table]] = {}
    for own in decided:
        if own.served:
            kernel = kernels[own.name]
            rows = tuple(change.row for change in own.changes if change.kind != "dropped")
            tables = changed.setdefault((kernel.table, kernel.shown), {})
            tables[own.name] = Table(kernel.tune.by, rows)
    written = []
    for (path, shown), tables in changed.items():
        whole = {**read_table(path, shown), **tables}
        if not path.exists() or table_text(whole) != path.read_text(encoding="utf-8"):
            write_table(path, whole)
            written.append(path)
    return written


def _text(picked: Picked, tune: Tune) -> str:
    """Return the picked configurations of a kernel, and a table of its changed rows."""
    name = f"{picked.name} on {picked.gpu}"
    if not picked.served:
        return f"{name}: no key has complete results; its rows are unchanged"
    mean, worst = picked.loss_percent()
    lines = [
        f"{name}: uses {len(picked.uses)} of {count(len(picked.configurations), 'configuration')} "
        f"for {count(len(picked.served), 'key')}; slower than the best by {mean:.2f} % "
        f"(geometric mean), at most {worst:.2f} %"
    ]
    losses = {canonical_text(list(own.key)): own.option.loss for own in picked.served}
    rows = [
        _cells(change, tune, losses.get(canonical_text(list(change.row.key))))
        for change in picked.changes
        if change.kind != "same"
    ]
    if rows:
        lines.append(table(_HEAD, rows, right=("µs", "SLOWER")))
    if same := sum(change.kind == "same" for change in picked.changes):
        lines.append(f"{count(same, 'row')} unchanged")
    return "\n".join(lines)


def _cells(change: RowChange, tune: Tune, loss: float | None) -> list[str]:
    row, before = change.row, change.before
    names = _MARKS[change.kind], row.gpu, key_text(tune.by, row.key)
    old = "" if before is None else use_text(before.use)
    if change.kind == "dropped":
        return [*names, old, "", "", ""]
    us = "" if row.measured is None else f"{row.measured.us:.2f}"
    slower = "" if loss is None else f"{100 * math.expm1(loss):.2f} %"
    return [*names, old, use_text(row.use), us, slower]


def _remarks(picked: Picked, tune: Tune, within: float) -> Iterator[str]:
    """Yield remarks that the rows do not show, one line each."""
    name = picked.name
    found = {
        f"not known to be within {within:g} % of the best": picked.beyond,
        "not completely measured (continue with pallasc tune run)": picked.unfinished,
        "no picked configuration has valid times, so no row is written": picked.without,
    }
    for what, keys in found.items():
        if keys:
            yield f"{name}: {what}: {_keys(tune, keys)}"
    if picked.unknown:
        points = count(picked.unknown, "point")
        yield f"{name}: ignored {points} that are no longer in the spec"
    if picked.default is not None and tune.default is None:
        yield (
            f"{name}: the spec has no default; the best single configuration for all keys is "
            f"{use_text(picked.default)}"
        )


def _json(picked: Picked) -> dict[str, object]:
    mean, worst = picked.loss_percent()
    return {
        "kernel": picked.name,
        "gpu": picked.gpu,
        "keys": len(picked.served),
        "configurations": {"measured": len(picked.configurations), "used": len(picked.uses)},
        "loss_percent": {"mean": round(mean, 3), "worst": round(worst, 3)},
        **fields(picked, "uses", "default", "beyond", "unfinished", "without"),
        "rows": [
            {
                "change": change.kind,
                "gpu": change.row.gpu,
                "key": change.row.key,
                "before": _row_json(change.before),
                "after": None if change.kind == "dropped" else _row_json(change.row),
            }
            for change in picked.changes
        ],
    }


def _row_json(row: Row | None) -> dict[str, object] | None:
    if row is None:
        return None
    us = None if row.measured is None else row.measured.us
    return {"use": row.use, "artifact": row.artifact, "us": us}


def _keys(tune: Tune, keys: Sequence[Key]) -> str:
    named = "; ".join(key_text(tune.by, key) or "all calls" for key in keys[:_MOST_NAMED])
    more = len(keys) - _MOST_NAMED
    return f"{named}; and {more} more" if more > 0 else named
