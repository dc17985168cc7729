"""Leases: what a running build holds, so that no eviction removes it.

A lease is a file `leases/` token "-" random that a process makes before it uses anything and
removes at its end. It holds every record used or published since then: those whose modification
time is not before the lease's own (a use sets it, on the same clock). A record of another user,
whose time cannot be set, is named in the lease instead, a key a line. A pack with a record that is
held is held whole. The lease of a dead process holds nothing.
"""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple, Protocol

from pallasc.cache import files, format, process
from pallasc.cache.folders import Folders
from pallasc.errors import CorruptError

FOREIGN_S = 86_400.0
"""How long a file of a process on another machine counts as in use: a day."""
FOLDER = "leases"
_APPEND = os.O_WRONLY | os.O_APPEND


class Packs(Protocol):
    """The packs of a store, as far as they are held."""

    def touch(self, area: str, name: str, touched: set[str]) -> bool:
        """Note that a pack which holds a file was used now; tell whether there is one."""


class Held(NamedTuple):
    """What must stay: named keys, and all that was used at `since_ns` or later."""

    keys: frozenset[str] = frozenset()
    since_ns: int | None = None

    def holds(self, key: str, last_use_ns: int) -> bool:
        """Tell whether a record must stay."""
        return key in self.keys or self.is_recent(last_use_ns)

    def holds_any(self, keys: frozenset[str], last_use_ns: int) -> bool:
        """Tell whether a pack of these records must stay."""
        return not self.keys.isdisjoint(keys) or self.is_recent(last_use_ns)

    def is_recent(self, time_ns: int) -> bool:
        """Tell whether a running build may have used or made a file of this time."""
        return self.since_ns is not None and time_ns >= self.since_ns

    def __or__(self, other: Held) -> Held:
        times = [time for time in (self.since_ns, other.since_ns) if time is not None]
        return Held(self.keys | other.keys, min(times, default=None))


class Lease:
    """The lease of this process in one store, made at its first use.

    Faults of the disk are not raised: the build goes on without a lease.
    """

    def __init__(self, folders: Folders) -> None:
        self._folders = folders
        self._place = ""
        self._touched: set[str] = set()

    def use(self, key: str, packs: Packs | None = None) -> None:
        """Hold the record of an action key, and note that it was used now.

        Args:
            key: the action key.
            packs: those of the store; one that holds the record is held with all that is in it.
        """
        with contextlib.suppress(OSError):
            self._take()
        try:
            if packs is None or not packs.touch(format.ARTIFACTS, key, self._touched):
                self._folders.touch(format.relative_path(format.ARTIFACTS, key))
        except FileNotFoundError:
            return
        except OSError:
            with contextlib.suppress(OSError):
                self._name(key)

    def release(self) -> None:
        """Hold nothing any more."""
        if self._place:
            with contextlib.suppress(OSError):
                self._folders.unlink(self._place)
            self._place = ""

    def _take(self) -> None:
        if self._place:
            return
        place = files.temporary_place(FOLDER)
        os.close(files.open_new(self._folders, place, _APPEND | os.O_EXCL))
        self._place = place

    def _name(self, key: str) -> None:
        if not self._place:
            return
        descriptor = files.open_new(self._folders, self._place, _APPEND)
        try:
            os.write(descriptor, f"{key}\n".encode("ascii"))
        finally:
            os.close(descriptor)


def held_by_leases(folders: Folders, *, now_ns: int) -> Held:
    """Return what the leases of all living processes hold together.

    Raises:
        OSError: if the leases cannot be listed, or a lease cannot be read, so that it is not known
            what is held.
    """
    held = Held()
    for name in folders.names(FOLDER):
        with contextlib.suppress(FileNotFoundError):  # its build is over
            status = folders.status(f"{FOLDER}/{name}")
            if not is_over(name, status.st_mtime_ns, now_ns=now_ns):
                held |= Held(_named(folders, name), status.st_mtime_ns)
    return held


def is_over(name: str, time_ns: int, *, now_ns: int) -> bool:
    """Tell whether a file `token-random` has outlived its process.

    Args:
        name: the file's name.
        time_ns: its modification time, which decides where the process cannot be seen from here.
        now_ns: the time now.
    """
    alive = process.is_alive(name.rpartition("-")[0])
    if alive is None:
        return time_ns + FOREIGN_S * 1e9 < now_ns
    return not alive


def _named(folders: Folders, name: str) -> frozenset[str]:
    file = files.read(folders, f"{FOLDER}/{name}", limit_bytes=format.MAX_RECORD_BYTES)
    keys = set()
    for line in (b"" if file is None else file.data).splitlines():
        with contextlib.suppress(CorruptError, UnicodeDecodeError):
            keys.add(format.check_name(line.decode("ascii")))
    return frozenset(keys)
