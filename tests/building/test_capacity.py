"""How many workers there may be, what each may hold, and which group is served next."""

import os
from pathlib import Path

import pytest

from pallasc.compiler.workers.messages import Group
from pallasc.compiler.workers.pool import Capacity, find_capacity, next_group

GB = 1_000_000_000
GIB = 1 << 30


def test_there_are_as_many_jobs_as_cores_memory_and_tasks_allow() -> None:
    roomy = Capacity(8, 100 * GB)
    assert [roomy.jobs(tasks) for tasks in (100, 3, 0)] == [8, 3, 1]
    assert [Capacity(8, free).jobs(100) for free in (2 * GB, 1)] == [2, 1]


def test_a_worker_may_hold_its_share_and_never_less_than_2_gb() -> None:
    assert [Capacity(64, 100 * GB).memory_bytes(jobs) for jobs in (10, 1)] == [9 * GB, 90 * GB]
    assert Capacity(64, 4 * GB).memory_bytes(4) == Capacity(64, 0).memory_bytes(1) == 2 * GB


@pytest.mark.parametrize(
    ("waiting", "idle", "busy", "expected"),
    [
        ({"a": 1, "b": 3}, "", "", "b"),
        ({"a": 2, "b": 3}, "", "b", "a"),
        ({"a": 1, "b": 3}, "a", "", "a"),
        ({"a": 1, "b": 3}, "c", "", "b"),
        ({"a": 1, "b": 9}, "", "b", "b"),
        ({"a": 1}, "", "a", "a"),
    ],
)
def test_the_group_that_is_most_behind_is_served_next(
    waiting: dict[str, int], idle: str, busy: str, expected: str
) -> None:
    def group(name: str) -> Group:
        return ("sm_90a", name, ())

    counts = {group(name): count for name, count in waiting.items()}
    assert next_group(counts, [*map(group, idle)], map(group, busy)) == group(expected)
    assert next_group(counts, [None, *map(group, idle)], map(group, busy)) == group(expected)


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


def test_without_control_groups_the_machine_and_the_affinity_of_this_process_count(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_capacity(root) == Capacity(16, 64 * GIB)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    assert find_capacity(root).cores == 1


def test_a_quota_is_rounded_up(root: Path) -> None:
    groups(root, V2, OWN_V2, "/", "/")
    for quota, cores in {
        "max 100000": 16, "150000 100000": 2, "10000 100000": 1, "9900000 100000": 16, "": 16
    }.items():  # fmt: skip
        write(root, "sys/fs/cgroup/cpu.max", f"{quota}\n")
        assert find_capacity(root) == Capacity(cores, 64 * GIB)
    groups(root, V1, OWN_V1, "/", "/job")
    write(root, "sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n")
    for quota, cores in {"-1": 16, "250000": 3}.items():
        write(root, "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", f"{quota}\n")
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
