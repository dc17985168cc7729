"""`pallasc cache verify`: read the whole store."""

from __future__ import annotations

from pathlib import Path

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import json_option, store_option
from pallasc.cli.cache.shared import opened
from pallasc.cli.terminal.output import echo


@click.command("verify", cls=Command)
@click.option("--repair", is_flag=True, help="Move damaged files away, to be made again.")
@store_option
@json_option("the findings")
def command(repair: bool, store_root: Path | None, as_json: bool) -> int:
    """Read the whole store and check every digest and field.

    This finds damaged and foreign files; it cannot find a forgery whose checksums fit.

    A repair moves damaged files to the store's quarantine, and the next build makes them again.

    Ends with exit code 5 where something is damaged, or cannot be read, and was not repaired.

    Examples:
      pallasc cache verify
      pallasc cache verify --repair
    """
    from pallasc.cache.verify import verify
    from pallasc.cli.terminal.output import count, json_text

    verified = verify(opened(store_root, check_folders=False), repair=repair)
    if as_json:
        echo(json_text(verified.to_json()))
    else:
        for finding in verified.findings:
            state = "repaired" if finding.repaired else "damaged"
            echo(f"{state}  {finding.kind} {finding.path}: {finding.reason}")
        packs = f"{count(verified.packs, 'pack')}, " if verified.packs else ""
        echo(
            f"{count(verified.records, 'record')}, {count(verified.blobs, 'blob')}, "
            f"{count(verified.manifests, 'manifest')}, "
            f"{packs}read {count(verified.bytes, 'byte')}: "
            f"{count(len(verified.findings), 'finding')}"
        )
    return 0 if all(finding.repaired for finding in verified.findings) else 5
