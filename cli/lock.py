"""`pallasc lock`: compare specs with the lock file, or write it anew."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from pallasc.cli.arguments.build_options import remote_options
from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import (
    BuildOptions,
    compile_options,
    fail_on_warning_option,
    json_option,
    lock_option,
    quiet_option,
    selection_options,
    specs_argument,
    store_option,
    store_setting,
    supervision_options,
)
from pallasc.cli.terminal.output import echo

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.compiler.builds.options import Options
    from pallasc.compiler.builds.relock import LockUpdate
    from pallasc.specs.lock import Change, ChangeKind
    from pallasc.specs.spec import Variant

_NOT_AS_LOCKED = 3
_MARKS: dict[ChangeKind, str] = {"added": "+", "changed": "~", "dropped": "-", "unknown": "?"}


@click.command("lock", cls=Command, short_help="Compare specs with pallasc.lock, or write it.")
@specs_argument()
@click.option("--update", is_flag=True, help="Rewrite the lock file, building missing variants.")
@lock_option("The lock file")
@selection_options
@compile_options
@supervision_options
@store_option
@store_setting
@remote_options
@fail_on_warning_option
@quiet_option
@json_option("the differences")
def command(
    specs: tuple[str, ...],
    update: bool,
    lock: Path | None,
    targets: tuple[str, ...],
    expression: str | None,
    all_points: bool,
    store_root: Path | None,
    quiet: bool,
    as_json: bool,
    **options: Unpack[BuildOptions],
) -> int:
    """Compare the variants of SPECS with the lock file, or write it with --update.

    The lock file has the action key and the digest of the artifact of each variant, and the
    toolchain that made them. Commit it: `pallasc build --locked` fails where something else comes
    out, `pallasc build --frozen` where something would have to be compiled.

    Without --update nothing is compiled or written. Each difference is a line on the standard
    output, and the exit code is 3 if there are any:
      + not in the lock file
      ~ in the lock file with another action key or artifact
      - in the lock file only
      ? the store cannot tell: its sources have changed, or it lacks the artifact

    With -k or --target, entries of other variants are left alone. Otherwise the lock file is for
    SPECS alone, and an update drops entries that no spec declares.

    Examples:
      pallasc lock specs/ --update
      pallasc lock specs/
      pallasc lock specs/ --update -k matmul --timeout 600
      pallasc lock specs/ --lock py311.lock

    --json prints one object:
      schema     1
      lock       the lock file
      written    whether the lock file was written
      totals     number of variants by change, and those that are the same
      toolchain  how the toolchain differs, in words
      changes    a list by id; of each: id, change (added, changed, dropped, unknown), reason,
                 before and after (each action, artifact and request, or null)
      tables     tuned kernels and targets whose rows, or `tune` of whose spec, have changed
    """
    from pallasc.cli.arguments.selection import load_variants, open_store
    from pallasc.cli.render.live import store_progress
    from pallasc.cli.render.reading import Reading
    from pallasc.cli.terminal.output import json_text
    from pallasc.compiler.builds.options import Options
    from pallasc.specs.lock import LOCK_FILE

    store = open_store(store_root)
    with store_progress(store, hits=False, quiet=quiet) as progress:
        variants = load_variants(
            specs,
            store=store,
            targets=targets,
            expression=expression,
            all_points=all_points,
            timeout_s=options["timeout_s"],
            memory_bytes=options["memory_bytes"],
            on_tick=Reading(progress, keep_going=False).tick,
        )
    whole = not targets and expression is None
    run = _Run(variants, store, lock or LOCK_FILE, whole=whole, quiet=quiet)
    code = run.update(Options(**options)) if update else run.check(options["ptxas"])
    if as_json and run.data is not None:
        echo(json_text(run.data))
    elif run.data is not None and not (quiet and update):
        for change in run.changes:
            echo(_line(change))
    return code


class _Run:
    """One run of the command: what it was given, and what it found."""

    def __init__(
        self,
        variants: Sequence[Variant],
        store: Store,
        path: Path,
        *,
        whole: bool,
        quiet: bool = False,
    ) -> None:
        self._variants, self._store, self._path, self._whole = variants, store, path, whole
        self._quiet = quiet
        self.changes: tuple[Change, ...] = ()
        self.data: dict[str, object] | None = None

    def check(self, ptxas: Path | None) -> int:
        from pallasc.compiler.builds.relock import check_lock
        from pallasc.errors import NotCachedError
        from pallasc.specs.loading.lock_file import read_lock
        from pallasc.specs.lock import update_command

        lock = read_lock(self._path)
        if lock is None:
            raise NotCachedError(
                f"there is no {self._path}.", hint=f"Make it with: {update_command(self._path)}"
            )
        checked = check_lock(
            self._variants,
            self._path,
            lock,
            whole=self._whole,
            store=self._store,
            ptxas=ptxas,
        )
        for note in checked.notes:
            echo(f"warning: {note}", err=True)
        self._tell(checked.changes, (), written=False, tables=checked.tables)
        if not checked.changes and not checked.tables:
            return 0
        # What the store does not have cannot be compared, so an update is no remedy yet.
        unknown = [change.kind == "unknown" for change in checked.changes]
        if unknown and all(unknown):
            echo("  Build them first: pallasc build SPECS", err=True)
        else:
            echo(f"  If that is intended: {update_command(self._path)}", err=True)
        return _NOT_AS_LOCKED

    def update(self, options: Options) -> int:
        from pallasc.cli.render.live import store_progress
        from pallasc.cli.render.remarks import remarks
        from pallasc.cli.render.summary import print_notes
        from pallasc.compiler.builds.relock import update_lock
        from pallasc.specs.loading.lock_file import read_lock
        from pallasc.specs.lock import write_lock

        old = read_lock(self._path)
        with store_progress(self._store, hits=False, quiet=self._quiet) as progress:
            updated = update_lock(
                self._variants,
                old,
                file=self._path,
                whole=self._whole,
                store=self._store,
                options=options,
                on_event=progress,
            )
        print_notes(updated.report, self._store)
        if not updated.complete:
            return self._incomplete(updated)
        for line in () if self._quiet else remarks(updated.report, added=False):
            echo(line, err=True)
        written = updated.lock != old
        if written:
            write_lock(self._path, updated.lock)
        self._tell(updated.changes, updated.toolchain, written=written, tables=updated.tables)
        return 0

    def _incomplete(self, updated: LockUpdate) -> int:
        from pallasc.cli.render.summary import summary

        echo(summary(updated.report, quiet=self._quiet), err=True)
        echo(f"{self._path} is left as it is.", err=True)
        return updated.report.exit_code

    def _tell(
        self,
        changes: tuple[Change, ...],
        toolchain: tuple[str, ...],
        *,
        written: bool,
        tables: tuple[str, ...],
    ) -> None:
        self.changes = changes
        totals = dict.fromkeys(map(str, _MARKS), 0) | {"same": len(self._variants)}
        for change in changes:
            totals[change.kind] += 1
            totals["same"] -= change.kind != "dropped"
        self.data = {
            "lock": str(self._path),
            "written": written,
            "totals": totals,
            "toolchain": list(toolchain),
            "changes": [_change_json(change) for change in changes],
            "tables": list(tables),
        }
        if self._quiet and (written or not (changes or tables)):
            return
        for name in tables:
            echo(f"{self._path}: the table or tune of {name} has changed", err=True)
        for clause in toolchain if written else ():
            echo(f"{self._path}: {clause}", err=True)
        words = ", ".join(f"{number:,} {kind}" for kind, number in totals.items() if number)
        is_current = not changes and not tables
        state = "is written" if written else "is current" if is_current else "is not current"
        echo(f"{self._path} {state}: {words}", err=True)


def _line(change: Change) -> str:
    reason = f": {change.reason}" if change.reason else ""
    return f"{_MARKS[change.kind]} {change.variant}{reason}"


def _change_json(change: Change) -> dict[str, object]:
    return {
        "id": change.variant,
        "change": change.kind,
        "before": change.before._asdict() if change.before else None,
        "after": change.after._asdict() if change.after else None,
        "reason": change.reason,
    }
