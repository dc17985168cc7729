"""What pruning had to leave in place, and why."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pallasc.cache.files import Identity

PINNED, IN_USE, YOUNG = "pinned", "in use", "young"


@dataclass(frozen=True, slots=True)
class Kept:
    """What pruning had to leave in place.

    Attributes:
        reason: "pinned" · "in use": a running build holds it or may have made it · "young": no
            record needs it, but it has not been there for the grace period.
        records: how many artifacts.
        files: how many files: those records, blobs and manifests.
        bytes: the size of those files; each counts for one reason only.
    """

    reason: str
    records: int = 0
    files: int = 0
    bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


class Tally:
    """Counts what stays, each file once."""

    def __init__(self) -> None:
        self._sums = {reason: [0, 0, 0] for reason in (PINNED, IN_USE, YOUNG)}
        self._seen: set[str] = set()

    @property
    def kept(self) -> tuple[Kept, ...]:
        """Return the sums of the reasons that something was kept for."""
        return tuple(Kept(reason, *sums) for reason, sums in self._sums.items() if sums[1])

    def add_record(self, reason: str, identity: Identity) -> None:
        """Count a record."""
        sums = self._sums[reason]
        self._sums[reason] = [sums[0] + 1, sums[1] + 1, sums[2] + identity[2]]

    def add(self, reason: str, name: str, identity: Identity | None) -> None:
        """Count a blob or manifest unless it was counted before, or is not there."""
        if identity is not None and name not in self._seen:
            self._seen.add(name)
            sums = self._sums[reason]
            self._sums[reason] = [sums[0], sums[1] + 1, sums[2] + identity[2]]
