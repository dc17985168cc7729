"""What workers are asked, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pallasc.compiler.workers.messages import Reply, Request
from pallasc.errors import Location, PallascError

Group = tuple[str, str, tuple[tuple[str, str | None], ...]]
"""Architecture, the folders of the spec, as in `PATH`, and the variables that it declares."""


@dataclass(frozen=True, slots=True)
class Task:
    """A request to a worker of a group.

    Attributes:
        label: for the caller to know it by.
        group: a worker serves one group only.
        request: what the worker is asked, or what makes that when it is sent.
        doing: what a worker that dies meanwhile is called.
    """

    label: int
    group: Group
    request: Request | Callable[[], Request]
    doing: str = "the compiling process"

    def make_request(self) -> Request:
        """Return what the worker is asked.

        Raises:
            PallascError: there is something wrong with what it is about.
        """
        return self.request() if callable(self.request) else self.request


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a task: the worker's reply, or the error that took its place.

    Attributes:
        task: the task.
        reply: the worker's reply, None if there is none.
        error: why there is none.
        output: the tail of what the worker wrote meanwhile.
        place: where in the user's files it was when it died or was stopped, if that is known.
        repeat: whether what its worker did before may be to blame.
        stray_bytes: what came through the worker's channel beside the reply, and was ignored.
    """

    task: Task
    reply: Reply | None
    error: PallascError | None
    output: str
    place: Location | None = None
    repeat: bool = False
    stray_bytes: int = 0
