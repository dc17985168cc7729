"""`pallasc tune renew`: today's digests for the rows of tables."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Unpack

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import (
    BuildOptions,
    compile_options,
    fail_on_warning_option,
    json_option,
    quiet_option,
    specs_argument,
    store_option,
    store_setting,
    supervision_options,
)
from pallasc.cli.arguments.remote import remote_options
from pallasc.cli.terminal.output import count, echo

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.compiler.builds.collect import Selection
    from pallasc.compiler.builds.report import Report
    from pallasc.specs.loading.tuned_table import Table
    from pallasc.specs.spec import Spec
    from pallasc.specs.tuned.renew import RowKey
    from pallasc.specs.tuning import Row

_DIGITS = 12


class _Changed(NamedTuple):
    """A row that has a digest of today, and which it had."""

    kernel: str
    by: tuple[str, ...]
    before: Row
    after: Row


@click.command("renew", cls=Command, short_help="Write today's digests into tables.")
@specs_argument()
@click.option("--dry-run", is_flag=True, help="Write nothing; show what would change.")
@compile_options
@supervision_options
@store_option
@store_setting
@remote_options
@fail_on_warning_option
@quiet_option
@json_option("the changed rows")
def command(
    specs: tuple[str, ...],
    dry_run: bool,
    store_root: Path | None,
    quiet: bool,
    as_json: bool,
    **options: Unpack[BuildOptions],
) -> int:
    """Write today's digests of the variants that they choose into the tables of SPECS.

    A row is for the artifact that was measured. After an upgrade of JAX, or an edit of a kernel,
    the same variant is compiled to another artifact, and a build says so. Where the times still
    hold, this command takes the new digest; the row keeps the digest of what was measured as
    measured_as. A row that has none, of a table from elsewhere, gets one. Where a variant fails to
    compile, nothing is written; nor where somebody edited a row, as its check tells, or the store
    or pallasc.lock, which know its artifact as that of another point: its times are of that point.

    Examples:
      pallasc tune renew kernels.yaml
      pallasc tune renew specs/ --dry-run

    --json prints one object:
      schema   1
      written  the tables that were written
      rows     a list of the changed rows, each as `pallasc tune show --json` prints it, with
               before: the digest that it had, or null
    """
    from pallasc.cli.arguments.selection import open_store
    from pallasc.cli.render.live import store_progress
    from pallasc.cli.render.reading import Reading
    from pallasc.cli.render.summary import print_notes, summary
    from pallasc.cli.tune.show import no_rows_text
    from pallasc.compiler.builds.build import build
    from pallasc.compiler.builds.collect import SpecReader
    from pallasc.compiler.builds.options import Options
    from pallasc.compiler.builds.tuned_rows import standing

    store = open_store(store_root)
    with store_progress(store, hits=False, quiet=quiet) as progress:
        reader = SpecReader(
            store=store,
            timeout_s=options["timeout_s"],
            memory_bytes=options["memory_bytes"],
            on_tick=Reading(progress, keep_going=False).tick,
        )
        selection = reader.select(specs)
        variants = [variant for variant in selection.variants if standing(variant) is not None]
        report = build(variants, store=store, options=Options(**options), on_event=progress)
    print_notes(report, store)
    if report.exit_code or report.skipped:
        echo(summary(report, quiet=quiet), err=True)
        echo("No table is written.", err=True)
        return report.exit_code
    rows = _renewed(report)
    _check_uses(selection, report, rows, store, options["ptxas"])
    changed, written, total = _write(selection, rows, dry_run=dry_run)
    if as_json:
        _print_json(changed, written)
    elif not total:
        echo(no_rows_text(selection.specs), err=True)
    else:
        checked = sum(map(len, rows.values()))
        _tell(changed, written, checked=checked, left=total - checked, quiet=quiet)
    return 0


def _renewed(report: Report) -> dict[str, dict[RowKey, Row]]:
    """Return the rows with today's digests, by kernel."""
    from pallasc.compiler.builds.tuned_rows import standing
    from pallasc.specs.tuned.renew import renewed, row_key

    found: dict[tuple[str, RowKey], tuple[Row, list[str]]] = {}
    for result in report.results:
        own = standing(result.variant)
        if own is not None and result.artifact is not None:
            name = (result.variant.name, row_key(own.row))
            found.setdefault(name, (own.row, []))[1].append(result.artifact.digest)
    rows: dict[str, dict[RowKey, Row]] = {}
    for (kernel, key), (row, digests) in found.items():
        rows.setdefault(kernel, {})[key] = renewed(row, digests)
    return rows


