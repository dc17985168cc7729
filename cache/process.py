"""Identifies processes, to tell files that a dead process left from files in use.

A token names machine, process and the moment the process began:

    token = host "-" pid "-" start
    host  = 12 hexadecimal digits: SHA-256 of the kernel's boot id and the PID namespace
    start = the process's start time in clock ticks since boot (proc(5), field 22 of `stat`)

A process id alone is reused, and means another process in another container or after a boot. Where
the kernel does not tell, host is "unknown" or start is 0, and the process never counts as dead.
"""

from __future__ import annotations

import os
import re

from pallasc.cache.format import sha256

_TOKEN = re.compile(r"([0-9a-z]{7,12})-([0-9]{1,20})-([0-9]{1,20})", re.ASCII)
_UNKNOWN = "unknown"
_DEAD_STATES = {"Z", "X", "x"}
_tokens: dict[int, str] = {}


def token() -> str:
    """Return the token of this process."""
    pid = os.getpid()
    made = _tokens.get(pid)
    if made is None:
        made = f"{host()}-{pid}-{_start(pid) or 0}"
        if not made.startswith(_UNKNOWN) and not made.endswith("-0"):
            _tokens.clear()  # a child made by fork has another
            _tokens[pid] = made
    return made


def host() -> str:
    """Return what identifies this machine since its boot, and this container."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return sha256(f"{boot} {os.readlink('/proc/self/ns/pid')}".encode())[:12]
    except (OSError, ValueError):
        return _UNKNOWN


def is_alive(token: str) -> bool | None:
    """Tell whether the process of a token is alive; None where that cannot be known from here."""
    match = _TOKEN.fullmatch(token)
    if match is None or match[1] != host() or match[1] == _UNKNOWN or match[3] == "0":
        return None
    start = _start(int(match[2]))
    return None if start is None else start == int(match[3])


def _start(pid: int) -> int | None:
    """Return when a process began, 0 if there is none that runs, None if that cannot be read."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The name in parentheses may contain anything, so count from its end.
            fields = file.read().rpartition(")")[2].split()
        return 0 if fields[0] in _DEAD_STATES else int(fields[19])
    except (FileNotFoundError, ProcessLookupError):
        return None if _exists(pid) else 0
    except (OSError, ValueError, IndexError):
        return None


def _exists(pid: int) -> bool:
    """Tell whether a process exists, even if /proc hides it, as with the option `hidepid`."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True
