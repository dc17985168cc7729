"""What a pruning or clearing of the store did, in lines for a person."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pallasc.cli.terminal.output import count

if TYPE_CHECKING:
    from pallasc.cache.upkeep.prune import Pruned


def pruned_lines(pruned: Pruned) -> Iterator[str]:
    """Give a line for each artifact that went, for each reason to keep some, and the sums."""
    would = "would remove" if pruned.dry_run else "removed"
    for eviction in pruned.evictions:
        names = ", ".join(pruned.names.get(eviction.entry.key, [])) or eviction.entry.key[:12]
        yield f"{would} {names}: {eviction.reason}, {eviction.bytes:,} bytes"
    yield from _kept_lines(pruned)
    yield (
        f"{would} {count(pruned.records, 'record')}, {count(pruned.blobs, 'blob')}, "
        f"{count(pruned.manifests, 'manifest')}: "
        f"{pruned.freed_bytes:,} of {pruned.plan.bytes_before:,} bytes"
    )
    yield from _excess_lines(pruned)


def _kept_lines(pruned: Pruned) -> Iterator[str]:
    reasons = {
        "pinned": "pinned",
        "in use": "held by a running build",
        "young": f"made less than {pruned.limits.grace_s:.0f} s ago",
    }
    would = "would keep" if pruned.dry_run else "kept"
    for kept in pruned.plan.kept:
        what = count(kept.records, "artifact") if kept.records else count(kept.files, "file")
        yield f"{would} {what}: {reasons[kept.reason]}, {kept.bytes:,} bytes"
    if not pruned.plan.complete:
        yield f"{would} everything: not all of the store could be looked at"


def _excess_lines(pruned: Pruned) -> Iterator[str]:
    limit = pruned.limits.max_bytes
    if limit and pruned.excess_bytes:  # clearing has a limit of nothing, which is no news
        still = "would still be" if pruned.dry_run else "is still"
        yield f"the store {still} {pruned.excess_bytes:,} bytes over its limit of {limit:,} bytes"
