"""What `pallasc tune pick` decided, as text and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pallasc.cli.terminal.output import count, table
from pallasc.specs.canonical import canonical_text
from pallasc.specs.templates import Scalar
from pallasc.specs.tuning import Row, Tune, key_text, use_text

if TYPE_CHECKING:
    from pallasc.specs.tuned.merge import RowChange
    from pallasc.specs.tuned.pick import KernelRows

_MARKS = {"added": "+", "changed": "~", "measured": "=", "dropped": "-"}
_MOST_NAMED = 5
_HEAD = ("", "GPU", "KEY", "BEFORE", "AFTER", "µs", "SLOWER")


def decided_text(decided: KernelRows, tune: Tune, within: float) -> str:
    """Return what was picked of a kernel, and a table of the rows that have changed."""
    picked = decided.picked
    name = f"{picked.kernel.name} on {picked.kernel.gpu}"
    if not picked.served:
        return f"{name}: no key has results to the end; its rows stay as they are"
    lines = [
        f"{name}: {len(picked.uses)} of {count(picked.configurations, 'configuration')} and "
        f"{picked.artifacts} of {count(picked.measured_artifacts, 'artifact')} for "
        f"{count(len(picked.served), 'key')}; slower than the best by "
        f"{picked.mean_loss_percent:.2f} % in the geometric mean, {picked.worst_loss_percent:.2f} "
        "% at most"
    ]
    losses = {canonical_text(list(own.key.key)): own.option.loss for own in picked.served}
    rows = [_cells(change, tune, losses) for change in decided.changes if change.kind != "same"]
    if rows:
        lines.append(table(_HEAD, rows, right=("µs", "SLOWER")))
    if same := sum(change.kind == "same" for change in decided.changes):
        lines.append(f"{count(same, 'row')} unchanged")
    return "\n".join(lines)


def _cells(change: RowChange, tune: Tune, losses: Mapping[str, float]) -> list[str]:
    row = change.row
    before = use_text(change.before.use) if change.before is not None else ""
    is_gone = change.kind == "dropped"
    measured = None if is_gone else row.measured
    loss = losses.get(canonical_text(list(row.key))) if measured is not None else None
    return [
        _MARKS[change.kind],
        row.gpu,
        key_text(tune.by, row.key),
        before,
        "" if is_gone else use_text(row.use),
        "" if measured is None else f"{measured.us:.2f}",
        "" if loss is None else _percent(loss),
    ]


def remarks(decided: KernelRows, tune: Tune, within: float) -> Iterator[str]:
    """Yield what a user has to know beside the rows, a line each."""
    picked, name = decided.picked, decided.picked.kernel.name
    if picked.beyond:
        keys = _keys(tune, [own.key.key for own in picked.beyond])
        yield f"{name}: not known to be within {within:g} % of the best: {keys}"
    if picked.unserved:
        keys = _keys(tune, [key.key for key in picked.unserved])
        yield f"{name}: no configuration that is used was measured for {keys}; no row is written"
    if picked.kernel.unfinished:
        keys = _keys(tune, picked.kernel.unfinished)
        yield f"{name}: not measured to the end: {keys}; go on with pallasc tune run"
    if picked.kernel.without:
        yield f"{name}: no point has valid times for {_keys(tune, picked.kernel.without)}"
    if decided.unknown:
        yield (
            f"{name}: {count(decided.unknown, 'point')} that the spec does not have any more did "
            "not count"
        )
    if not picked.is_smallest and not picked.unserved:
        yield f"{name}: a smaller set may exist, the search for it was ended"
    padded = [own.key.key for own in picked.served if own.padded]
    if padded:
        yield (
            f"{name}: calls of {_keys(tune, padded)} would be within {within:g} % when padded to "
            "their bucket, not counting the copies; without these points in the matrix "
            f"{count(len(padded), 'artifact')} fewer would do"
        )
    if picked.default is not None and tune.default is None:
        yield (
            f"{name}: the spec has no default, and of one configuration for all keys "
            f"{use_text(picked.default)} loses least"
        )


def decided_json(decided: KernelRows) -> dict[str, object]:
    """Return what `--json` prints of a kernel."""
    picked = decided.picked
    return {
        "kernel": picked.kernel.name,
        "gpu": picked.kernel.gpu,
        "keys": len(picked.served),
        "configurations": {
            "measured": picked.configurations,
            "used": len(picked.uses),
            "smallest": picked.is_smallest,
        },
        "artifacts": {"measured": picked.measured_artifacts, "used": picked.artifacts},
        "loss_percent": {
            "mean": round(picked.mean_loss_percent, 3),
            "worst": round(picked.worst_loss_percent, 3),
        },
        "uses": picked.uses,
        "default": picked.default,
        "rows": [_row_json(change) for change in decided.changes],
        "beyond": [list(own.key.key) for own in picked.beyond],
        "padded": [list(own.key.key) for own in picked.served if own.padded],
        "unfinished": [list(key) for key in picked.kernel.unfinished],
        "without": [
            *map(list, picked.kernel.without),
            *(list(key.key) for key in picked.unserved),
        ],
    }


def _row_json(change: RowChange) -> dict[str, object]:
    return {
        "change": change.kind,
        "gpu": change.row.gpu,
        "key": list(change.row.key),
        "before": _use_json(change.before),
        "after": None if change.kind == "dropped" else _use_json(change.row),
    }


def _use_json(row: Row | None) -> dict[str, object] | None:
    if row is None:
        return None
    us = None if row.measured is None else row.measured.us
    return {"use": row.use, "artifact": row.artifact, "us": us}


def _keys(tune: Tune, keys: Sequence[tuple[Scalar, ...]]) -> str:
    named = "; ".join(key_text(tune.by, key) or "all calls" for key in keys[:_MOST_NAMED])
    more = len(keys) - _MOST_NAMED
    return f"{named}; and {more} more" if more > 0 else named


def _percent(loss: float) -> str:
    return f"{100 * math.expm1(loss):.2f} %"
