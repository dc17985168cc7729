"""Tasks for workers, and their outcomes."""

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
        label: the caller's number for it.
        group: a worker serves a single group.
        request: for the worker, or a function that makes it when it is sent.
        doing: what messages call the worker.
    """

    label: int
    group: Group
    request: Request | Callable[[], Request]
    doing: str = "the compiling process"

    def make_request(self) -> Request:
        """Return the request for the worker.

        Raises:
            PallascError: it cannot be made.
        """
        return self.request() if callable(self.request) else self.request


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a task: the worker's reply, or the error that took its place.

    Attributes:
        task: the task.
        reply: the worker's reply, None if there is none.
        error: why there is no reply.
        output: the end of the worker's output meanwhile.
        place: where in the user's files it was when it died or was stopped, if that is known.
        repeat: whether an earlier task of its worker may be to blame.
        stray_bytes: ignored bytes that came through the worker's channel beside the reply.
    """

    task: Task
    reply: Reply | None
    error: PallascError | None
    output: str
    place: Location | None = None
    repeat: bool = False
    stray_bytes: int = 0
