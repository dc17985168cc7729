"""Have SIGTERM and SIGHUP end a run as Ctrl-C does, with everything cleaned up."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_UNHANDLED = (signal.SIG_DFL, signal.default_int_handler)
_DEAF_S = 10.0
"""Longer than a run takes to end its workers and to say what is left."""


@contextmanager
def as_interrupts() -> Iterator[None]:
    """Raise `KeyboardInterrupt` once for these signals, unless somebody handles or ignores them.

    Signals after the first are ignored until the process has ended: they must not interrupt what
    ends the workers. After ten seconds another signal counts, in case the first was lost.
    """
    # Python lets only the main thread set handlers.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    # nohup ignores SIGHUP, and a program that calls `main` may have handlers: both are left alone.
    ours = [number for number, handler in before.items() if handler in _UNHANDLED]
    first = _First()
    for number in ours:
        signal.signal(number, first)
    try:
        yield
    finally:
        for number in ours:
            # Python restores its own handlers long before the process has ended, but not this.
            signal.signal(number, signal.SIG_IGN if first.came else before[number])


@contextmanager
def deferred() -> Iterator[None]:
    """Have a first signal raise `KeyboardInterrupt` at the end of the block, not inside.

    What the block writes is whole then. A second signal ends it at once: nobody may be reading.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not isinstance(handler, _First):
        yield
        return
    handler.defers = True
    try:
        yield
    finally:
        handler.defers = False
    handler.catch_up()


class _First:
    """A handler that raises `KeyboardInterrupt` for the first of several signals."""

    def __init__(self) -> None:
        self.defers = False
        self._came_s: float | None = None
        self._deferred = False

    @property
    def came(self) -> bool:
        """Tell whether there was a signal."""
        return self._came_s is not None

    def catch_up(self) -> None:
        """Raise what was deferred."""
        if self._deferred:
            self._deferred = False
            raise KeyboardInterrupt

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if self.defers and self._came_s is None:
            self._came_s, self._deferred = now_s - _DEAF_S, True
            return
        if self._came_s is None or now_s - self._came_s > _DEAF_S:
            self._came_s = now_s
            raise KeyboardInterrupt
