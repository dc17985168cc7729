"""Worker processes: start them, feed them, notice when one dies, stop them all.

Workers are grouped by architecture (Mosaic takes one a process) and by the spec's folder (whose
modules would clash with those of another). A worker that dies takes its request with it and
nothing else.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, Any

from pallasc.compiler.messages import decode, encode
from pallasc.errors import CompileError, ToolError

_TAIL_BYTES = 4000
_END_S = 10.0

Group = tuple[str, str]
"""Architecture and folder of the spec."""


@dataclass(frozen=True, slots=True)
class Task:
    """A request to a worker of a group.

    Attributes:
        label: for the caller to know it by.
        group: a worker serves one group only.
        message: what the worker is sent.
        doing: what a worker that dies meanwhile is called.
    """

    label: int
    group: Group
    message: Mapping[str, Any]
    doing: str = "the compiling process"


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a task: the worker's answer, or the error that took its place.

    `output` is the tail of what the worker wrote meanwhile.
    """

    task: Task
    message: dict[str, Any] | None
    error: CompileError | None
    output: str


class Worker:
    """One worker process.

    Args:
        environment: its environment variables.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.log: IO[bytes] = tempfile.TemporaryFile(prefix="pallasc-worker-")  # noqa: SIM115
        requests_read, requests_write = os.pipe()
        answers_read, answers_write = os.pipe()
        os.set_blocking(answers_read, False)
        self._requests = os.fdopen(requests_write, "wb", buffering=0)
        self.answers = answers_read
        self._partial = b""
        self._start = 0
        self.group: Group | None = None
        self.task: Task | None = None
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "pallasc.compiler.worker",
                 str(requests_read), str(answers_write), str(os.getpid())],
                pass_fds=(requests_read, answers_write), env=dict(environment),
                stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._close()
            raise ToolError(f"a compiling process cannot be started: {error}") from error
        finally:
            os.close(requests_read)
            os.close(answers_write)
        self.ended = _process_descriptor(self._process.pid)

    @property
    def descriptors(self) -> list[int]:
        """What becomes readable when the worker answers or ends."""
        return [self.answers] if self.ended is None else [self.answers, self.ended]

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; a worker that is gone is noticed when its answer is read."""
        with contextlib.suppress(BrokenPipeError):
            data = encode(message)
            while data:
                data = data[self._requests.write(data) :]

    def assign(self, task: Task) -> None:
        """Give the worker a task."""
        if self.task is not None:
            self._start = os.fstat(self.log.fileno()).st_size
        self.group, self.task = task.group, task
        self.send(task.message)

    def read(self) -> bytes | None:
        """Return a whole answer, b"" if there is none yet, None if the worker is gone."""
        # Somebody whom it started may hold the pipe open after its end.
        ended = self._process.poll() is not None
        while True:
            try:
                data = os.read(self.answers, 1 << 20)
            except BlockingIOError:
                return None if ended else b""
            if not data:
                return None
            self._partial += data
            line, newline, rest = self._partial.partition(b"\n")
            if newline:
                self._partial = rest
                return line

    def output(self) -> str:
        """Return the tail of what it wrote since its task began."""
        end = os.fstat(self.log.fileno()).st_size
        start = max(self._start, end - _TAIL_BYTES)
        return os.pread(self.log.fileno(), end - start, start).decode("utf-8", "replace")

    def ending(self) -> str:
        """Return how the process ended, in words."""
        try:
            code = self._process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            return "closed its end of the pipe"
        if code >= 0:
            return f"ended with exit code {code}"
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"

    def stop(self) -> None:
        """Kill the process and what it started, and wait for it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._close()
        if self.ended is not None:
            os.close(self.ended)

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            self._requests.close()
        os.close(self.answers)
        self.log.close()


@dataclass(slots=True)
class Pool:
    """At most `jobs` workers at a time; use it as a context manager.

    Args:
        jobs: how many workers run at the same time.
        environment: of the workers.
        context: the message that every worker gets first, None until it is known.
    """

    jobs: int
    environment: Mapping[str, str]
    context: Mapping[str, Any] | None = None
    _workers: list[Worker] = field(default_factory=list)

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self._workers:
            self._workers.pop().stop()

    def warm(self, count: int) -> None:
        """Start workers that import JAX while the caller is still getting ready."""
        for _ in range(min(count, self.jobs)):
            worker = Worker(self.environment)
            self._workers.append(worker)
            worker.send({"op": "warm"})

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[str, Task, Answer | None]]:
        """Carry out tasks; yields ("started", task, None) and ("done", task, answer)."""
        waiting: dict[Group, deque[Task]] = {}
        for task in tasks:
            waiting.setdefault(task.group, deque()).append(task)
        fresh = list(self._workers)
        with selectors.DefaultSelector() as selector:
            busy: list[Worker] = []
            while waiting or busy:
                while waiting and len(busy) < self.jobs:
                    task = self._start(waiting, fresh, busy, selector)
                    yield "started", task, None
                for worker in dict.fromkeys(key.data for key, _ in selector.select()):
                    answer = _receive(worker)
                    if answer is None:
                        continue
                    for descriptor in worker.descriptors:
                        selector.unregister(descriptor)
                    busy.remove(worker)
                    self._keep(worker, answer, waiting, fresh)
                    yield "done", answer.task, answer

    def _start(
        self,
        waiting: dict[Group, deque[Task]],
        fresh: list[Worker],
        busy: list[Worker],
        selector: selectors.BaseSelector,
    ) -> Task:
        group = self._next_group(waiting, fresh, busy)
        task = waiting[group].popleft()
        if not waiting[group]:
            del waiting[group]
        worker = self._worker(group, fresh, waiting)
        busy.append(worker)
        for descriptor in worker.descriptors:
            selector.register(descriptor, selectors.EVENT_READ, worker)
        worker.assign(task)
        return task

    @staticmethod
    def _next_group(
        waiting: dict[Group, deque[Task]], fresh: list[Worker], busy: list[Worker]
    ) -> Group:
        """Choose a group: one that an idle worker already serves, else the most behind."""
        for worker in fresh:
            if worker.group in waiting:
                return worker.group
        serving = [worker.group for worker in busy]
        return max(waiting, key=lambda g: len(waiting[g]) / (1 + serving.count(g)))

    def _worker(
        self, group: Group, idle: list[Worker], waiting: Mapping[Group, deque[Task]]
    ) -> Worker:
        for wanted in (group, None):
            for worker in idle:
                if worker.group == wanted:
                    idle.remove(worker)
                    return self._introduced(worker)
        for worker in [worker for worker in idle if worker.group not in waiting]:
            idle.remove(worker)
            self._stop(worker)
        worker = Worker(self.environment)
        self._workers.append(worker)
        return self._introduced(worker)

    def _introduced(self, worker: Worker) -> Worker:
        if worker.group is None and self.context is not None:
            worker.send(self.context)
        return worker

    def _keep(
        self,
        worker: Worker,
        answer: Answer,
        waiting: dict[Group, deque[Task]],
        idle: list[Worker],
    ) -> None:
        """Keep a worker that lives and whose group has more to do; stop it otherwise.

        One whose settings the user's code has changed would compile the next variant with them.
        """
        usable = answer.message is not None and not answer.message.get("spoilt")
        if usable and worker.group in waiting:
            idle.append(worker)
        else:
            self._stop(worker)

    def _stop(self, worker: Worker) -> None:
        self._workers.remove(worker)
        worker.stop()


def _process_descriptor(process: int) -> int | None:
    """Return a descriptor that becomes readable when a process ends, where there are such."""
    try:
        return os.pidfd_open(process)
    except OSError:
        return None


def _receive(worker: Worker) -> Answer | None:
    """Return the answer of a worker that has written or ended, None if there is more to come."""
    task = worker.task
    if task is None:
        raise CompileError("a worker answered without having been asked")
    line = worker.read()
    if line == b"":
        return None
    if line is None:
        output = worker.output()
        return Answer(task, None, CompileError(_death(task, worker.ending(), output)), output)
    try:
        return Answer(task, decode(line), None, worker.output())
    except ValueError:
        error = CompileError("the worker process answered with something that is no message")
        return Answer(task, None, error, worker.output())


def _death(task: Task, ending: str, output: str) -> str:
    """Say how a worker died, with the compiler's last word where it left one."""
    said = [line for line in output.splitlines() if "ERROR" in line or "rror:" in line]
    last = f": {said[-1].strip()}" if said else ""
    return f"{task.doing} {ending}{last}"
