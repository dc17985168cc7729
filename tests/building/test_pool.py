"""The pool: how many workers, which of them, and how they end."""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pallasc.compiler.pool import Answer, Pool, Task, Worker
from pallasc.errors import ToolError

SPEC = """
import pallasc

{before}

@pallasc.kernel(args=["f32[8]"], targets=["sm_90a"])
def run(x):
    return x
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of Python spec files that behave in different ways."""
    texts = {
        "fine": "",
        "exits": "import os; os._exit(7)",
        "aborts": "import os; os.abort()",
        "real_time": "import os, signal; os.kill(os.getpid(), signal.SIGRTMIN + 2)",
        "talks": "print('hello')",
        "says_why": "import os, sys; print('ERROR: no disk', file=sys.stderr, flush=True); "
        "os._exit(8)",
        "answers": "import os, sys; os.write(int(sys.argv[2]), b'no message\\n')",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(SPEC.format(before=text))
    return tmp_path


def task(folder: Path, name: str, number: int = 0, group: str = "") -> Task:
    return Task(number, ("", group), {"op": "collect", "path": str(folder / f"{name}.py")})


def answers(pool: Pool, *tasks: Task) -> list[Answer]:
    return [answer for kind, _, answer in pool.run(tasks) if answer is not None and kind == "done"]


@pytest.fixture
def pool() -> Iterator[Pool]:
    """Return a pool of one worker."""
    with Pool(1, os.environ) as pool:
        yield pool


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("exits", "the compiling process ended with exit code 7"),
        ("aborts", "the compiling process was killed by SIGABRT"),
        ("real_time", f"the compiling process was killed by signal {signal.SIGRTMIN + 2}"),
        ("says_why", "the compiling process ended with exit code 8: ERROR: no disk"),
        ("answers", "the worker process answered with something that is no message"),
    ],
)
def test_an_end_without_an_answer_is_put_into_words(
    folder: Path, pool: Pool, name: str, message: str
) -> None:
    first, second = answers(pool, task(folder, name), task(folder, "fine", 1))
    assert first.message is None
    assert str(first.error) == message
    assert second.message is not None
    assert second.message["ok"]


def test_a_worker_is_used_again_and_its_output_is_told_apart(folder: Path, pool: Pool) -> None:
    first, second = answers(pool, task(folder, "talks"), task(folder, "fine", 1))
    assert (first.output, second.output) == ("hello\n", "")


def test_a_dead_worker_is_called_what_its_task_says(folder: Path, pool: Pool) -> None:
    given = Task(0, ("", ""), {"op": "collect", "path": str(folder / "exits.py")}, "the reader")
    assert str(answers(pool, given)[0].error) == "the reader ended with exit code 7"


def test_there_are_never_more_workers_than_jobs(folder: Path) -> None:
    counts = []
    groups = ["a", "a", "a", "b", "b", "c"]
    tasks = [task(folder, "fine", n, group) for n, group in enumerate(groups)]
    done = []
    with Pool(2, os.environ) as pool:
        pool.warm(5)
        for kind, which, answer in pool.run(tasks):
            counts.append(len(pool._workers))
            if kind == "done" and answer is not None and answer.message is not None:
                done.append(which.label)
    assert sorted(done) == list(range(len(tasks)))
    assert max(counts) == 2


def test_workers_are_stopped_when_the_caller_goes_away_early(folder: Path) -> None:
    with Pool(2, os.environ) as pool:
        for _ in pool.run([task(folder, "fine", n) for n in range(3)]):
            break
        workers = [worker._process for worker in pool._workers]
    assert workers
    assert all(process.returncode == -signal.SIGKILL for process in workers)


@pytest.mark.parametrize(
    ("waiting", "idle", "busy", "chosen"),
    [
        ({"a": 1, "b": 3}, [], [], "b"),
        ({"a": 2, "b": 3}, [], ["b"], "a"),
        ({"a": 1, "b": 3}, ["a"], [], "a"),
        ({"a": 1, "b": 3}, ["c"], [], "b"),
        ({"a": 1, "b": 9}, [], ["b"], "b"),
    ],
)
def test_the_group_that_is_most_behind_is_served_next(
    waiting: dict[str, int], idle: list[str], busy: list[str], chosen: str
) -> None:
    class Fake:
        def __init__(self, name: str) -> None:
            self.group = ("sm_90a", name)

    tasks: Any = {("sm_90a", name): deque(range(count)) for name, count in waiting.items()}
    fakes: Any = [Fake(name) for name in idle]
    others: Any = [Fake(name) for name in busy]
    assert Pool._next_group(tasks, fakes, others) == ("sm_90a", chosen)


def test_a_worker_that_cannot_be_started_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ToolError, match="cannot be started"):
        Worker({})
    assert len(os.listdir("/proc/self/fd")) == before


def test_workers_leave_no_descriptor_open(folder: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with Pool(2, os.environ) as pool:
        answers(pool, task(folder, "fine"), task(folder, "exits", 1, "b"))
    assert len(os.listdir("/proc/self/fd")) == before
