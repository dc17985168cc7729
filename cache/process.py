"""Who a process is, so that what it left behind can be told from what it still uses.

A token names machine, process and the moment the process began:

    token = host "-" pid "-" start
    host  = 12 hexadecimal digits: SHA-256 of the kernel's boot id and the PID namespace
    start = the process's start time in clock ticks since boot (proc(5), field 22 of `stat`)

A process id alone is used again, and means somebody else in another container or after a boot.
"""

from __future__ import annotations

import functools
import os
import re

from pallasc.cache.format import sha256

_TOKEN = re.compile(r"([0-9a-z]{7,12})-([0-9]{1,20})-([0-9]{1,20})", re.ASCII)
_UNKNOWN = "unknown"
_DEAD_STATES = {"Z", "X", "x"}


def token() -> str:
    """Return the token of this process."""
    return _token(os.getpid())


@functools.lru_cache(maxsize=2)
def _token(pid: int) -> str:
    return f"{host()}-{pid}-{_start(pid) or 0}"


@functools.lru_cache(maxsize=1)
def host() -> str:
    """Return what this machine, since its boot, and this container have in common."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return sha256(f"{boot} {os.readlink('/proc/self/ns/pid')}".encode())[:12]
    except (OSError, ValueError):
        return _UNKNOWN


def is_alive(token: str) -> bool | None:
    """Tell whether the process of a token lives; None where that cannot be known from here."""
    match = _TOKEN.fullmatch(token)
    if match is None or match[1] != host() or match[1] == _UNKNOWN:
        return None
    return _start(int(match[2])) == int(match[3])


def _start(pid: int) -> int | None:
    """Return when a process began, None if there is none, or only what its parent has to reap."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The name in parentheses may contain anything, so count from its end.
            fields = file.read().rpartition(")")[2].split()
        return None if fields[0] in _DEAD_STATES else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
