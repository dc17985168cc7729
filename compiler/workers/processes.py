"""What `/proc` says of processes: who started whom, and how much memory they hold."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping

_HELD = re.compile(rb"^(?:RssAnon|RssShmem|VmSwap):\s+(\d+)", re.MULTILINE)
_RESIDENT = re.compile(rb"^VmRSS:\s+(\d+)", re.MULTILINE)
_PROPORTIONAL = re.compile(rb"^(?:Pss_Anon|Pss_Shmem|SwapPss):\s+(\d+)", re.MULTILINE)


def parents() -> dict[int, int]:
    """Return the parent of every process that can be seen."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            # The name in parentheses may contain anything, so count from its end.
            fields = _read(f"/proc/{name}/stat").rpartition(b")")[2].split(maxsplit=2)
            if len(fields) > 1:
                found[int(name)] = int(fields[1])
    return found


def descendants(process: int, parents: Mapping[int, int]) -> list[int]:
    """Return what a process has started, and what that has started, elders first."""
    children: dict[int, list[int]] = {}
    for child, parent in parents.items():
        children.setdefault(parent, []).append(child)
    found = [process]
    for one in found:
        found += children.get(one, [])
    return found[1:]


def held_bytes(process: int) -> int:
    """Return the memory that nobody else can have meanwhile, 0 of a process that is gone.

    Pages of files do not count: the kernel drops them when it needs room, and processes share them.
    """
    status = _read(f"/proc/{process}/status")
    return 1024 * sum(map(int, _HELD.findall(status) or _RESIDENT.findall(status)))


def held_together_bytes(processes: Iterable[int]) -> int:
    """Return what processes hold, each page that several share counted once; slower."""
    total = 0
    for process in processes:
        parts = _PROPORTIONAL.findall(_read(f"/proc/{process}/smaps_rollup"))
        total += 1024 * sum(map(int, parts)) if parts else held_bytes(process)
    return total


def _read(path: str) -> bytes:
    """Return what a file of `/proc` says, b"" where the process has ended."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, 1 << 14)
        finally:
            os.close(descriptor)
    return b""
