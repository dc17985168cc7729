"""Leases: what a running build holds, which no eviction takes away.

A lease is a file `leases/` token "-" random that its process makes before it uses anything and
removes at its end. It holds every record used or published since: those whose modification time is
not before the lease's own (a use sets it, on the same clock). A record of another user whose time
cannot be set is named in the lease instead, one key a line. What a dead process left holds nothing.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from pallasc.cache import files, format, process
from pallasc.errors import CorruptError

FOREIGN_S = 86_400.0
"""How long something of a process on another machine counts as in use: one day."""
_APPEND = os.O_WRONLY | os.O_APPEND


@dataclass(frozen=True, slots=True)
class Held:
    """What must stay: named keys, and all that was used at `since_ns` or later."""

    keys: frozenset[str] = frozenset()
    since_ns: int | None = None

    def holds(self, key: str, last_use_ns: int) -> bool:
        """Tell whether a record must stay."""
        return key in self.keys or self.is_recent(last_use_ns)

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

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path: Path | None = None

    def use(self, key: str) -> None:
        """Hold the record of an action key, and note that it was used now."""
        with contextlib.suppress(OSError):
            self._take()
        place = f"{self._folder}/{format.relative_path(format.ARTIFACTS, key)}"
        try:
            os.utime(place)
        except FileNotFoundError:
            return
        except OSError:
            with contextlib.suppress(OSError):
                self._name(key)

    def release(self) -> None:
        """Hold nothing any more."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            self._path = None

    def _take(self) -> None:
        if self._path is not None:
            return
        path = self._folder / "leases" / f"{process.token()}-{os.urandom(8).hex()}"
        files.make_folder(path.parent)
        os.close(files.open_new(path, _APPEND | os.O_EXCL))
        self._path = path

    def _name(self, key: str) -> None:
        if self._path is None:
            return
        descriptor = files.open_new(self._path, _APPEND)
        try:
            os.write(descriptor, f"{key}\n".encode("ascii"))
        finally:
            os.close(descriptor)


def held_by_leases(folder: Path, *, now_ns: int) -> Held:
    """Return what the leases of all living processes hold together.

    Raises:
        OSError: if the leases cannot be listed, or one of them cannot be read: what it holds is not
            known then.
    """
    held = Held()
    for path in list_folder(folder / "leases"):
        with contextlib.suppress(FileNotFoundError):  # its build is over
            status = os.lstat(path)
            if not is_over(path.name, status.st_mtime_ns, now_ns=now_ns):
                held |= Held(_named(path), status.st_mtime_ns)
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


def list_folder(folder: Path) -> list[Path]:
    """Return what lies in a folder of the store, sorted; nothing where there is no such folder.

    Raises:
        OSError: if it is there and cannot be read.
    """
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def _named(path: Path) -> frozenset[str]:
    found = files.read(str(path), limit_bytes=format.MAX_RECORD_BYTES)
    keys = set()
    for line in (b"" if found is None else found.data).splitlines():
        with contextlib.suppress(CorruptError, UnicodeDecodeError):
            keys.add(format.check_name(line.decode("ascii")))
    return frozenset(keys)
