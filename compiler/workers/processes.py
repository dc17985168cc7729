"""Processes in `/proc`: who started whom, and how much memory they hold."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Mapping

_HELD = re.compile(rb"^(?:RssAnon|RssShmem|VmSwap):\s+(\d+)", re.MULTILINE)
_RESIDENT = re.compile(rb"^VmRSS:\s+(\d+)", re.MULTILINE)
_PROPORTIONAL = re.compile(rb"^(?:Pss_Anon|Pss_Shmem|SwapPss):\s+(\d+)", re.MULTILINE)
_recent: tuple[float, Mapping[int, int]] = (float("-inf"), {})


def parents() -> dict[int, int]:
    """Return the parent of every visible process."""
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            # The name in parentheses may contain anything, so count from its end.
            fields = _read(f"/proc/{name}/stat").rpartition(b")")[2].split(maxsplit=2)
            if len(fields) > 1:
                table[int(name)] = int(fields[1])
    return table


def recent_parents(age_s: float) -> Mapping[int, int]:
    """Return `parents`, at most `age_s` old: the pools of one process share what they look at."""
    global _recent
    now_s = time.monotonic()
    if now_s > _recent[0] + age_s:
        _recent = (now_s, parents())
    return _recent[1]


def descendants(process: int, parents: Mapping[int, int]) -> list[int]:
    """Return all processes below a process, parents before their children."""
    children: dict[int, list[int]] = {}
    for child, parent in parents.items():
        children.setdefault(parent, []).append(child)
    tree = [process]
    for member in tree:
        tree += children.get(member, [])
    return tree[1:]


def held_bytes(process: int) -> int:
    """Return the memory that a process keeps from others, 0 if it has ended.

    Pages of files do not count: the kernel drops them under pressure, and processes share them.
    """
    status = _read(f"/proc/{process}/status")
    return 1024 * sum(map(int, _HELD.findall(status) or _RESIDENT.findall(status)))


def held_together_bytes(processes: Iterable[int]) -> int:
    """Return what processes hold, counting shared pages once; slower."""
    total = 0
    for process in processes:
        parts = _PROPORTIONAL.findall(_read(f"/proc/{process}/smaps_rollup"))
        total += 1024 * sum(map(int, parts)) if parts else held_bytes(process)
    return total


def _read(path: str) -> bytes:
    """Return a file of `/proc`, b"" if the process has ended."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, 1 << 14)
        finally:
            os.close(descriptor)
    return b""
