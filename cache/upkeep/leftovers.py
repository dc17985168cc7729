"""Removes what nobody needs any more: files of dead processes, and old files of the quarantine."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from dataclasses import asdict, dataclass

from pallasc.cache import format, single_flight
from pallasc.cache.folders import Folders
from pallasc.cache.leases import is_over
from pallasc.cache.store import Store
from pallasc.cache.upkeep.limits import Limits
from pallasc.cache.uses import MAX_AGE_S


@dataclass(frozen=True, slots=True)
class Leftovers:
    """How many files were cleared away, or would be, and their bytes."""

    temporaries: int = 0
    leases: int = 0
    locks: int = 0
    quarantined: int = 0
    uses: int = 0
    bytes: int = 0

    def to_json(self) -> dict[str, int]:
        """Return them as JSON."""
        return asdict(self)


def clear_leftovers(
    store: Store, limits: Limits, *, now_ns: int, dry_run: bool = False
) -> Leftovers:
    """Remove what dead processes left, and old files of the quarantine; faults are ignored.

    Args:
        store: the store.
        limits: says how long corrupt files are kept.
        now_ns: the time now.
        dry_run: only count.
    """
    quarantined_ns = now_ns - round(limits.quarantine_s * 1e9)
    uses_ns = now_ns - round(MAX_AGE_S * 1e9)

    def is_dead(name: str, status: os.stat_result) -> bool:
        return is_over(name, status.st_mtime_ns, now_ns=now_ns)

    def is_without_pack(name: str, status: os.stat_result) -> bool:
        path = store.folders.path(f"{format.PACKS}/{name.removesuffix(format.GONE)}")
        return name.endswith(format.GONE) and not os.path.lexists(path)

    sweep = _Sweep(store.folders, dry_run)
    counts = {
        "temporaries": sweep.folder("tmp", is_dead) + sweep.folder(format.PACKS, is_without_pack),
        "leases": sweep.folder("leases", is_dead),
        "locks": sweep.locks(),
        # Being put away changes the change time; the modification time is from before.
        "quarantined": sweep.folder("quarantine", lambda _, at: at.st_ctime_ns <= quarantined_ns),
        "uses": sweep.folder("uses", lambda _, at: at.st_mtime_ns <= uses_ns),
    }
    return Leftovers(**counts, bytes=sweep.bytes)


class _Sweep:
    """Goes through the folders of a store and removes, or only counts."""

    def __init__(self, folders: Folders, dry_run: bool) -> None:
        self._folders, self._dry_run = folders, dry_run
        self.bytes = 0

    def folder(self, folder: str, is_over: Callable[[str, os.stat_result], bool]) -> int:
        """Remove what is over; return how many."""
        count = 0
        for name in self._names(folder):
            with contextlib.suppress(OSError):
                place = f"{folder}/{name}"
                status = self._folders.status(place)
                if is_over(name, status):
                    self._remove(place, status)
                    count += 1
        return count

    def locks(self) -> int:
        """Remove lock files that nobody holds; return how many."""
        count = 0
        then = single_flight.is_free if self._dry_run else single_flight.remove_if_free
        for name in self._names(single_flight.FOLDER):
            with contextlib.suppress(OSError):
                count += then(self._folders, f"{single_flight.FOLDER}/{name}")
        return count

    def _names(self, folder: str) -> list[str]:
        with contextlib.suppress(OSError):
            return self._folders.names(folder)
        return []

    def _remove(self, place: str, status: os.stat_result) -> None:
        if not self._dry_run and stat.S_ISDIR(status.st_mode):
            self._folders.remove_tree(place)
        elif not self._dry_run:
            self._folders.unlink(place)
        self.bytes += status.st_size
