"""`pallasc lock`: compare specs with the lock file, or write the lock file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pallasc.cli.arguments import options
from pallasc.cli.arguments import variants as given
from pallasc.cli.arguments.command import Command
from pallasc.cli.output.text import echo, fields, json_text

if TYPE_CHECKING:
    from pallasc.cli.arguments.variants import Work
    from pallasc.compiler.builds.relock import LockReport
    from pallasc.specs.loading.lock import Change, ChangeKind
    from pallasc.specs.spec import Variant

_NOT_AS_LOCKED = 3
_MARKS: dict[ChangeKind, str] = {"added": "+", "changed": "~", "dropped": "-", "unknown": "?"}


@click.command("lock", cls=Command, short_help="Compare specs with pallasc.lock, or write it.")
@options.specs_argument()
@options.flag("--update", "Rewrite the lock file, building missing variants.")
@options.lock_option("Path of the lock file")
@options.selection_options
@options.fail_on_warning_option
@options.quiet_option
@given.build_options()
@options.json_option("the differences")
def command(
    update: bool,
    lock: Path | None,
    as_json: bool,
    work: Work,
) -> int:
    """Compare the variants of SPECS with the lock file, or update the file with --update.

    The lock file lists the action key and artifact digest of each variant, and the toolchain that
    compiled them. Commit it: `pallasc build --locked` fails if a result differs from the file,
    and `pallasc build --frozen` fails if anything has to be compiled.

    Without --update, nothing is compiled or written. Each difference is printed
    to standard output as one line; if there are differences, the exit code is 3:
      + not in the lock file
      ~ in the lock file with a different action key or artifact
      - only in the lock file
      ? unknown: sources have changed, or the artifact is not in the store

    With -k or --target, entries of other variants are not checked or changed. Without these
    options, an entry that is not a variant of SPECS is a difference, and --update removes it.

    Examples:
      pallasc lock specs/ --update
      pallasc lock specs/
      pallasc lock specs/ --update -k matmul --timeout 600
      pallasc lock specs/ --lock py311.lock
    """
    from pallasc.cli.arguments.variants import read_existing_lock
    from pallasc.cli.output.build_text import print_notes
    from pallasc.compiler.builds.relock import check_lock
    from pallasc.specs.loading.lock import LOCK_FILE, update_command

    path, quiet, selection = lock or LOCK_FILE, work.quiet, work.selection
    with work.progress() as progress:
        variants = work.select(progress).variants
    whole = not selection.targets and selection.expression is None
    if update:
        found, written = _update(variants, path, work, whole=whole)
        if not found.complete:
            return found.report.exit_code
    else:
        own: dict[str, Any] = {"store": work.store, "ptxas": work.how.ptxas}
        written = False
        found = check_lock(variants, path, read_existing_lock(path), whole=whole, **own)
        print_notes(found.report, work.store)
    code = 0 if update or not (found.changes or found.tables) else _NOT_AS_LOCKED
    kinds = [change.kind for change in found.changes]
    totals: dict[str, int] = {kind: kinds.count(kind) for kind in _MARKS}
    totals["same"] = len(variants) - len(kinds) + totals["dropped"]
    if not quiet or (code and not update):
        for line in _summary(path, found, totals, written=written):
            echo(line, err=True)
    if code:
        # Variants that are not in the store cannot be compared; they must be built before an
        # update.
        remedy = f"If that is intended: {update_command(path)}"
        if {*kinds} == {"unknown"}:
            remedy = "Build them first: pallasc build SPECS"
        echo(f"  {remedy}", err=True)
    if as_json:
        changes = list(map(_change_json, found.changes))
        data = {"lock": str(path), "written": written, "totals": totals, "changes": changes}
        echo(json_text({**data, **fields(found, "tables", "toolchain")}))
    elif not (quiet and update):
        for change in found.changes:
            reason = f": {change.reason}" if change.reason else ""
            echo(f"{_MARKS[change.kind]} {change.variant}{reason}")
    return code


def _update(
    variants: Sequence[Variant], path: Path, work: Work, *, whole: bool
) -> tuple[LockReport, bool]:
    """Update the lock file; return the changes, and whether the file was written."""
    from pallasc.cli.output.build_text import print_remarks
    from pallasc.compiler.builds.relock import update_lock
    from pallasc.specs.loading.lock import read_lock, write_lock

    old = read_lock(path)
    own: dict[str, Any] = {"store": work.store, "options": work.how}
    with work.progress() as progress:
        found = update_lock(variants, old, file=path, whole=whole, on_event=progress, **own)
    print_remarks(found.report, work.store, progress.screen, quiet=work.quiet)
    if not found.complete:
        echo(f"{path} is unchanged.", err=True)
    written = found.complete and found.lock != old
    if written:
        write_lock(path, found.lock)
    return found, written


def _summary(
    path: Path, found: LockReport, totals: Mapping[str, int], *, written: bool
) -> Iterator[str]:
    for name in found.tables:
        yield f"{path}: the table or tune of {name} has changed"
    for clause in found.toolchain if written else ():
        yield f"{path}: {clause}"
    words = ", ".join(f"{number:,} {kind}" for kind, number in totals.items() if number)
    is_current = not found.changes and not found.tables
    state = "is written" if written else "is current" if is_current else "is not current"
    yield f"{path} {state}: {words}"


def _change_json(change: Change) -> dict[str, object]:
    return {
        "reason": change.reason,
        "id": change.variant,
        "change": change.kind,
        "before": change.before and change.before._asdict(),
        "after": change.after and change.after._asdict(),
    }
