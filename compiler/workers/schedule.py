"""Decide which group a free worker serves next, and whether a new worker pays."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from pallasc.compiler.workers.tasks import Group, Task

_START_S = 2.0
"""The assumed start of a worker, until it was measured: most of it is importing JAX."""


@dataclass(slots=True)
class Pace:
    """How long tasks and starts of workers take on average, in seconds."""

    tasks: int = 0
    tasks_s: float = 0.0
    starts: int = 0
    starts_s: float = 0.0

    def add_task(self, seconds: float) -> None:
        """Note how long a task took."""
        self.tasks, self.tasks_s = self.tasks + 1, self.tasks_s + seconds

    def add_start(self, seconds: float) -> None:
        """Note how long a worker took to get ready."""
        self.starts, self.starts_s = self.starts + 1, self.starts_s + seconds

    def pays(self, waiting: int, serving_s: Sequence[float]) -> bool:
        """Tell whether another worker for a group is worth its start.

        It is if, by the average time of tasks so far, tasks will still wait when it is ready. Tasks
        may take longer this time, so it is also worth it as soon as no worker has become free for
        as long as a start takes: waiting has then cost as much as starting would have.

        Args:
            waiting: tasks of the group that have not begun.
            serving_s: how long each worker of the group has been at its task.
        """
        if not serving_s or not self.tasks:
            return True
        start_s = self.starts_s / self.starts if self.starts else _START_S
        waiting_s = waiting * self.tasks_s / self.tasks
        return waiting_s > len(serving_s) * start_s or min(serving_s) > start_s


@dataclass(slots=True)
class Queue:
    """The tasks that wait, by group."""

    _waiting: dict[Group, deque[Task]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __contains__(self, group: object) -> bool:
        return group in self._waiting

    def add(self, tasks: Iterable[Task]) -> None:
        """Append tasks to their groups."""
        for task in tasks:
            self._waiting.setdefault(task.group, deque()).append(task)

    def put_back(self, task: Task) -> None:
        """Add a task before all others of its group."""
        self._waiting.setdefault(task.group, deque()).appendleft(task)

    def take(self, group: Group) -> Task:
        """Remove and return the next task of a group."""
        tasks = self._waiting[group]
        task = tasks.popleft()
        if not tasks:
            del self._waiting[group]
        return task

    def next_group(
        self,
        idle: Collection[Group | None],
        serving: Sequence[tuple[Group | None, float]],
        pace: Pace,
    ) -> Group | None:
        """Choose the group that is served next, None if starting a worker does not pay.

        A group that an idle worker serves comes first, then the group with the most tasks for each
        of its workers.

        Args:
            idle: the groups of idle workers, None for a worker that may serve any.
            serving: the groups of busy workers, and for how many seconds each has been busy.
            pace: how long tasks and starts take.
        """
        for group in idle:
            if group is not None and group in self._waiting:
                return group
        busy: dict[Group | None, list[float]] = {}
        for group, seconds in serving:
            busy.setdefault(group, []).append(seconds)
        by_need = sorted(
            self._waiting, key=lambda g: -len(self._waiting[g]) / (1 + len(busy.get(g, ())))
        )
        for group in by_need:
            if None in idle or pace.pays(len(self._waiting[group]), busy.get(group, ())):
                return group
        return None
