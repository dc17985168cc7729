"""Threads that may be left behind: a request that hangs must not keep a process from ending.

The threads of `concurrent.futures` are joined when Python ends; these are daemons.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
_Task = tuple["Future[Any]", Callable[[], Any]]


class Threads:
    """Runs functions, up to `count` at a time; a thread is started when one is needed."""

    def __init__(self, count: int = 8) -> None:
        self._count = count
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._started = 0
        self._open = 0
        self._lock = threading.Lock()

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Run a function; its result or exception is in the future."""
        future: Future[T] = Future()
        with self._lock:
            self._open += 1
            if self._started < min(self._count, self._open):
                self._started += 1
                name = f"pallasc-remote-{self._started}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
        self._tasks.put((future, function))
        return future

    def close(self) -> None:
        """End the threads that have nothing to do; the others are left behind."""
        with self._lock:
            for _ in range(self._started):
                self._tasks.put(None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, function = task
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:  # noqa: BLE001 - is raised where it is waited for
                    future.set_exception(error)
            with self._lock:
                self._open -= 1
            del task, future, function
