"""Sessions: protect the entries that a build uses from eviction, and count uses.

A lease is a file `leases/` token "-" random that a session creates before it uses anything and
removes at its end. It holds every record that was used or published since then: the records whose
modification time is not before the lease's own, because using a record sets its time by the same
clock. A record of another user, whose time cannot be set, is named in the lease instead, one key
per line. A pack with a held record is held as a whole. The lease of a dead process holds nothing.

Hits, misses, and compilations are counted in memory. At its end, a session appends one line with
its counts to `stat/uses`. The counts of a killed build are lost, and so is a line that is appended
while the file is being shortened; they are only for statistics.

    uses = { "[" since "," hits "," misses "," made "," saved_s "," spent_s "]" LF }
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
from msgspec import Struct

from pallasc.cache import files, format
from pallasc.cache.folders import Folders
from pallasc.cache.manifests import Seconds
from pallasc.cache.store import Store

if TYPE_CHECKING:
    from pallasc.cache.packs import StorePacks

LEASES, USES = "leases", "stat/uses"
_APPEND = os.O_WRONLY | os.O_APPEND
_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
_SHORTEN_BYTES = 2**17
"""A longer list of counts, about a thousand builds, is replaced by its sums."""


class Totals(Struct, array_like=True, forbid_unknown_fields=True):
    """Counts of the uses of a store.

    Attributes:
        since: time of the first use, in seconds since the epoch; 0 before any.
        hits, misses, made: number of hits, of misses, and of compiled artifacts.
        saved_s: compile time of the hits, as far as known.
        spent_s: time spent compiling.
    """

    since: Seconds = 0.0
    hits: _Count = 0
    misses: _Count = 0
    made: _Count = 0
    saved_s: Seconds = 0.0
    spent_s: Seconds = 0.0

    def add(self, other: Totals) -> None:
        """Add other counts."""
        self.since = min(self.since or other.since, other.since or self.since)
        self.hits += other.hits
        self.misses += other.misses
        self.made += other.made
        self.saved_s += other.saved_s
        self.spent_s += other.spent_s


class Session(contextlib.AbstractContextManager["Session"]):
    """A build's use of a store: a context manager that holds and counts used artifacts.

    Disk errors are not raised. At its end the counts are published and the lease is released.

    Args:
        store: the store.
        now_s: the clock.
    """

    def __init__(self, store: Store, *, now_s: Callable[[], float] = time.time) -> None:
        self._store, self._now_s = store, now_s
        self._totals = Totals()
        self._lease = ""
        self._packed: StorePacks | None = None
        self._touched: set[str] = set()

    def __exit__(self, *error: object) -> None:
        self.close()

    def hit(self, action_key: str, *, seconds: float = 0.0) -> None:
        """Count an artifact that was found; it is held until the session ends.

        Args:
            action_key: its action key.
            seconds: its compile time, if known.
        """
        self._hold(format.check_name(action_key))
        totals = self._counts()
        totals.hits += 1
        totals.saved_s += seconds

    def miss(self) -> None:
        """Count a miss."""
        self._counts().misses += 1

    def made(self, action_key: str, *, seconds: float) -> None:
        """Count an artifact that was compiled and published; it is held until the session ends."""
        self._hold(format.check_name(action_key))
        totals = self._counts()
        totals.made += 1
        totals.spent_s += seconds

    def close(self) -> None:
        """Publish the counts and release the lease."""
        totals, self._totals = self._totals, Totals()
        folders = self._store.folders
        if totals.since:
            with contextlib.suppress(OSError):
                files.append(folders, USES, _line(totals))
        lease, self._lease = self._lease, ""
        if lease:
            with contextlib.suppress(OSError):
                folders.unlink(lease)

    def _counts(self) -> Totals:
        """Return the counts to add to; the first call notes the time."""
        self._totals.since = self._totals.since or self._now_s()
        return self._totals

    def _hold(self, key: str) -> None:
        folders = self._store.folders
        if not self._lease:
            self._packed = self._store.packed  # later packs are newer than the lease
            with contextlib.suppress(OSError):
                place = files.temporary_place(LEASES)
                os.close(files.open_new(folders, place, _APPEND | os.O_EXCL))
                self._lease = place
        packed = self._packed
        try:
            if packed is None or not packed.touch(format.ARTIFACTS, key, self._touched):
                folders.touch(format.relative_path(format.ARTIFACTS, key))
        except FileNotFoundError:
            return
        except OSError:
            if self._lease:
                with contextlib.suppress(OSError):
                    files.append(folders, self._lease, f"{key}\n")


class Held(NamedTuple):
    """Files that running builds hold: named keys, and all files used at `since_ns` or later."""

    keys: frozenset[str] = frozenset()
    since_ns: int | None = None

    def holds(self, keys: frozenset[str], last_use_ns: int) -> bool:
        """Return True if a record, or a pack of records, must stay."""
        return not self.keys.isdisjoint(keys) or self.is_recent(last_use_ns)

    def is_recent(self, time_ns: int) -> bool:
        """Return True if a running build may have used or created a file with this time."""
        return self.since_ns is not None and time_ns >= self.since_ns


def held_by_leases(folders: Folders, *, now_ns: int) -> Held:
    """Return the files that the leases of all living processes hold.

    Raises:
        OSError: a lease cannot be listed or read.
    """
    keys: set[str] = set()
    times_ns: list[int] = []
    for name in folders.names(LEASES):
        place = f"{LEASES}/{name}"
        with contextlib.suppress(FileNotFoundError):  # its build is over
            time_ns = folders.status(place).st_mtime_ns
            if not files.is_over(name, time_ns, now_ns=now_ns):
                times_ns.append(time_ns)
                file = files.read(folders, place, limit_bytes=format.MAX_RECORD_BYTES)
                lines = (file.data if file else b"").decode("ascii", "replace").splitlines()
                keys.update(line for line in lines if format.is_name(line))
    return Held(frozenset(keys), min(times_ns, default=None))


def read_totals(store: Store) -> Totals:
    """Return the counts of all builds since the store was created or cleared.

    Damaged lines do not count. If the file cannot be read, all counts are 0.
    """
    totals = Totals()
    for line in files.read_small(store.folders, USES).splitlines():
        with contextlib.suppress(msgspec.DecodeError, ValueError):
            totals.add(msgspec.json.decode(line, type=Totals))
    return totals


def shorten(store: Store) -> None:
    """Replace a long list of counts by its sums.

    Raises:
        OSError: the disk fails.
    """
    with contextlib.suppress(FileNotFoundError):
        if store.folders.status(USES).st_size > _SHORTEN_BYTES:
            line = _line(read_totals(store)).encode("ascii")
            with files.temporary(store.folders, line) as place:
                store.folders.rename(place, USES)


def _line(totals: Totals) -> str:
    return f"{msgspec.json.encode(totals).decode()}\n"
