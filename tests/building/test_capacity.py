"""How many workers there may be, and what each may hold."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pallasc.compiler.workers.pool import Capacity, find_capacity

GB = 1_000_000_000
GIB = 1 << 30


@pytest.mark.parametrize(
    ("cores", "free_bytes", "tasks", "jobs"),
    [
        (8, 100 * GB, 100, 8),
        (8, 100 * GB, 3, 3),
        (8, 100 * GB, 0, 1),
        (8, 2 * GB, 100, 2),
        (8, 1, 100, 1),
        (1, 100 * GB, 100, 1),
    ],
)
def test_there_are_as_many_jobs_as_cores_memory_and_tasks_allow(
    cores: int, free_bytes: int, tasks: int, jobs: int
) -> None:
    assert Capacity(cores, free_bytes).jobs(tasks) == jobs


@pytest.mark.parametrize(
    ("free_bytes", "jobs", "limit_bytes"),
    [(100 * GB, 10, 9 * GB), (100 * GB, 1, 90 * GB), (4 * GB, 4, 2 * GB), (0, 1, 2 * GB)],
)
def test_a_worker_may_hold_its_share_and_never_less_than_2_gb(
    free_bytes: int, jobs: int, limit_bytes: int
) -> None:
    assert Capacity(64, free_bytes).memory_bytes(jobs) == limit_bytes


# ---- reading

V2 = "30 29 0:26 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
V1 = (
    "33 31 0:30 {root} /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "38 31 0:35 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)
OWN_V2 = "0::{name}\n"
OWN_V1 = "4:memory:{name}\n3:cpuset:/\n2:cpu,cpuacct:{name}\n0::/\n"
STAT = "anon 5\ninactive_file {0}\nactive_file {0}\ntotal_inactive_file 7\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a machine of 16 cores with 64 GiB free."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    write(tmp_path, "proc/meminfo", "MemFree: 1 kB\nMemAvailable:   67108864 kB\nBuffers: 2 kB\n")
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def groups(root: Path, mounts: str, own: str, mounted: str, name: str) -> None:
    write(
        root,
        "proc/self/mountinfo",
        "22 27 0:21 / /proc rw - proc proc rw\n" + mounts.format(root=mounted),
    )
    write(root, "proc/self/cgroup", own.format(name=name))


def test_without_control_groups_all_of_the_machine_counts(root: Path) -> None:
    assert find_capacity(root) == Capacity(16, 64 * GIB)


def test_the_affinity_of_this_process_counts(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    assert find_capacity(root).cores == 1


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000", 16),
        ("200000 100000", 2),
        ("150000 100000", 2),
        ("10000 100000", 1),
        ("9900000 100000", 16),
        ("", 16),
    ],
)
def test_a_quota_of_version_2_is_rounded_up(root: Path, quota: str, cores: int) -> None:
    groups(root, V2, OWN_V2, "/", "/")
    write(root, "sys/fs/cgroup/cpu.max", quota + "\n")
    assert find_capacity(root) == Capacity(cores, 64 * GIB)


@pytest.mark.parametrize(("quota", "cores"), [("-1", 16), ("250000", 3)])
def test_a_quota_of_version_1_is_rounded_up(root: Path, quota: str, cores: int) -> None:
    groups(root, V1, OWN_V1, "/", "/job")
    write(root, "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", quota + "\n")
    write(root, "sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n")
    assert find_capacity(root) == Capacity(cores, 64 * GIB)


def test_memory_of_version_2_is_what_the_limit_leaves_and_files_count_as_free(root: Path) -> None:
    groups(root, V2, OWN_V2, "/", "/a/b")
    place = "sys/fs/cgroup/a/b"
    write(root, f"{place}/memory.max", f"{8 * GIB}\n")
    write(root, f"{place}/memory.current", f"{5 * GIB}\n")
    write(root, f"{place}/memory.stat", STAT.format(GIB))
    assert find_capacity(root).free_bytes == 5 * GIB
    write(root, f"{place}/memory.high", f"{6 * GIB}\n")
    assert find_capacity(root).free_bytes == 3 * GIB
    write(root, "sys/fs/cgroup/a/memory.max", f"{GIB}\n")
    assert find_capacity(root).free_bytes == GIB


def test_memory_of_version_1_is_what_the_limit_leaves(root: Path) -> None:
    groups(root, V1, OWN_V1, "/", "/a")
    place = "sys/fs/cgroup/memory/a"
    write(root, f"{place}/memory.limit_in_bytes", f"{8 * GIB}\n")
    write(root, f"{place}/memory.usage_in_bytes", f"{5 * GIB}\n")
    assert find_capacity(root).free_bytes == 3 * GIB
    write(root, f"{place}/memory.limit_in_bytes", "9223372036854771712\n")
    assert find_capacity(root).free_bytes == 64 * GIB


@pytest.mark.parametrize(
    ("mounted", "name"),
    [
        ("/docker/5f", "/docker/5f"),  # mounted from the container's own group on
        ("/docker/5f", "/elsewhere"),  # seen from another name space
        ("/..", "/"),
        ("/", "/gone/meanwhile"),
    ],
)
def test_the_group_that_is_mounted_counts_where_the_name_leads_nowhere(
    root: Path, mounted: str, name: str
) -> None:
    groups(root, V2, OWN_V2, mounted, name)
    write(root, "sys/fs/cgroup/memory.max", f"{2 * GIB}\n")
    assert find_capacity(root).free_bytes == 2 * GIB


def test_this_machine_has_room_for_a_worker() -> None:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    found = find_capacity()
    assert 0 < found.free_bytes <= pages
    assert 1 <= found.cores <= len(os.sched_getaffinity(0))
    assert 1 <= found.jobs(1000) <= found.cores
    assert found.memory_bytes(1) >= 2 * GB
