"""How many workers may run here, and how much memory each may hold.

A container sees the cores and the memory of the whole machine, and is throttled or killed at the
limits of its control groups: those of version 2 (`cpu.max`, `memory.max`, `memory.high`) or of
version 1 (`cpu.cfs_quota_us`, `memory.limit_in_bytes`), its own and all above it.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_WORKER_BYTES = 700_000_000
"""Memory of a compiling process: about 480 MB after JAX is imported, and some to compile."""
_LEAST_LIMIT_BYTES = 2_000_000_000
_SHARED_OUT = 0.9


@dataclass(frozen=True, slots=True)
class Capacity:
    """The cores and the memory that this process may use now.

    Attributes:
        cores: how many of its threads can run at the same time.
        free_bytes: memory that is available.
    """

    cores: int
    free_bytes: int

    def jobs(self, tasks: int) -> int:
        """Return how many workers to start for a number of tasks, at least 1."""
        return max(1, min(self.cores, self.free_bytes // _WORKER_BYTES, tasks))

    def memory_bytes(self, jobs: int) -> int:
        """Return what each worker may hold: its share, but at least enough for any kernel."""
        return max(_LEAST_LIMIT_BYTES, int(self.free_bytes * _SHARED_OUT) // jobs)


def find_capacity(root: Path = Path("/")) -> Capacity:
    """Return what this process may use now.

    Args:
        root: the folder above `proc` and the paths that it names.
    """
    quotas = [_cpu_quota(folder) for folder in _control_groups(root, "cpu")]
    memory = [_memory_left(folder) for folder in _control_groups(root, "memory")]
    cores = [len(os.sched_getaffinity(0)), *(math.ceil(quota) for quota in quotas if quota)]
    free = [_available_bytes(root), *(size for size in memory if size is not None)]
    return Capacity(max(1, min(cores)), max(0, min(free)))


def _available_bytes(root: Path) -> int:
    """Return the free memory of the machine, with what its file cache could give up."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    if match is None:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(match[1]) * 1024


def _memory_left(folder: Path) -> int | None:
    """Return what a control group has left for its processes, None if it has no limit."""
    for limits, usage in (
        (("memory.max", "memory.high"), "memory.current"),
        (("memory.limit_in_bytes",), "memory.usage_in_bytes"),
    ):
        sizes = [size for size in (_number(folder / name) for name in limits) if size]
        if sizes:
            # Cached pages of files count as used, but the kernel drops them under pressure.
            stat = _text(folder / "memory.stat")
            files = re.findall(r"^(?:in)?active_file (\d+)$", stat, re.MULTILINE)
            used = max(0, (_number(folder / usage) or 0) - sum(map(int, files)))
            return min(sizes) - used
    return None


def _cpu_quota(folder: Path) -> float | None:
    """Return how many cores a control group may keep busy, None if it has no limit."""
    words = _text(folder / "cpu.max").split()
    if len(words) != 2:
        words = [_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    if not all(word.isdigit() and int(word) for word in words):  # "max" and "-1" stand for no limit
        return None
    return int(words[0]) / int(words[1])


def _control_groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the control groups of this process, from its own upwards."""
    own = dict(_own_groups(_text(root / "proc/self/cgroup")))
    for line in _text(root / "proc/self/mountinfo").splitlines():
        # proc(5): … root, mount point, options, optional fields, "-", type, source, options
        first, _, last = line.partition(" - ")
        before, after = first.split(), last.split()
        if len(before) < 6 or len(after) < 3:
            continue
        if after[0] == "cgroup2":
            name = own.get("")
        elif after[0] == "cgroup" and controller in after[2].split(","):
            name = own.get(controller)
        else:
            continue
        if name is not None:
            yield from _upwards(root / before[4].lstrip("/"), before[3], name)


def _own_groups(text: str) -> Iterator[tuple[str, str]]:
    """Yield controller and name of each control group; version 2 has no controller."""
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        for controller in controllers.split(","):
            yield controller, name


def _upwards(mount: Path, mounted: str, name: str) -> Iterator[Path]:
    """Yield the folder of a control group and those above it, up to the mounted group."""
    inside = os.path.relpath(name, mounted) if name.startswith(mounted) else "."
    folder = mount / inside
    while folder != mount and mount in folder.parents:
        yield folder
        folder = folder.parent
    yield mount


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    """Return the text of a file, "" if there is no such file."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
