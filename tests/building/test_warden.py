"""The warden: what a worker is given, and that nothing it starts outlives it."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pallasc.compiler.workers.messages import Reply
from pallasc.compiler.workers.warden import descendants, held_bytes, parents

sys.path.insert(0, str(Path(__file__).parent / "programs"))
from fakes import answers, code, environment, fakes, value

LEAVES = """
import os, signal
ends, started = os.pipe()
for session in (False, True):
    if not os.fork():
        if session:
            os.setsid()
        if not os.fork():  # its parent ends at once, so nobody here is its parent any more
            os.write(started, b"%d " % os.getpid())
            signal.pause()
        os._exit(0)
text = b""
while text.count(b" ") < 2:
    text += os.read(ends, 100)
with open(f"/proc/{os.getppid()}/stat") as file:
    outer = int(file.read().rpartition(")")[2].split()[1])
value = [os.getpid(), outer, os.getppid(), *map(int, text.split())]
"""


def ask(*codes: str, **limits: Any) -> list[Reply]:
    """Have a worker execute each of `codes`."""
    with fakes(**limits) as pool:
        return answers(pool, *(code(text, number) for number, text in enumerate(codes)))


def is_gone(process: int) -> bool:
    """Wait for the end of a process that is no child of this one."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 300)[0])
    finally:
        os.close(descriptor)


def test_nothing_that_a_worker_started_outlives_the_worker_or_the_pool() -> None:
    left, dead, after = ask(LEAVES, "import os; os._exit(3)", LEAVES)
    assert str(dead.error) == "the compiling process ended with exit code 3"
    assert len(value(after)) == 5
    assert all(map(is_gone, value(left) + value(after)))


def test_nothing_that_a_worker_started_outlives_it_when_it_kills_its_warden(tmp_path: Path) -> None:
    """Processes that have sessions and environments of their own among them."""
    told = tmp_path / "told"
    text = (
        f"{LEAVES}\nimport subprocess, sys\n"
        "other = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'],\n"
        "                         env={}, start_new_session=True)\n"
        f"with open({str(told)!r}, 'w') as file: print(*value, other.pid, file=file)\n"
        "os.kill(os.getppid(), signal.SIGKILL)\nsignal.pause()"
    )
    dead, after = ask(text, "value = 1")
    assert str(dead.error).startswith("the compiling process was killed by SIGKILL")
    assert value(after) == 1
    processes = [int(text) for text in told.read_text().split()]
    assert len(processes) == 6
    assert all(map(is_gone, processes))


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_a_build_that_is_killed(
    start_program: Callable[..., subprocess.Popen[str]], tmp_path: Path, end: signal.Signals
) -> None:
    text = f"{LEAVES}\nimport tempfile; tempfile.mkstemp(); value.append(tempfile.gettempdir())"
    variables = {**environment(), "TMPDIR": str(tmp_path)}
    process = start_program("pool.py", text, **variables)
    assert process.stdout is not None
    *processes, folder = json.loads(process.stdout.readline())
    assert Path(folder).parent == tmp_path
    process.send_signal(end)
    process.communicate(timeout=300)
    assert process.returncode == -end
    assert all(map(is_gone, processes))
    assert is_gone(processes[1])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "end"),
    [
        ("OSError(9, 'closed')", "ended with exit code 1: OSError: [Errno 9] closed"),
        ("KeyboardInterrupt", "was killed by SIGINT: KeyboardInterrupt"),
    ],
)
def test_a_worker_that_fails_does_not_wait_for_threads(error: str, end: str) -> None:
    thread = "import threading; threading.Thread(target=threading.Event().wait).start()"
    _, failed = ask(thread, f"{thread}\nraise {error}", timeout_s=300)
    assert str(failed.error) == f"the compiling process {end}"


def test_a_worker_begins_with_limits_and_no_signal_blocked_or_descriptor_to_spare() -> None:
    text = (
        "import os, resource, signal\n"
        "value = [resource.getrlimit(resource.RLIMIT_CORE)[0],\n"
        "         int(open('/proc/self/oom_score_adj').read()),\n"
        "         list(signal.pthread_sigmask(signal.SIG_BLOCK, ())),\n"
        "         sorted(map(int, os.listdir('/proc/self/fd'))),\n"
        "         resource.getrlimit(resource.RLIMIT_DATA)[0]]"
    )
    *usual, descriptors, data = value(ask(text)[0])
    assert (usual, data) == ([0, 500, []], -1)
    assert descriptors[:3] == [0, 1, 2]
    assert len(descriptors) == 6  # one lists the folder, two are the pipes
    *limited, _, data = value(ask(text, memory_bytes=1 << 30)[0])
    assert limited == usual
    assert (1 << 30) + (512 << 20) < data < (1 << 40)


def test_a_copy_that_a_kernel_made_by_fork_does_not_answer() -> None:
    twice = "import os\nchild = os.fork()\nvalue = 'both'"
    first, *later = ask(twice, "value = 2", "value = 3")
    assert value(first) == "both"
    assert list(map(value, later)) == [2, 3]


# ---- what /proc says of processes

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