def _check_uses(
    selection: Selection,
    report: Report,
    rows: Mapping[str, Mapping[RowKey, Row]],
    store: Store,
    ptxas: Path | None,
) -> None:
    """Refuse rows that were measured of other points than they choose.

    Raises:
        SpecError: there is one.
    """
    from pallasc.compiler.builds.tuned_rows import standing
    from pallasc.compiler.tuning.owners import owners
    from pallasc.specs.loading.lock_file import read_lock
    from pallasc.specs.loading.matrix import expand
    from pallasc.specs.lock import LOCK_FILE
    from pallasc.specs.tuned.renew import edited_row, row_key

    stale = {
        (result.variant.name, row_key(own.row)): own
        for result in report.results
        if (own := standing(result.variant)) is not None
        and own.row.artifact is not None
        and rows[result.variant.name][row_key(own.row)] != own.row
    }
    if not stale:
        return
    names = {(name, own.row.gpu) for (name, _), own in stale.items()}
    points = expand(selection.specs, all_points=True)
    known = owners(
        [point for point in points if (point.name, point.target.name) in names],
        store=store,
        lock=read_lock(LOCK_FILE),
        ptxas=ptxas,
    )
    for (kernel, _), own in stale.items():
        if error := edited_row(kernel, own.tuning.by, own.row, known):
            raise error


def _write(
    selection: Selection, rows: Mapping[str, Mapping[RowKey, Row]], *, dry_run: bool
) -> tuple[list[_Changed], list[str], int]:
    """Write the tables in which rows differ; return these rows, the tables' names, all rows."""
    from pallasc.specs.loading.tuned_points import table_shown
    from pallasc.specs.loading.tuned_table import read_table, write_table
    from pallasc.specs.tuned.renew import with_rows

    changed: list[_Changed] = []
    written: list[str] = []
    total = 0
    for path, sharing in _by_table(selection.specs).items():
        shown = next(table_shown(spec, spec.tune) for spec in sharing if spec.tune is not None)
        before = read_table(path, shown)
        own = {spec.name for spec in sharing}
        after = {
            name: with_rows(table, rows.get(name, {})) if name in own else table
            for name, table in before.items()
        }
        total += sum(len(before[name].rows) for name in own & before.keys())
        differing = list(_differing(before, after))
        changed += differing
        if differing and not dry_run:
            write_table(path, after)
            written.append(shown)
    return changed, written, total


def _by_table(specs: Iterable[Spec]) -> dict[str, list[Spec]]:
    """Return the tuned specs by the path of their table."""
    tables: dict[str, list[Spec]] = {}
    for spec in specs:
        if spec.tune is not None:
            path = os.path.join(spec.base_dir, spec.tune.table)
            tables.setdefault(path, []).append(spec)
    return tables


def _differing(before: Mapping[str, Table], after: Mapping[str, Table]) -> Iterable[_Changed]:
    for name, table in before.items():
        for old, new in zip(table.rows, after[name].rows, strict=True):
            if new != old:
                yield _Changed(name, table.by, old, new)


def _print_json(changed: Sequence[_Changed], written: list[str]) -> None:
    from pallasc.cli.terminal.output import json_text
    from pallasc.cli.tune.show import row_json

    rows = [
        {**row_json(each.kernel, each.by, each.after), "before": each.before.artifact}
        for each in changed
    ]
    echo(json_text({"written": written, "rows": rows}))


def _tell(
    changed: Sequence[_Changed], written: Sequence[str], *, checked: int, left: int, quiet: bool
) -> None:
    from pallasc.specs.tuning import key_text

    if quiet:
        return
    for each in changed:
        before = (each.before.artifact or "no digest")[:_DIGITS]
        key = key_text(each.by, each.before.key)
        after = (each.after.artifact or "")[:_DIGITS]
        echo(f"~ {each.kernel}: {each.before.gpu}, {key}: {before} -> {after}")
    same = checked - len(changed)
    echo(f"{len(changed):,} of {count(checked, 'row')} changed, {same:,} are current", err=True)
    if left:
        echo(f"{count(left, 'row')} for other models, or for no point of the specs: left", err=True)
    for name in written:
        echo(f"{name} is written", err=True)
