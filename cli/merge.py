"""`pallasc merge`: put the parts of a sharded build together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import (
    file_option,
    json_option,
    junit_option,
    store_option,
)
from pallasc.cli.terminal.output import echo

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.compiler.shards.join import Joined


@click.command("merge", cls=Command, short_help="Put the parts of a sharded build together.")
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="PARTS..."
)
@file_option("--lock", "Write the lock file of the whole build, if nothing failed or is missing.")
@junit_option
@store_option
@json_option("the report")
def command(
    files: tuple[Path, ...],
    lock: Path | None,
    junit: Path | None,
    store_root: Path | None,
    as_json: bool,
) -> int:
    """Put together what the jobs of a sharded build wrote with --shard-output.

    Artifacts go into the store, so that `pallasc bundle create --frozen` and `pallasc lock` find
    all of them; the reports become one, and so do the entries for the lock file. Every byte is
    verified first. No compiler is needed, and no spec is read.

    Parts must be of one run: one toolchain, one number of shards, the same costs, the same specs.
    What is wrong is named, and then nothing is stored. A variant that no part has, or a shard
    without a part, is told too, with exit code 3; the other artifacts are stored and reported.

    Examples:
      pallasc merge parts/*.part
      pallasc merge parts/*.part --lock pallasc.lock --junit report.xml
      pallasc merge parts/*.part --store .pallasc --json > report.json

    --json prints the object of `pallasc build --json` for all variants, in which
      seconds  time of the shard that took longest
      remote   null
      shards   a list; of each shard: number, of, file, variants (how many), seconds, expected_s,
               remote
      missing  ids of variants that are in no part
      lock     the lock file that was written, or null

    Ends with the exit code that one build of all variants would have had; with 2 if parts do not
    belong together, 3 if something is missing, 4 if the store cannot be written, and 5 if a part is
    damaged or two artifacts of one action key differ.
    """
    from pallasc.cli.arguments.selection import open_store
    from pallasc.cli.render.build_outputs import Outputs
    from pallasc.cli.render.failures import error_text
    from pallasc.cli.render.merged import MergedReport
    from pallasc.cli.terminal.output import json_text, write_report
    from pallasc.compiler.shards.join import join, publish

    with Outputs(as_json=as_json, junit=junit, annotations=None).reporting_errors():
        store = open_store(store_root)
        joined = join(files)
        report = MergedReport(joined)
        data = report.junit(joined.missing) if junit else b""
        publish(joined, store)
    for note in report.notes:
        echo(f"warning: {note}", err=True)
    for line in report.lines():
        echo(line, err=True)
    written = _write_lock(lock, joined, store) if lock and not report.exit_code else None
    if lock and not written:
        echo(f"{lock} is left as it is.", err=True)
    if as_json:
        echo(json_text(report.to_json(joined.missing, str(written) if written else None)))
    if junit:
        write_report(data, junit, "--junit")
    if joined.missing is not None:
        echo(f"error: {error_text(joined.missing)}", err=True)
    return report.exit_code


def _write_lock(path: Path, joined: Joined, store: Store) -> Path:
    """Write the lock file; entries of other variants stay where jobs listed a selection.

    Raises:
        NotCachedError: those entries are for another toolchain.
    """
    from pallasc.compiler.builds.relock import with_resources
    from pallasc.errors import NotCachedError
    from pallasc.specs.loading.lock_file import read_lock
    from pallasc.specs.lock import Lock, differences, merged, write_lock

    old = read_lock(path) or Lock()
    clauses = differences(old.toolchain, joined.lock.toolchain) if old.variants else []
    if clauses and not joined.whole and not old.variants.keys() <= joined.lock.variants.keys():
        raise NotCachedError(
            f"{path} is for another toolchain: {'; '.join(clauses)}; the entries that this merge "
            "keeps would not match this one.",
            hint="Build all shards without -k and --target, or give --lock another path.",
        )
    new = merged(old, with_resources(joined.lock, store), whole=joined.whole)
    if new != old:
        write_lock(path, new)
    echo(f"{path} {'is written' if new != old else 'is current'}", err=True)
    return path
