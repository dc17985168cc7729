"""`pallasc cache merge`: take other stores into this one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import json_option, store_option
from pallasc.cli.cache.shared import opened
from pallasc.cli.terminal.output import echo
from pallasc.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pallasc.cache.upkeep.merge_stores import MergedStore


@click.command("merge", cls=Command, short_help="Take other stores into this one.")
@click.argument(
    "folders",
    metavar="DIR...",
    nargs=-1,
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
)
@store_option
@json_option("what was taken")
def command(folders: tuple[Path, ...], store_root: Path | None, as_json: bool) -> int:
    """Take everything valid in the stores DIR into this store; DIR is only read.

    What is damaged there is named and left. Where both stores have an artifact under one action
    key and the two differ, the compilation is not deterministic: the key is named, and this store
    keeps its own. Where both have an entry for the same request, this store keeps its own, too.
    Signatures are copied, nothing is signed; where $PALLASC_REQUIRE_SIGNED_STORE is 1, only what a
    trusted key signed is taken. Pins and statistics are not taken.

    Ends with exit code 5 where something was damaged or conflicts.

    Example:
      pallasc cache merge ../job1/store ../job2/store
    """
    from pallasc.cache.upkeep.merge_stores import merge_stores
    from pallasc.cli.terminal.output import json_text

    merged = []
    for result in merge_stores(opened(store_root), folders):
        merged.append(result)
        if not as_json:
            echo("\n".join(_lines(result)))
    if as_json:
        echo(json_text({"merged": [result.to_json() for result in merged]}))
    return 0 if all(result.ok for result in merged) else CorruptError.exit_code


def _lines(merged: MergedStore) -> Iterator[str]:
    from pallasc.cli.terminal.output import count

    for reason in merged.refused:
        yield f"left      {reason}"
    for key in merged.conflicts:
        yield f"conflict  {key}: compiled twice with different results, this store keeps its own"
    left = [
        (merged.existed, "there already"),
        (merged.kept, "requests kept as they are here"),
        (merged.unsigned, "entries not signed by a trusted key left"),
    ]
    more = "".join(f", {number:,} {what}" for number, what in left if number)
    yield f"{merged.folder}: {count(merged.records, 'artifact')} taken{more}"
