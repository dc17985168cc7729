"""What a build or command did with a remote store: numbers, refusals, and why it stopped."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from pallasc.cache.sizes import size

_MOST_REASONS = 20


@dataclass(slots=True)
class RemoteStats:
    """What was done; several threads add to it through `add` and `refuse`.

    Attributes:
        url: of the remote, without credentials.
        requests: that were made, the repeated ones too.
        hits: variants that came from there.
        offered: variants that were written there.
        bytes_read: of bodies that arrived.
        bytes_written: of bodies that were sent.
        waited_s: how long the build stood still for it.
        lost_s: how much of that brought nothing, see `cache/remote/guard.py`.
        saved_s: compile time of the hits, as it was recorded.
        refused: entries and objects that were not used, with the reason; the first 20.
        refusals: how many there were.
        conflicts: action keys under which the remote has another record: not deterministic.
        tripped: why it was not asked any more, "" if it was.
    """

    url: str = ""
    requests: int = 0
    hits: int = 0
    offered: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    waited_s: float = 0.0
    lost_s: float = 0.0
    saved_s: float = 0.0
    refused: list[str] = field(default_factory=list)
    refusals: int = 0
    conflicts: list[str] = field(default_factory=list)
    tripped: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, *, requests: int = 0, bytes_read: int = 0, bytes_written: int = 0) -> None:
        """Count requests and bytes."""
        with self._lock:
            self.requests += requests
            self.bytes_read += bytes_read
            self.bytes_written += bytes_written

    def refuse(self, reason: str) -> int:
        """Count something that was not used; return how often that happened."""
        with self._lock:
            self.refusals += 1
            if len(self.refused) < _MOST_REASONS:
                self.refused.append(reason)
            return self.refusals

    @property
    def moved_bytes(self) -> int:
        """Return the bytes that went either way."""
        return self.bytes_read + self.bytes_written

    def to_json(self) -> dict[str, object]:
        """Return what `--json` has under `remote`."""
        return {
            "url": self.url,
            "requests": self.requests,
            "hits": self.hits,
            "offered": self.offered,
            "bytes_read": self.bytes_read,
            "bytes_written": self.bytes_written,
            "waited_s": round(self.waited_s, 3),
            "lost_s": round(self.lost_s, 3),
            "saved_s": round(self.saved_s, 3),
            "refusals": self.refusals,
            "refused": list(self.refused),
            "conflicts": list(self.conflicts),
            "tripped": self.tripped,
        }

    def __str__(self) -> str:
        """Return one line for the summary of a build."""
        parts = [f"{self.hits:,} {'hit' if self.hits == 1 else 'hits'}"]
        if self.offered:
            parts.append(f"{self.offered:,} {'offered' if self.tripped else 'written'}")
        parts.append(f"{size(self.bytes_read)} read")
        if self.bytes_written:
            parts.append(f"{size(self.bytes_written)} sent")
        parts.append(f"{self.requests:,} {'request' if self.requests == 1 else 'requests'}")
        parts.append(f"waited {self.waited_s:.1f} s")
        if self.saved_s:
            parts.append(f"{self.saved_s:.1f} s of compiling saved")
        if self.refusals:
            first = f" ({self.refused[0]})" if self.refused else ""
            parts.append(f"{self.refusals} refused{first}")
        if self.tripped:
            parts.append("given up")
        return f"remote {self.url}: {', '.join(parts)}"
