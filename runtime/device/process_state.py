"""What the runtime keeps for this process, in one object: the child of a fork gets a new one.

CUDA does not work in the child of a process that has opened the driver, and a lock that another
thread holds at the moment of the fork is never released there. So nothing is repaired: the object
is replaced as a whole, with its tables and its lock.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet


class Forgetful(Protocol):
    """Something of a user's that lives on in the child, and holds handles of the driver."""

    def forget(self) -> None:
        """Drop everything that was made in the process that this process was forked from."""


@dataclass(eq=False, slots=True)
class ProcessState:
    """Tables and lock of one process.

    Attributes:
        is_forked: the driver was opened in the process that this process was forked from.
        is_opening: a thread opens the driver at this moment.
        driver: the opened `Driver`, None before.
        lock: held while something is made that there is once: reentrant, since making a program
            makes libraries, streams and constants.
        devices: each `Device` by ordinal.
        capabilities: compute capabilities of all GPUs, None before they were asked for.
        models: a `Device` of each model of GPU, None before they were asked for.
        streams: the handle of pallasc's own stream by ordinal.
        spare_events: events that no moment refers to any more, by ordinal.
        constants: addresses by ordinal and digest.
        turns, workspaces, uses: by stream, for devices without memory pools; see `memory`.
        libraries: loaded cubins by digest; see `calls.program`.
        programs: by artifact and ordinal; see `calls.program`.
        routes: those with plans; see `calls.launch`.
    """

    is_forked: bool = False
    is_opening: bool = False
    driver: Any = None
    lock: threading.RLock = field(default_factory=threading.RLock)
    devices: dict[int, Any] = field(default_factory=dict)
    capabilities: frozenset[tuple[int, int]] | None = None
    models: tuple[Any, ...] | None = None
    streams: dict[int, int] = field(default_factory=dict)
    spare_events: dict[int, list[Any]] = field(default_factory=dict)
    constants: dict[tuple[int, str], int] = field(default_factory=dict)
    turns: dict[tuple[int, ...], threading.RLock] = field(default_factory=dict)
    workspaces: dict[tuple[int, ...], tuple[int, int]] = field(default_factory=dict)
    uses: dict[tuple[int, ...], Any] = field(default_factory=dict)
    libraries: dict[str, Any] = field(default_factory=dict)
    programs: WeakKeyDictionary[Any, dict[int, Any]] = field(default_factory=WeakKeyDictionary)
    routes: WeakSet[Forgetful] = field(default_factory=WeakSet)


now = ProcessState()
"""The state of this process. It is read anew at each use, as `process_state.now`."""


def _after_fork() -> None:
    # A thread that was opening the driver does not exist in the child: the driver is half open.
    start_anew(is_forked=now.is_forked or now.is_opening or now.driver is not None)


def start_anew(*, is_forked: bool) -> None:
    """Replace the state by that of a process that has used nothing yet."""
    global now
    routes = now.routes
    now = ProcessState(is_forked=is_forked, routes=routes)
    for route in list(routes):
        route.forget()


# Registered on import, before anything can hold the lock.
os.register_at_fork(after_in_child=_after_fork)
