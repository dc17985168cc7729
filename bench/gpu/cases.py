"""The cases in which the stand-in driver is a model: what they are called, how they run.

A case yields a label and what the driver answered, one after the other: a code, a value, a text.
It runs in a process of its own, since some end the context, and a few may end the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ground import Ground

Answers = Iterator[tuple[str, Any]]


@dataclass(frozen=True)
class Case:
    """A case.

    Attributes:
        name: what is provoked.
        run: provokes it.
        environment: variables that its process has more.
        starts: whether the driver is started, and a context current, before it.
    """

    name: str
    run: Callable[[Ground], Answers]
    environment: Mapping[str, str] = field(default_factory=dict)
    starts: bool = True


CASES: dict[str, Case] = {}


def case(
    name: str, *, starts: bool = True, **environment: str
) -> Callable[[Callable[[Ground], Answers]], Callable[[Ground], Answers]]:
    """Make a function a case."""

    def register(run: Callable[[Ground], Answers]) -> Callable[[Ground], Answers]:
        CASES[name] = Case(name, run, environment, starts)
        return run

    return register
