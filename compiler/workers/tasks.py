"""What workers are asked, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pallasc.errors import Location, PallascError

Group = tuple[str, str, tuple[tuple[str, str | None], ...]]
"""Architecture, the folders of the spec, as in `PATH`, and the variables that it declares."""


@dataclass(frozen=True, slots=True)
class Task:
    """A request to a worker of a group.

    Attributes:
        label: for the caller to know it by.
        group: a worker serves one group only.
        message: what the worker is sent, or what makes that when it is sent.
        doing: what a worker that dies meanwhile is called.
    """

    label: int
    group: Group
    message: Mapping[str, Any] | Callable[[], Mapping[str, Any]]
    doing: str = "the compiling process"

    def make_message(self) -> Mapping[str, Any]:
        """Return what the worker is sent.

        Raises:
            PallascError: there is something wrong with what it is about.
        """
        return self.message() if callable(self.message) else self.message


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a task: the worker's answer, or the error that took its place.

    Attributes:
        task: the task.
        message: the worker's answer, None if there is none.
        error: why there is none.
        output: the tail of what the worker wrote meanwhile.
        place: where in the user's files it was when it died or was stopped, if that is known.
        repeat: whether what its worker did before may be to blame.
        stray_bytes: what came through the worker's channel beside the answer, and was ignored.
    """

    task: Task
    message: dict[str, Any] | None
    error: PallascError | None
    output: str
    place: Location | None = None
    repeat: bool = False
    stray_bytes: int = 0
