"""What compiles on a dask worker: slots, each with one compiling process under its warden.

dask runs a task in a thread of its worker. The compiling processes belong to threads of ours, since
a process ends with the thread that started it (PR_SET_PDEATHSIG), and outlast the task, since they
have imported JAX. Those that have had nothing to do for a while end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import NamedTuple

from pallasc.compiler.workers.messages import Answer, Request, Task
from pallasc.compiler.workers.pool import Pool

IDLE_S = 60.0
"""How long a compiling process waits for more to do."""


class Cancelled(Exception):
    """Nobody waits for a task any more."""


class Timed(NamedTuple):
    """An answer, and how many seconds it took, without the start of its process."""

    answer: Answer
    seconds: float


class _Order(NamedTuple):
    """Tasks to carry out; without any, a process is started that imports JAX."""

    tasks: Sequence[Task]
    context: Request | None
    is_wanted: Callable[[], bool]
    result: Future[list[Timed]]


class Slot:
    """One compiling process at a time, in a thread of its own.

    Args:
        open_pool: returns the pool that the slot compiles with.
        on_end: called when the slot ends because it had nothing to do; False keeps it.
    """

    def __init__(self, open_pool: Callable[[], Pool], on_end: Callable[[Slot], bool]) -> None:
        self.group: object = None
        self._open_pool, self._on_end = open_pool, on_end
        self._orders: SimpleQueue[_Order | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="pallasc-slot", daemon=True)
        self._thread.start()

    def warm(self) -> None:
        """Start a process that imports JAX while the caller still prepares."""
        self._orders.put(_Order((), None, lambda: True, Future()))

    def carry_out(
        self, tasks: Sequence[Task], context: Request | None, is_wanted: Callable[[], bool]
    ) -> list[Timed]:
        """Carry out tasks of one group, one after the other.

        Args:
            tasks: the tasks.
            context: what a process is told first.
            is_wanted: tells whether somebody still waits for the answers.

        Raises:
            Cancelled: nobody wants their answers any more; what was compiling has ended.
        """
        self.group = tasks[0].group
        order = _Order(tasks, context, is_wanted, Future())
        self._orders.put(order)
        return order.result.result()

    def end(self, *, wait_s: float = 0.0) -> None:
        """End its process."""
        self._orders.put(None)
        if wait_s:
            self._thread.join(wait_s)

    def _serve(self) -> None:
        while (order := self._next()) is not None:
            with self._open_pool() as pool:
                while order is not None and self._answer(pool, order):
                    order = self._next(IDLE_S)
            if order is None:
                return

    def _next(self, timeout_s: float | None = None) -> _Order | None:
        try:
            return self._orders.get(timeout=timeout_s)
        except Empty:
            return None if self._on_end(self) else self._orders.get()

    @staticmethod
    def _answer(pool: Pool, order: _Order) -> bool:
        """Carry out an order; return whether the pool can go on."""
        try:
            order.result.set_result(list(_timed(pool, order)))
        except BaseException as error:  # noqa: BLE001 - the thread that waits gets it
            order.result.set_exception(error)
            return False
        return True


def _timed(pool: Pool, order: _Order) -> list[Timed]:
    if not order.tasks:
        pool.warm(1)
    answers, spent_s = [], pool.spent_s
    pool.context = order.context
    for kind, _, answer in pool.run(order.tasks):
        if kind == "tick" and not order.is_wanted():
            raise Cancelled
        if kind == "done" and answer is not None:
            answers.append(Timed(answer, pool.spent_s - spent_s))
            spent_s = pool.spent_s
    return answers
