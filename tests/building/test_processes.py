"""What `/proc` says of processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from pallasc.compiler.workers.warden import (
    descendants,
    held_bytes,
    held_together_bytes,
    parents,
)

MB = 1_000_000

Start = Callable[[str], int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Return what starts Python code, waits until it prints a line, and gives its process id."""
    started = []

    def start(code: str) -> int:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        started.append(process)
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        return process.pid

    yield start
    for process in started:
        os.killpg(process.pid, 9)
        process.communicate()


def test_descendants_are_found_at_any_depth_and_with_any_name(start: Start) -> None:
    table = {2: 1, 3: 1, 4: 2, 5: 4, 6: 9, 7: 5}
    assert [descendants(process, table) for process in (2, 3, 8)] == [[4, 5, 7], [], []]
    name = "import ctypes; ctypes.CDLL(None).prctl(15, b') R 1 (\\n', 0, 0, 0)"
    child = start(f"{name}\nprint('ready', flush=True); input()")
    assert parents()[child] == os.getpid()
    assert child in descendants(os.getpid(), parents())


def test_memory_of_its_own_counts_and_that_of_files_does_not(start: Start) -> None:
    maps = "import mmap, sys; f = open(sys.executable, 'rb')\n"
    maps += "m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); bytes(m)\n"
    shared = "import mmap\nx = mmap.mmap(-1, 100_000_000); x.write(b'x' * 100_000_000)\n"
    codes = ("", maps, "x = b'x' * 100_000_000\n", shared)
    idle, reader, holder, sharer = (
        held_bytes(start(f"{code}print('ready', flush=True); input()")) for code in codes
    )
    assert 0 < idle < 30 * MB
    assert reader < idle + 5 * MB
    assert idle + 99 * MB < holder < idle + 110 * MB
    assert idle + 99 * MB < sharer < idle + 220 * MB


def test_what_a_fork_shares_counts_once(start: Start) -> None:
    forks = "import os\nx = b'x' * 100_000_000\n"
    forks += "for _ in range(3):\n    if not os.fork(): os.read(0, 1); os._exit(0)\n"
    process = start(f"{forks}print('ready', flush=True); input()")
    tree = [process, *descendants(process, parents())]
    assert len(tree) == 4
    assert sum(map(held_bytes, tree)) > 400 * MB
    assert 100 * MB < held_together_bytes(tree) < 160 * MB


def test_a_process_that_is_gone_holds_nothing() -> None:
    done = subprocess.Popen(["true"])
    done.wait()
    assert held_bytes(done.pid) == held_together_bytes([done.pid]) == 0
    assert done.pid not in parents()
