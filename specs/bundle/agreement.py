"""Compare a bundle with a lock file: the artifacts in it must be those of the lock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pallasc.specs.bundle.audit import Finding
from pallasc.specs.bundle.manifest import Entry
from pallasc.specs.lock import Lock


def compare_with_lock(entries: Iterable[Entry], lock: Lock) -> list[Finding]:
    """Return where entries and lock do not agree.

    What the lock has and the entries lack is a note: a bundle need not hold everything. All else is
    an error. Digests are of the artifacts as they were compiled, before anything was left out.
    """
    return sorted(
        _compare(list(entries), lock), key=lambda finding: (finding.severity, finding.subject)
    )


def _compare(entries: list[Entry], lock: Lock) -> Iterator[Finding]:
    for entry in entries:
        locked = lock.variants.get(entry.id)
        if locked is None:
            yield Finding("error", "lock", entry.id, "the lock file does not name it")
        elif locked.artifact != entry.digest:
            text = f"the lock file has artifact {locked.artifact[:12]}, the bundle "
            yield Finding("error", "lock", entry.id, text + entry.digest[:12])
    for name in lock.variants.keys() - {entry.id for entry in entries}:
        yield Finding("note", "lock", name, "the bundle lacks it")
