"""The pool of a cluster: a real scheduler, real workers, and processes that execute what they get.

What compiles is `fake_worker`, so that faults can be timed; `test_build` compiles.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters import Cluster, Proxy, cluster, is_alive, own_port, wait_for
from fakes import WHO, Do, environment, fakes, value

from pallasc.cache.stat_digest import FileDigests
from pallasc.compiler.cluster import roster
from pallasc.compiler.cluster.address import parse_address
from pallasc.compiler.cluster.pieces import Backlog, Piece
from pallasc.compiler.cluster.pool import ClusterPool
from pallasc.compiler.cluster.under_way import UnderWay
from pallasc.compiler.toolchain.setup import Context
from pallasc.compiler.workers.messages import Answer, Task
from pallasc.compiler.workers.pool import Pool
from pallasc.errors import ToolError


def opened(address: str, **options: Any) -> ClusterPool:
    """Return a pool whose processes execute the code that they are sent."""
    pool = ClusterPool(parse_address(address), 2, environment(), program="fake_worker", **options)
    pool.describe(Context({}, {}, FileDigests(None)), {}, [])
    return pool


def code(text: str, number: int = 0) -> Task:
    return Task(number, ("", "", ()), Do(code=text))


def waits_for(path: Path) -> str:
    """Return code that goes on when there is a file."""
    return f"import os, time\nwhile not os.path.exists({str(path)!r}): time.sleep(0.01)\n"


def answers(pool: Pool | ClusterPool, *tasks: Task) -> list[Answer]:
    done = [answer for kind, _, answer in pool.run(tasks) if kind == "done" and answer is not None]
    return sorted(done, key=lambda answer: answer.task.label)


@pytest.fixture(scope="module")
def pool(two: Cluster) -> Iterator[ClusterPool]:
    with opened(two.address, timeout_s=600, memory_bytes=256 << 20, tick_s=0.1) as made:
        yield made


def test_each_task_is_answered_after_it_was_said_to_start(pool: ClusterPool) -> None:
    tasks = [code(f"value = {number} ** 2", number) for number in range(40)]
    told = [(kind, task.label) for kind, task, _ in pool.run(tasks) if task is not None]
    for number in range(40):
        assert told.count(("started", number)) == told.count(("done", number)) == 1
        assert told.index(("started", number)) < told.index(("done", number))


def test_values_come_back(pool: ClusterPool) -> None:
    tasks = [code(f"value = {number} ** 2", number) for number in range(10)]
    assert [value(answer) for answer in answers(pool, *tasks)] == [n**2 for n in range(10)]


def meeting(folder: Path) -> list[Task]:
    """Return two tasks, neither of which ends before the other has begun."""
    begins = [f"open({str(folder / name)!r}, 'w').close()\n" for name in ("0", "1")]
    waits = [waits_for(folder / name) for name in ("1", "0")]
    texts = [begin + wait + WHO for begin, wait in zip(begins, waits, strict=True)]
    return [code(text, number) for number, text in enumerate(texts)]


def test_both_workers_take_part_and_their_processes_stay(two: Cluster, tmp_path: Path) -> None:
    with opened(two.address) as pool:
        first = {value(answer) for answer in answers(pool, *meeting(tmp_path))}
        assert len(first) == 2
        later = answers(pool, *(code(WHO, number) for number in range(8)))
        assert {value(answer) for answer in later} <= first


@pytest.mark.parametrize(
    "fault",
    [
        "import os; os._exit(7)",
        "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
        "import os, sys; print('ERROR: no disk', file=sys.stderr, flush=True); os._exit(8)",
        "import os; os.write(answers, b'x' * 100); os._exit(3)",
    ],
)
def test_a_task_that_ends_its_process_fails_alone_and_as_here(
    pool: ClusterPool, fault: str
) -> None:
    tasks = [code("value = 1"), code(fault, 1), code("value = 3", 2)]
    there = answers(pool, *tasks)
    with fakes() as local:
        here = answers(local, *tasks)
    assert [value(there[0]), value(there[2])] == [1, 3]
    assert str(there[1].error) == str(here[1].error)
    assert there[1].error is not None
    assert there[1].error.kind == "died"


def test_a_task_that_hangs_is_stopped_and_fails_as_here(two: Cluster) -> None:
    tasks = [code("while True: pass"), code("value = 2", 1)]
    for timeout_s in (1.0, 20.0, 200.0):  # a busy machine may take longer over nothing at all
        with opened(two.address, timeout_s=timeout_s) as pool:
            there = answers(pool, *tasks)
        if there[1].error is None:
            break
    with fakes(timeout_s=timeout_s) as local:
        here = answers(local, *tasks)
    assert value(there[1]) == 2
    assert str(there[0].error) == str(here[0].error)
    assert there[0].error is not None
    assert there[0].error.kind == "timeout"


def test_a_task_that_eats_memory_is_stopped_and_fails_as_here(pool: ClusterPool) -> None:
    eats = "import mmap; held = mmap.mmap(-1, 1 << 29); held.write(b'x' * (1 << 29)); " + (
        "import time; time.sleep(3600)"
    )
    there = answers(pool, code(eats), code("value = 2", 1))
    assert value(there[1]) == 2
    assert there[0].error is not None
    assert there[0].error.kind == "memory"
    assert "more than the 256 MiB that one may hold (--memory)" in there[0].error.message


def test_short_tasks_travel_together_and_long_ones_alone(
    two: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    plain, pace = UnderWay.add, Backlog.pace

    def counting(self: UnderWay, piece: Piece) -> Any:
        sizes.append(len(piece.items))
        return plain(self, piece)

    monkeypatch.setattr(UnderWay, "add", counting)
    # Nothing takes a moment on any machine, but on a busy one it takes longer.
    monkeypatch.setattr(Backlog, "pace", lambda self, seconds: pace(self, seconds % 0.01))
    with opened(two.address) as pool:
        answers(pool, *(code("value = 0", number) for number in range(400)))
        assert max(sizes) > 4
        sizes.clear()
    monkeypatch.setattr(Backlog, "pace", pace)
    with opened(two.address) as pool:
        slow = "import time; time.sleep(0.3); value = 0"
        answers(pool, *(code(slow, number) for number in range(40)))
    assert max(sizes) == 1


def test_ticks_tell_what_is_running(pool: ClusterPool, tmp_path: Path) -> None:
    seen = Counter[int]()
    for kind, _, _ in pool.run([code(waits_for(tmp_path / "go") + "value = 0", 7)]):
        if kind == "tick":
            seen.update(task.label for task, _ in pool.running())
        if seen[7] > 3:
            (tmp_path / "go").touch()
    assert seen.keys() == {7}
    assert seen[7] > 3


def test_leaving_a_run_ends_what_is_compiled(two: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "process"
    writes = f"import os, time; open({str(file)!r}, 'w').write(str(os.getpid())); time.sleep(3600)"
    with opened(two.address, tick_s=0.1) as pool:
        for _ in pool.run([code(writes)]):
            if file.exists() and file.read_text():
                break
        process = int(file.read_text())
        assert is_alive(process)
    wait_for(lambda: not is_alive(process), "the end of what was compiled")


def test_a_session_leaves_nothing_on_the_workers(two: Cluster) -> None:
    def sessions() -> set[Path]:
        return {*two.folder.glob("*/dask-scratch-space/*/pallasc-cluster-*")}

    before = sessions()
    with opened(two.address) as pool:
        answers(pool, code("value = 0"))
        own = sessions() - before
        assert own
    wait_for(lambda: not own & sessions(), "the end of a session")


def test_a_request_that_cannot_be_made_fails_alone(pool: ClusterPool) -> None:
    def fail() -> Do:
        raise ToolError("no such file")

    there = answers(pool, Task(0, ("", "", ()), fail), code("value = 2", 1))
    assert (str(there[0].error), value(there[1])) == ("no such file", 2)


def test_an_answer_of_another_type_is_refused(pool: ClusterPool) -> None:
    there = answers(pool, code("channel.send({'ok': True, 'task': None})"), code("value = 2", 1))
    assert there[0].error is not None
    assert there[0].error.kind == "garbled"
    assert value(there[1]) == 2


# ---- faults


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Cluster]:
    """Return a cluster without workers, for what nobody else can use afterwards."""
    with cluster(tmp_path, workers=0) as made:
        yield made


def counted(folder: Path, numbers: Iterable[int], waits: str = "") -> list[Task]:
    """Return tasks that take down each time that they are carried out."""
    return [
        code(
            f"open({str(folder / str(number))!r}, 'a').write('x')\n{waits}"
            f"import time; time.sleep(0.15); value = {number}",
            number,
        )
        for number in numbers
    ]


def carried_out(folder: Path, count: int) -> list[int]:
    """Return how often each task was carried out."""
    return [len((folder / str(number)).read_text()) for number in range(count)]


def run_with(
    pool: ClusterPool, folder: Path, count: int, at: int, fault: Callable[[], None]
) -> list[Any]:
    """Carry out tasks, with a fault when `at` are done and two more under way; return the values.

    None of the others ends before the fault.
    """
    values = [value(answer) for answer in answers(pool, *counted(folder, range(at)))]
    begun, later = 0, []
    for kind, _, answer in pool.run(counted(folder, range(at, count), waits_for(folder / "go"))):
        begun += kind == "started"
        if kind == "started" and begun == 2:
            fault()
            (folder / "go").touch()
        later += [] if answer is None else [value(answer)]
    return values + sorted(later)


def test_a_worker_killed_while_it_compiles_costs_what_it_had(own: Cluster, tmp_path: Path) -> None:
    (counts := tmp_path / "counts").mkdir()
    for name in ("first", "second"):
        own.start_worker(name)
    own.wait_for_workers()
    with opened(own.address) as pool:
        values = run_with(pool, counts, 24, 6, own.workers["first"].kill)
    assert values == [*range(24)]
    again = [times for times in carried_out(counts, 24) if times > 1]
    assert len(again) <= 2


def test_a_worker_that_has_refused_is_asked_again(own: Cluster) -> None:
    own.start_worker("first")
    own.wait_for_workers()
    folders = own.folder.glob("first/dask-scratch-space/worker-*")
    (place,) = (folder for folder in folders if folder.is_dir())
    moved = place.rename(place.with_name("moved"))
    values = []
    with opened(own.address, tick_s=0.1) as pool:
        for kind, _, answer in pool.run([code(f"value = {number}", number) for number in range(3)]):
            if kind == "tick" and moved.exists() and pool._roster.refused:
                moved.rename(place)
            if answer is not None:
                values.append(value(answer))
    assert sorted(values) == [0, 1, 2]


def test_a_scheduler_that_is_started_again_costs_what_was_in_flight(
    own: Cluster, tmp_path: Path
) -> None:
    (counts := tmp_path / "counts").mkdir()
    for name in ("first", "second"):
        own.start_worker(name, supervised=True)
    own.wait_for_workers()

    def restart() -> None:
        own.kill_scheduler()
        time.sleep(1)
        own.start_scheduler()

    with opened(own.address, patience_s=600) as pool:
        values = run_with(pool, counts, 24, 8, restart)
    assert values == [*range(24)]
    assert sum(carried_out(counts, 24)) <= 24 + 6


def test_a_network_that_is_held_up_for_ten_seconds_costs_nothing(
    own: Cluster, tmp_path: Path
) -> None:
    (counts := tmp_path / "counts").mkdir()
    proxy = Proxy(own.port)
    try:
        for name in ("first", "second"):
            own.start_worker(name, port=proxy.port)
        own.wait_for_workers()

        def cut() -> None:
            proxy.hold()
            threading.Timer(10.0, proxy.resume).start()

        with opened(f"dask://127.0.0.1:{proxy.port}", patience_s=600) as pool:
            began_s = time.monotonic()
            values = run_with(pool, counts, 24, 4, cut)
            assert time.monotonic() - began_s > 10
    finally:
        proxy.end()
    assert values == [*range(24)]
    assert carried_out(counts, 24) == [1] * 24


def test_connections_that_break_cost_what_was_in_flight(own: Cluster, tmp_path: Path) -> None:
    (counts := tmp_path / "counts").mkdir()
    proxy = Proxy(own.port)
    try:
        for name in ("first", "second"):
            own.start_worker(name, port=proxy.port, supervised=True)
        own.wait_for_workers()

        def cut() -> None:
            proxy.drop()
            threading.Timer(10.0, proxy.resume).start()

        with opened(f"dask://127.0.0.1:{proxy.port}", patience_s=600) as pool:
            values = run_with(pool, counts, 24, 8, cut)
    finally:
        proxy.end()
    assert values == [*range(24)]
    assert sum(carried_out(counts, 24)) <= 24 + 6


def test_a_scheduler_that_stays_away_fails_what_is_left(own: Cluster, tmp_path: Path) -> None:
    own.start_worker("first")
    own.wait_for_workers()
    (counts := tmp_path / "counts").mkdir()
    with opened(own.address) as pool:
        assert len(answers(pool, *counted(counts, range(3)))) == 3
        done = []
        for kind, _, answer in pool.run(counted(counts, range(3, 12), waits_for(counts / "go"))):
            if kind == "started":
                pool._link._patience_s = 2.0
                own.kill_scheduler()
            done += [] if answer is None else [answer]
    (error,) = [answer.error for answer in done]
    assert isinstance(error, ToolError)
    assert f"the scheduler {own.address} has been gone for" in str(error)


def test_no_scheduler_is_told_at_once_and_once() -> None:
    with own_port() as port, opened(f"dask://127.0.0.1:{port}") as pool:
        (answer,) = answers(pool, *(code("value = 0", number) for number in range(3)))
        assert answer.task.label == 0
    assert isinstance(answer.error, ToolError)
    assert "there is no scheduler that answers at dask://127.0.0.1:" in answer.error.message
    assert "dask scheduler" in str(answer.error.hint)


def test_a_task_that_kills_its_dask_worker_over_and_over_fails_alone(
    own: Cluster, tmp_path: Path
) -> None:
    for name in ("first", "second"):
        own.start_worker(name, supervised=True)
    own.wait_for_workers()
    kills = (
        "import os, signal, time; "
        "status = open(f'/proc/{os.getppid()}/status').read(); "
        "inner = int(status.split('PPid:')[1].split()[0]); "
        "status = open(f'/proc/{inner}/status').read(); "
        "os.kill(int(status.split('PPid:')[1].split()[0]), signal.SIGKILL); time.sleep(3600)"
    )
    with opened(own.address) as pool:
        there = answers(pool, code(kills), *(code(f"value = {n}", n) for n in range(1, 6)))
    assert there[0].error is not None
    assert "workers died over and over while it was compiled" in there[0].error.message
    assert [value(answer) for answer in there[1:]] == [1, 2, 3, 4, 5]


def test_a_cluster_without_workers_is_waited_for(
    own: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster, "_NOBODY_S", 0.5)
    told: list[str] = []
    with opened(own.address, tell=told.append, tick_s=0.1) as pool:
        for kind, _, answer in pool.run([code("value = 1")]):
            if kind == "tick" and told and not own.workers:
                own.start_worker("late")
            if answer is not None:
                assert value(answer) == 1
    assert told == [f"{own.address} has no workers yet: waiting for the first one"]
