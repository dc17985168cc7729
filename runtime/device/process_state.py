"""The runtime's state for this process, in one object; a forked child gets a new one.

CUDA does not work in the child of a process that has opened the driver, and a lock that another
thread holds at the time of the fork is never released there. So nothing is repaired: the object is
replaced as a whole, with its tables and its lock.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet


class Forgetful(Protocol):
    """An object of the user's that survives a fork, and holds driver handles."""

    def forget(self) -> None:
        """Drop everything that was created before the fork."""


@dataclass(eq=False, slots=True)
class ProcessState:
    """Tables and lock of one process.

    Attributes:
        is_forked: the driver was opened in the process that this process was forked from.
        is_opening: a thread is currently opening the driver.
        driver: the opened `Driver`, None until then.
        lock: held while creating anything that exists once per process; reentrant, since creating
            a program creates libraries, streams and constants.
        devices: each `Device` by ordinal.
        capabilities: compute capabilities of all GPUs, None until first requested.
        models: a `Device` of each GPU model, None until first requested.
        streams: the handle of pallasc's own stream by ordinal.
        spare_events: events that no moment refers to any more, by ordinal.
        constants: addresses by ordinal and digest.
        turns, workspaces, uses: by stream, for devices without memory pools; see `memory`.
        libraries: loaded cubins by digest; see `calls.plain`.
        library: the C library, False if it is not used, None until first requested.
        programs: by artifact and ordinal; see `calls.program`.
        routes: the routes that have programs; see `calls.launch`.
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
    library: Any = None
    programs: WeakKeyDictionary[Any, dict[int, Any]] = field(default_factory=WeakKeyDictionary)
    routes: WeakSet[Forgetful] = field(default_factory=WeakSet)


now = ProcessState()
"""The state of this process. Always read it as `process_state.now`, since a fork replaces it."""


def _after_fork() -> None:
    # A thread that was opening the driver does not exist in the child: the driver is half open.
    start_anew(is_forked=now.is_forked or now.is_opening or now.driver is not None)


def start_anew(*, is_forked: bool) -> None:
    """Replace the state with a new one, as in a process that has used nothing yet."""
    global now
    routes = now.routes
    now = ProcessState(is_forked=is_forked, routes=routes)
    for route in list(routes):
        route.forget()


# Registered on import, before anything can hold the lock.
os.register_at_fork(after_in_child=_after_fork)
