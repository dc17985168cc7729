"""`pallasc bundle list`: the variants of a bundle."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import Selection, json_option
from pallasc.cli.bundle.options import bundle_selection_options, file_argument
from pallasc.cli.terminal.output import echo

if TYPE_CHECKING:
    from pallasc.specs.bundle.bundle import Bundle
    from pallasc.specs.bundle.manifest import Entry


@click.command("list", cls=Command, short_help="List the variants of a bundle.")
@file_argument
@bundle_selection_options
@json_option("the variants")
def command(file: Path, as_json: bool, **selection: Unpack[Selection]) -> int:
    """List the variants of a bundle, sorted by kernel, target and parameters.

    Examples:
      pallasc bundle list kernels.pallasc
      pallasc bundle list kernels.pallasc --target sm_90a -k "matmul and m=4096"

    --json prints one object:
      schema    1
      file      the bundle
      bytes     its size
      digest    of all its content
      variants  a list; of each: id, name, params, target, arch, inputs, outputs, minimum_driver,
                digest (of the artifact, as in store and lock), bytes (compressed), vmap (the
                kernel for a batch, null where the spec names none), tune (what decides where a
                tuned kernel's variant is used, as in the manifest; null where it is not tuned)
    """
    from pallasc.cli.bundle.options import selected_entries
    from pallasc.cli.terminal.output import json_text, table
    from pallasc.specs.bundle.bundle import open_bundle

    with open_bundle(file) as bundle:
        entries = sorted(selected_entries(bundle, **selection), key=_order)
        if as_json:
            listed = [entry_json(bundle, entry) for entry in entries]
            head = {"file": str(file), "bytes": bundle.size, "digest": bundle.digest}
            echo(json_text({**head, "variants": listed}))
            return 0
        columns = ["VARIANT", "ARCH", "BYTES", "DIGEST"]
        rows = [[e.id, e.arch, f"{bundle.stored_bytes(e):,}", e.digest[:12]] for e in entries]
    if any(entry.tuning is not None for entry in entries):
        columns.append("USED FOR")
        rows = [[*row, _used_for(entry)] for row, entry in zip(rows, entries, strict=True)]
    echo(table(columns, rows, right={"BYTES"}))
    return 0


def _used_for(entry: Entry) -> str:
    """Return where a variant is used: how many rows choose it, and whether it is the default."""
    from pallasc.cli.terminal.output import count

    tuning = entry.tuning
    if tuning is None:
        return ""
    gpus = Counter(row.gpu for row in tuning.rows)
    uses = [f"{count(number, 'row')} for {gpu}" for gpu, number in sorted(gpus.items())]
    return ", ".join([*uses, *(["default"] if tuning.is_default else [])])


def _order(entry: Entry) -> tuple[object, ...]:
    """Return what a variant is sorted by: numbers by their size, and before other values."""
    params = [
        (name, 0, value, "") if isinstance(value, int | float) else (name, 1, 0, str(value))
        for name, value in entry.params
    ]
    return entry.name, entry.target, params


def entry_json(bundle: Bundle, entry: Entry) -> dict[str, object]:
    """Return what `--json` says of a variant."""
    return {
        "id": entry.id,
        "name": entry.name,
        "params": dict(entry.params),
        "target": entry.target,
        "arch": entry.arch,
        "inputs": [str(array) for array in entry.inputs],
        "outputs": [str(array) for array in entry.outputs],
        "minimum_driver": dict(entry.minimum_driver),
        "digest": entry.digest,
        "bytes": bundle.stored_bytes(entry),
        "vmap": entry.vmap,
        "tune": None if entry.tuning is None else entry.tuning.to_json(),
    }
