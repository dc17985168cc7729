"""Pools of workers that execute the code that they are sent: the build's side of `fake_worker`."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pallasc.compiler.workers.messages import Reply, Request, Task
from pallasc.compiler.workers.pool import Pool
from pallasc.compiler.workers.worker_process import Worker

WHO = "import os; value = os.getpid()"
PATIENCE_S = 300.0
"""A limit of time that no task reaches, however loaded the machine is, without `pass_time`."""
BEGUN = "open(__file__ + '.begun', 'w').close()"
"""What a file executes where it begins to take too long."""


class Done(Reply, frozen=True, kw_only=True):
    value: object


class Do(Request, frozen=True, kw_only=True):
    reply: ClassVar[type[Reply]] = Done
    code: str


class Prepare(Do, frozen=True, kw_only=True):
    code: str = ""


def environment() -> dict[str, str]:
    """Return an environment in which `fake_worker` can be imported."""
    places = [os.environ.get("PYTHONPATH", ""), str(Path(__file__).parent)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}


def fakes(jobs: int = 1, **options: Any) -> Pool:
    """Return a pool of workers that execute the code that they are sent."""
    return Pool(jobs, environment(), program="fake_worker", **options)


def code(text: str, number: int = 0, group: str = "") -> Task:
    return Task(number, ("", group), Do(code=text))


def answers(pool: Pool, *tasks: Task) -> list[Reply]:
    """Return the replies, in the order of the tasks."""
    done = {task.label: reply for _, task, reply in pool.run(tasks) if task and reply is not None}
    return [done[label] for label in sorted(done)]


def value(reply: Reply) -> Any:
    """Return what the code of a task left."""
    assert isinstance(reply, Done), reply
    return reply.value


def values(pool: Pool, *tasks: Task) -> list[Any]:
    return [value(answer) for answer in answers(pool, *tasks)]


def pass_time(patch: pytest.MonkeyPatch, is_endless: Callable[[Worker], bool]) -> None:
    """Let tasks that are endless have begun an hour ago."""
    seconds = Worker.seconds
    patch.setattr(Worker, "seconds", lambda w: 3600.0 if is_endless(w) else seconds(w))
