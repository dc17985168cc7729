"""The variants of bundles, as `pallasc list` and `pallasc bundle show` print them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pallasc.cli.output.text import echo

if TYPE_CHECKING:
    from pallasc.specs.bundle.bundle import Bundle
    from pallasc.specs.bundle.manifest import Entry


def list_bundles(
    files: Sequence[Path], *, targets: Sequence[str], expression: str | None, as_json: bool
) -> None:
    """Print the variants of bundles, sorted by kernel, target and parameters."""
    from pallasc.cli.bundle.options import selected_entries
    from pallasc.cli.output.text import json_text, table
    from pallasc.specs.bundle.bundle import open_bundle

    listed: list[dict[str, object]] = []
    rows: list[list[str]] = []
    for file in files:
        with open_bundle(file) as bundle:
            entries = selected_entries(bundle, targets=targets, expression=expression)
            for entry in sorted(entries, key=_order):
                listed.append({"bundle": str(file), **entry_json(bundle, entry)})
                size = f"{bundle.stored_bytes(entry):,}"
                rows.append([entry.id, entry.arch, size, entry.digest[:12], _used_for(entry)])
    if as_json:
        echo(json_text({"variants": listed}))
        return
    columns = ["VARIANT", "ARCH", "BYTES", "DIGEST", "USED FOR"]
    if not any(row[-1] for row in rows):  # no kernel is tuned
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    echo(table(columns, rows, right={"BYTES"}))


def _used_for(entry: Entry) -> str:
    """Return where a variant is used: how many rows choose it, and whether it is the default."""
    from pallasc.cli.output.text import count

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
