"""What a build has for a cluster: items, each a task, and the pieces of work that they travel in.

Variants that take a moment travel alone, shorter ones together, and one with which something went
wrong alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pallasc.compiler.workers.messages import Group, Request, Task
from pallasc.errors import CompileError, PallascError, ToolError

_PIECE_S = 0.25
"""How long a piece of work should take; a variant that takes longer travels alone."""
_MOST_TOGETHER = 64
_AHEAD, _LEAST_AHEAD, _MOST_AHEAD = 4, 16, 1000
"""How many pieces of work are under way: for each thread and beside them at first, and twice as
many as were done later, so that their pace is known before much is sent."""
_MOST_BROKEN = 3
"""How often a worker may fail at a variant by itself."""
_MOST_DEATHS = 3
"""How often workers may die over a variant."""


@dataclass(slots=True)
class Item:
    """A task on its way.

    Attributes:
        task: the task.
        request: its request, None until it is sent.
        refused: the workers whose results were refused, with the reason.
        broken: why dask gave it up, each time.
        deaths: how often a worker has died that had begun it.
    """

    task: Task
    request: Request | None = None
    refused: dict[str, str] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    deaths: int = 0

    @property
    def goes_alone(self) -> bool:
        """Tell whether something has gone wrong with it, which must not happen to others."""
        return bool(self.refused or self.broken or self.deaths)

    def prepare(self) -> Request:
        """Return the request.

        Raises:
            PallascError: it cannot be made.
        """
        if self.request is None:
            self.request = self.task.make_request()
        return self.request

    def give_up(
        self, why: str, *, alone: bool, by_death: bool, address: str
    ) -> PallascError | None:
        """Note that dask gave it up; return the error if it is not tried once more.

        Args:
            why: dask's reason.
            alone: whether it travelled alone, so that it is the cause.
            by_death: whether workers died over and over.
            address: the scheduler, for the message.
        """
        self.broken.append(why)
        if by_death and alone:
            return deadly(why)
        if not alone or len(self.broken) < _MOST_BROKEN:
            return None
        return ToolError(
            f"the workers of {address} fail at it: {why}",
            hint="They need what compiles here: the same pallasc with its extras cuda13 "
            "and dask, in the same versions.",
        )


@dataclass(slots=True)
class Piece:
    """Work that was sent.

    Attributes:
        items: what it consists of.
        workers: the workers that it was restricted to, None for all.
        brings: the worker that it takes the session to, "" for none.
        asks: the worker that had refused and is asked again with it, "" for none.
        began_s: when a worker began, None before.
    """

    items: Sequence[Item]
    workers: Sequence[str] | None = None
    brings: str = ""
    asks: str = ""
    began_s: float | None = None

    def note_death(self) -> CompileError | None:
        """Note that a worker died over it; return the error if that was once too often."""
        for item in self.items:
            item.deaths += 1
        if len(self.items) > 1 or self.items[0].deaths < _MOST_DEATHS:
            return None
        return deadly(f"{self.items[0].deaths} times")


def deadly(text: str) -> CompileError:
    """Return the error of a variant over which workers have died."""
    return CompileError(
        f"the cluster's workers died over and over while it was compiled there: {text}",
        hint="If they are short of memory, give each compiling process less with --memory.",
        kind="died",
    )


class Backlog:
    """The items that wait to be sent, by group, and how fast they go."""

    def __init__(self, tasks: Iterable[Task] = ()) -> None:
        self._waiting: dict[Group, deque[Item]] = {}
        self._seconds: float | None = None
        self._done = 0
        self.add(tasks)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, tasks: Iterable[Task]) -> None:
        """Append tasks to their groups."""
        for task in tasks:
            self._waiting.setdefault(task.group, deque()).append(Item(task))

    def put_back(self, items: Sequence[Item]) -> None:
        """Have items sent again, before all others of their groups."""
        for item in reversed(items):
            self._waiting.setdefault(item.task.group, deque()).appendleft(item)

    def take(self) -> list[Item]:
        """Remove and return what is sent together."""
        group = next(iter(self._waiting))
        waiting = self._waiting[group]
        items = [waiting.popleft()]
        most = 1
        if self._seconds is not None and not items[0].goes_alone:
            most = max(1, min(_MOST_TOGETHER, int(_PIECE_S / max(self._seconds, 1e-6))))
        while waiting and len(items) < most and not waiting[0].goes_alone:
            items.append(waiting.popleft())
        if not waiting:
            del self._waiting[group]
        return items

    def clear(self) -> list[Item]:
        """Remove and return all items."""
        waiting, self._waiting = self._waiting, {}
        return [item for items in waiting.values() for item in items]

    def pace(self, seconds: float) -> None:
        """Note how long an item took."""
        self._done += 1
        self._seconds = seconds if self._seconds is None else 0.8 * self._seconds + 0.2 * seconds

    def ahead(self, threads: int) -> int:
        """Return how many pieces of work may be under way on so many threads."""
        return max(_AHEAD * threads + _LEAST_AHEAD, min(2 * self._done, _MOST_AHEAD))
