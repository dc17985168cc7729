"""Wait for files to change, by asking for their times often.

Asking for some dozen files takes a tenth of a millisecond, and is right where events are not:
inotify does not see what another machine writes to NFS, and loses a file that an editor replaces by
renaming another over it. `watchdog` and `watchfiles` poll, too, where they get no events.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable
from pathlib import Path

_INTERVAL_S = 0.05
_GONE_S = 0.5
"""How long a file that vanished may take to come back: some editors remove it before they write."""
_RESTLESS_S = 5.0
"""After this time a build begins although files still change."""
_GRAIN_NS = 20_000_000
"""The resolution of file times, at most, on the file systems of Linux."""
_SOURCES = (".py", ".yaml", ".yml", ".toml")

State = tuple[int, int, int, int] | tuple[str, ...] | None
"""Of a file inode, size, times of modification and change in ns; of a folder the names of what may
be sources; None where there is nothing."""

_UNKNOWN: State = ("",)
"""Equal to the state of nothing."""


class WatchedFiles:
    """Files and folders, each with its state when it was looked at last.

    Args:
        pause: waits for some seconds.
        clock: gives the time, in seconds.
    """

    def __init__(
        self,
        *,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pause, self._clock = pause, clock
        self._states: dict[Path, State] = {}

    def __len__(self) -> int:
        return sum(path.is_file() for path in self._states)

    def follow(self, paths: Iterable[Path], *, read_ns: int) -> None:
        """Watch more files and folders, which were read after the time `read_ns` of the clock.

        What was written since then may have been read before that, so it counts as changed.
        """
        for path in paths:
            if path not in self._states:
                state = _state(path)
                is_new = _written_ns(path) >= read_ns - _GRAIN_NS
                self._states[path] = _UNKNOWN if is_new else state

    def wait(self) -> list[Path]:
        """Wait until something has changed and nothing changes any more; return what did."""
        while (now := self._look()) == self._states:
            self._pause(_INTERVAL_S)
        began_s = self._clock()
        while True:
            self._pause(_INTERVAL_S)
            before, now = now, self._look()
            waited_s = self._clock() - began_s
            is_whole = waited_s >= _GONE_S or not self._gone(now)
            if (now == before and is_whole) or waited_s >= _RESTLESS_S:
                break
        changed = [path for path, state in now.items() if state != self._states[path]]
        self._states = now
        return changed

    def _look(self) -> dict[Path, State]:
        return {path: _state(path) for path in self._states}

    def _gone(self, now: dict[Path, State]) -> bool:
        return any(state is None and self._states[path] is not None for path, state in now.items())


def _state(path: Path) -> State:
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            return tuple(sorted(filter(_may_be_source, os.listdir(path))))
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _may_be_source(name: str) -> bool:
    return name.endswith(_SOURCES) and not name.startswith(".")


def _written_ns(path: Path) -> int:
    """Return when a file was written or replaced last, 0 for a folder and for nothing."""
    try:
        status = os.stat(path)
    except OSError:
        return 0
    return 0 if stat.S_ISDIR(status.st_mode) else max(status.st_mtime_ns, status.st_ctime_ns)
