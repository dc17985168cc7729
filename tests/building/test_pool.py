"""The pool: how many workers, which of them, and how they end."""

import contextlib
import os
import select
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pallasc.compiler.workers.messages import Collect, Collected, Failed, Task, Warm
from pallasc.compiler.workers.pool import Pool
from pallasc.compiler.workers.worker_process import Worker
from pallasc.errors import SpecError, ToolError

sys.path.insert(0, str(Path(__file__).parent / "programs"))
from fakes import WHO, Do, Prepare, answers, code, fakes, value, values

SPEC = """
import pallasc

{before}

@pallasc.kernel(args=["f32[8]"], targets=["sm_90a"])
def run(x):
    return x
"""

_FAILED = {
    "type": "Failed",
    "error": {"type": "SpecError", "message": "", "hint": None, "location": None, "exit_code": 2},
}
_DEADLINE_S = 600


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


# ---- real workers


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of Python spec files that behave in different ways."""
    for name, text in {
        "fine": "",
        "exits": "import os; os._exit(7)",
        "talks": "print('hello')",
        "says_why": "import os, sys; print('ERROR: no disk', file=sys.stderr, flush=True); "
        "os._exit(8)",
    }.items():
        (tmp_path / f"{name}.py").write_text(SPEC.format(before=text))
    return tmp_path


def read(folder: Path, name: str, number: int) -> Task:
    return Task(number, ("", ""), Collect(path=str(folder / f"{name}.py")))


def test_the_end_and_the_output_of_a_worker_are_told_with_its_task(folder: Path) -> None:
    names = ("says_why", "talks", "fine", "exits")
    tasks = [read(folder, name, number) for number, name in enumerate(names)]
    tasks[3] = replace(tasks[3], doing="the reader")
    with Pool(1, os.environ) as pool:
        failed, talking, fine, named = answers(pool, *tasks)
    assert isinstance(failed, Failed)
    assert failed.died
    assert str(failed.error) == "the compiling process ended with exit code 8: ERROR: no disk"
    assert isinstance(fine, Collected)
    assert (talking.output, fine.output) == ("hello\n", "")
    assert str(named.error) == "the reader ended with exit code 7"


def test_there_are_never_more_workers_than_jobs() -> None:
    tasks = [code("", number, group) for number, group in enumerate("aaabbc")]
    counts, done = [], []
    with fakes(2) as pool:
        pool.warm(5)
        for kind, task, _ in pool.run(tasks):
            counts.append(len(pool._workers))
            if kind == "done" and task:
                done.append(task.label)
    assert (sorted(done), max(counts)) == ([*range(len(tasks))], 2)


def test_a_long_request_is_sent_as_soon_as_the_worker_reads() -> None:
    with fakes() as pool:
        worker = pool._new_worker()
        worker.send(Do(code="#" * (4 << 20)))  # more than a pipe holds
        poll = select.poll()
        poll.register(worker.requests, worker.events()[worker.requests])
        assert poll.poll(60_000)


# ---- workers that are ready


def who_serves(pool: Pool, *archs: str) -> list[Any]:
    """Return the process that serves a task of each architecture."""
    tasks = [replace(code(WHO, n), group=(arch, "", ())) for n, arch in enumerate(archs)]
    return values(pool, *tasks)


def test_a_worker_that_is_ready_serves_its_architecture_in_one_run() -> None:
    with fakes(2) as pool:
        pool.context = Prepare(code="kept['ready'] = 1")
        pool.keep_ready({"sm_90a": Warm(), "sm_100a": Warm()})
        ready = {worker.arch: worker for worker in pool._workers}
        wait_for(lambda: all(worker.is_fit() and worker.process for worker in ready.values()))
        served = who_serves(pool, "sm_90a", "sm_120a")
        assert served[0] == ready["sm_90a"].process
        assert served[1] not in {worker.process for worker in ready.values()}
        assert ready["sm_100a"] in pool._workers
        pool.keep_ready({"sm_90a": Warm()})
        assert ready["sm_90a"] not in pool._workers
        assert ready["sm_100a"] not in pool._workers
        assert who_serves(pool, "sm_90a") != [ready["sm_90a"].process]
        pool.keep_ready({"sm_90a": Warm()})
        (old,) = pool._workers
        wait_for(lambda: old.is_fit() and bool(old.process))
        pool.context = Prepare(code="new = 1")  # of another toolchain
        assert who_serves(pool, "sm_90a") != [old.process]


# ---- ends


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_workers_are_stopped_when_the_caller_goes_away_early(error: Any) -> None:
    tasks = [code(f"{WHO}; import signal; n = {n}; n and signal.pause()", n) for n in range(3)]
    with contextlib.suppress(KeyboardInterrupt), fakes(2) as pool:
        for kind, _, answer in pool.run(tasks):
            if kind == "done" and answer and not isinstance(answer, Failed):
                process = value(answer)
                workers = [worker.process for worker in pool._workers]
                if error is not None:
                    raise error
                break
    for number in [process, *filter(None, workers)]:
        assert not Path(f"/proc/{number}").exists()


def test_workers_leave_no_descriptor_open_also_where_they_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ToolError, match="cannot be started"):
        Worker({}, tmp_path)
    with pytest.raises(ToolError, match="cannot be started"), fakes() as pool:
        answers(pool, code(""))
    monkeypatch.undo()
    with fakes(2) as pool:
        pool.warm(1)
        answers(pool, code(""), code("import os; os._exit(1)", 1, "b"), code("", 2, "c"))
    assert len(os.listdir("/proc/self/fd")) == before


# ---- which worker does what


@pytest.mark.parametrize(("jobs", "groups"), [(2, 1), (2, 5)])
def test_only_the_last_group_gets_a_second_worker(jobs: int, groups: int) -> None:
    tasks = [code(WHO, n, str(n % groups)) for n in range(60)]
    with fakes(jobs) as pool:
        found = values(pool, *tasks)
    served: dict[int, set[str]] = {}
    for task, process in zip(tasks, found, strict=True):
        served.setdefault(process, set()).add(task.group[1])
    assert all(len(names) == 1 for names in served.values())
    assert groups <= len(served) < groups + jobs


def test_a_warm_worker_is_the_first_to_be_used_and_replaced_if_it_has_died() -> None:
    with fakes(2) as pool:
        pool.warm(1)
        (warm,) = pool._workers
        assert values(pool, code(WHO)) == [warm.process]
    with fakes() as pool:
        pool.warm(1)
        (warm,) = pool._workers
        warm.end()
        wait_for(warm.is_over)
        assert values(pool, code(WHO)) != [warm.process]
        assert pool._workers == []


def test_a_worker_that_says_it_is_spoilt_is_replaced_and_what_it_says_unasked_is_no_answer() -> (
    None
):
    tainted = 'channel.send({"type": "Done", "value": 1, "tainted": True})\n'
    twice = 'channel.send({"type": "Done", "value": 1}); value = 2'
    with fakes() as pool:
        first = code(f"{tainted}import signal; signal.pause()")
        answer, process = values(pool, first, code(WHO, 1))
        assert answer == 1
        assert process > 1
        assert values(pool, code(twice), code("value = 3", 1), code("value = 4", 2)) == [1, 3, 4]


def test_a_worker_that_sends_malformed_messages_fails_its_task_alone() -> None:
    malformed = (
        "import os, signal\nline = b'[' * 200_000 + b'\\n'\n"
        "while line: line = line[os.write(answers, line):]\nsignal.pause()"
    )
    with fakes() as pool:
        bad, good = answers(pool, code(malformed), code("value = 1", 1))
    assert isinstance(bad, Failed)
    assert bad.error.kind == "garbled"
    assert value(good) == 1


def test_a_death_that_an_earlier_task_may_have_caused_is_tried_again_alone() -> None:
    tasks = [
        code("kept['bomb'] = 1; value = 'armed'", 0),
        code("import os\nif kept: os._exit(9)\nvalue = 'innocent'", 1),
        code("kept['bomb'] = 1; value = 'armed'", 2),
        code("import os; os._exit(9)", 3),
        code("value = 'last'", 4),
    ]
    with fakes() as pool:
        events = list(pool.run(tasks))
    told = Counter((kind, task.label) for kind, task, _ in events if task)
    assert set(told.values()) == {1}
    done = {task.label: answer for kind, task, answer in events if task and answer}
    replies = [done[label] for label in sorted(done)]
    said = [None if isinstance(reply, Failed) else value(reply) for reply in replies]
    assert said == ["armed", "innocent", "armed", None, "last"]
    assert str(done[3].error) == "the compiling process ended with exit code 9"


# ---- talking


def test_nothing_is_begun_before_the_caller_has_heard_of_a_failure(tmp_path: Path) -> None:
    made: list[int] = []

    def request() -> Do:
        made.append(1)
        return Do(code="")

    first = code(f"channel.send({_FAILED!r}); import signal; signal.pause()")
    with fakes() as pool:
        for kind, _, answer in pool.run([first, Task(1, ("", ""), request)]):
            if kind == "done":
                assert answer is not None
                assert isinstance(answer, Failed)
                break
    assert made == []


def test_a_request_that_cannot_be_made_fails_its_task_alone() -> None:
    def request() -> Do:
        raise SpecError("table.txt is gone")

    with fakes() as pool:
        wrong, fine = answers(pool, Task(0, ("", ""), request), code("value = 1", 1))
    assert str(wrong.error) == "table.txt is gone"
    assert value(fine) == 1
