"""Watch busy workers: their answers, the time that each takes, the memory that it holds."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from pallasc.compiler.workers import failures
from pallasc.compiler.workers.messages import Answer, Failed, Task
from pallasc.compiler.workers.warden import (
    held_bytes,
    held_together_bytes,
    recent_parents,
)
from pallasc.compiler.workers.worker_process import Worker
from pallasc.errors import CompileError

CHECK_S = 0.25
"""How long a worker may go unwatched."""
_SHARED_S = 0.2
"""How old a list of all processes may be, which takes milliseconds to read."""
_SHARE = 0.02
"""The part of its time that the build may spend watching, with very many processes."""
_START_S = 120.0
"""How long a worker may take to start, in addition to the time for its task."""
_CLOSED_S = 30.0
"""How long a process whose pipe has closed may take to end, which says more of what happened."""
_REPLACED_AT = 0.75
"""A worker that still holds this part of its limit after a task is replaced."""
_RESERVED_BYTES = 512 << 20
_RESERVED_BYTES_PER_CORE = 32 << 20
TAIL_BYTES = 4000
_STACKS_BYTES = 64 << 10


@dataclass(slots=True)
class Limits:
    """The limits of a worker.

    Attributes:
        timeout_s: time for a task, None for no limit.
        memory_bytes: memory that it and its descendants may hold, None for no limit.
        grace_s: how much longer a worker may take that keeps to the time itself.
    """

    timeout_s: float | None = None
    memory_bytes: int | None = None
    grace_s: float = 0.0

    def data_bytes(self) -> int:
        """Return the limit that the kernel sets on each process (RLIMIT_DATA), 0 for none.

        It stops what allocates faster than the watch looks. The kernel also counts memory that is
        only reserved, such as the stacks of the threads that XLA starts for each core.
        """
        if self.memory_bytes is None:
            return 0
        reserved = _RESERVED_BYTES + (os.cpu_count() or 1) * _RESERVED_BYTES_PER_CORE
        return self.memory_bytes + reserved

    def are_near(self, worker: Worker) -> bool:
        """Tell whether a worker holds so much after a task that it should be replaced."""
        if self.memory_bytes is None or not worker.process:
            return False
        return held_bytes(worker.process) > _REPLACED_AT * self.memory_bytes


@dataclass(slots=True)
class Watch:
    """Looks after busy workers from time to time.

    Args:
        limits: those of each worker.
    """

    limits: Limits
    _next_s: float = field(default_factory=time.monotonic)

    def pause_s(self) -> float:
        """Return how many seconds may pass until the next look."""
        return max(0.0, self._next_s - time.monotonic())

    def look(self, workers: Sequence[Worker]) -> list[tuple[Worker, Answer]]:
        """Return the answers of workers that have died or exceeded a limit and must be stopped."""
        began_s = time.thread_time()
        held = self._held(workers)
        answers = []
        for worker in workers:
            worker.cut_logs()
            answer = receive(worker) or self._stopped(worker, held.get(worker, 0))
            if answer is not None:
                answers.append((worker, answer))
        spent_s = time.thread_time() - began_s
        self._next_s = time.monotonic() + max(CHECK_S, spent_s / _SHARE)
        return answers

    def _held(self, workers: Sequence[Worker]) -> dict[Worker, int]:
        """Return how much memory each worker and its descendants hold."""
        limit = self.limits.memory_bytes
        if limit is None:
            return {}
        table, held = recent_parents(_SHARED_S), {}
        for worker in workers:
            tree = worker.tree(table)
            held[worker] = sum(map(held_bytes, tree))
            # Forked processes share pages: only a sum over the limit is worth the slow count.
            if held[worker] > limit and len(tree) > 1:
                held[worker] = held_together_bytes(tree)
        return held

    def _stopped(self, worker: Worker, held: int) -> Answer | None:
        """Return the answer of a worker that exceeds a limit now, with its stack if possible."""
        task, limits = worker.task, self.limits
        if task is None:
            return None
        late = limits.timeout_s is not None and _is_late(worker, limits.timeout_s + limits.grace_s)
        if limits.memory_bytes is not None and held > limits.memory_bytes:
            error = failures.too_large(task.doing, held, limits.memory_bytes)
        elif late:
            error = _late_error(worker, task, limits)
        elif worker.gone_s is not None and time.monotonic() > worker.gone_s + _CLOSED_S:
            error = failures.died(task.doing, worker.ending(), "")
        else:
            return None
        worker.end_with_stack()
        return _failure(worker, task, error, repeat=not late)


def _late_error(worker: Worker, task: Task, limits: Limits) -> CompileError:
    timeout_s = limits.timeout_s or 0.0
    if worker.seconds() is None:
        return failures.never_ready(task.doing, timeout_s + limits.grace_s + _START_S)
    return failures.too_slow(task.doing, timeout_s)


def _is_late(worker: Worker, timeout_s: float) -> bool:
    seconds = worker.seconds()
    if seconds is None:
        return time.monotonic() > worker.began_s + timeout_s + _START_S
    return seconds > timeout_s


def receive(worker: Worker) -> Answer | None:
    """Return what a worker has answered, or how it died, None if it is still at work."""
    message, task, request = worker.hear(), worker.task, worker.request
    if task is None or request is None:
        return None
    if message is None:
        if not worker.is_over():
            return None
        error = failures.died(task.doing, worker.ending(), worker.written(TAIL_BYTES))
        return _failure(worker, task, error)
    try:
        reply = request.read_reply(message)
    except ValueError:
        return _failure(worker, task, failures.garbled(task.doing))
    stray = worker.take_stray_bytes()
    return Answer(
        task,
        reply,
        None,
        worker.written(TAIL_BYTES),
        repeat=isinstance(reply, Failed) and reply.repeat,
        stray_bytes=stray,
    )


def _failure(worker: Worker, task: Task, error: CompileError, *, repeat: bool = True) -> Answer:
    output = worker.written(_STACKS_BYTES)
    place = failures.place(output, task.group[1].split(os.pathsep))
    return Answer(
        task,
        None,
        error,
        failures.shortened(output)[-TAIL_BYTES:],
        place,
        repeat and worker.served > 0,
    )
