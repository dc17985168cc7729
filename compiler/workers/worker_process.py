"""A worker process as the build sees it: start it, send it requests, hear it, end it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from selectors import EVENT_READ, EVENT_WRITE
from typing import IO

from pallasc.cache.format import size
from pallasc.compiler.toolchain.toolkit import TOOLKIT
from pallasc.compiler.workers.channel import Frames, encode, key_line, make_key
from pallasc.compiler.workers.messages import Failed, Group, Reply, Request, Task
from pallasc.compiler.workers.warden import (
    SHOW_STACK,
    descendants,
    held_bytes,
    held_together_bytes,
    parents,
    recent_parents,
)
from pallasc.errors import CompileError, Location, PallascError, ToolError

LONGEST_BYTES = 64 << 20
_TAIL_BYTES = 256 << 10
_LEFT_OUT = b"[%d MB of output are left out]\n"


class Log:
    """An unnamed file to which a worker appends.

    Args:
        longest_bytes: `cut` shortens a longer file.
    """

    def __init__(self, longest_bytes: int = LONGEST_BYTES) -> None:
        self.file: IO[bytes] = tempfile.TemporaryFile(prefix="pallasc-worker-")  # noqa: SIM115
        self._longest_bytes = longest_bytes
        self._start = 0
        # The worker writes to the new end after a cut, not to its old offset.
        fcntl.fcntl(self.file, fcntl.F_SETFL, os.O_APPEND)

    @property
    def size(self) -> int:
        """The length of the file in bytes."""
        return os.fstat(self.file.fileno()).st_size

    def mark(self) -> None:
        """Forget the output so far."""
        self._start = self.size

    def tail(self, longest_bytes: int) -> str:
        """Return the end of the output since the mark."""
        end = self.size
        start = max(self._start, end - longest_bytes)
        return os.pread(self.file.fileno(), max(0, end - start), start).decode("utf-8", "replace")

    def cut(self) -> None:
        """Drop all but the end of a long file; concurrent output may be lost."""
        size = self.size
        if size <= self._longest_bytes:
            return
        end = os.pread(self.file.fileno(), _TAIL_BYTES, size - _TAIL_BYTES)
        os.ftruncate(self.file.fileno(), 0)
        self._start = 0
        os.write(self.file.fileno(), _LEFT_OUT % ((size - _TAIL_BYTES) // 1_000_000) + end)

    def close(self) -> None:
        """Close the file, which removes it."""
        self.file.close()


_SPLIT = re.compile(r"[\s,{}\udc80-\udcff]")


def temporary_folder() -> str:
    """Return the folder for temporary files, `/tmp` where Mosaic could not read its path.

    It contains the device library (`toolkit`), and Mosaic names it in a line of options for
    LLVM's passes, which is split at blanks, commas and braces, and has to be UTF-8.
    """
    folder = os.path.realpath(tempfile.gettempdir())
    return "/tmp" if _SPLIT.search(folder) else folder


def make_folder() -> Path:
    """Make the folder of a worker's temporary files; its warden removes it.

    Raises:
        ToolError: that fails.
    """
    try:
        return Path(tempfile.mkdtemp(prefix="pallasc-worker-", dir=temporary_folder()))
    except OSError as error:
        raise ToolError(
            f"no folder for temporary files can be made: {error}",
            hint="Choose another folder with TMPDIR.",
        ) from error


PROGRAM = "pallasc.compiler.workers.worker"
_HIGH, _ROOM = 700, 64
"""The worker's ends of the pipes get high numbers, out of the reach of `os.closerange(3, 256)`."""
_MOST_READS = 64
"""MB read at a time, so that a worker which never stops writing blocks nobody."""
_MOST_STRAY_BYTES = 256 << 20
"""A worker that writes more stray bytes into its channel is stopped."""
_STACK_S = 5.0
"""Time limit of writing a stack; only a process that hangs in the kernel needs it all."""
_END_S = 15.0


class Worker:
    """A worker process under its warden.

    Args:
        environment: its environment variables.
        folder: for its temporary files; the warden removes it.
        data_bytes: how much memory the kernel lets each of its processes allocate, 0 for no limit.
        program: the module that becomes the worker.

    Attributes:
        log: what it writes to its standard output.
        errors: what it writes to its standard error output, which it reads itself.
        answers: the descriptor that becomes readable when it says something.
        requests: the descriptor that becomes writable when it can be sent more.
        ended: the descriptor that becomes readable when it has ended, None if there is none.
        group: the group that it serves, None until its first task.
        task: its current task.
        request: the last request that it was given, None before.
        served: how many tasks it has answered.
        gone_s: when its channel closed, None while it is open.
        process: its process id, 0 until it has sent it.
        ready_s: when it was ready for tasks, None before.
        began_s: when it was given its task.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        folder: Path,
        *,
        data_bytes: int = 0,
        program: str = PROGRAM,
    ) -> None:
        self.group: Group | None = None
        self.task: Task | None = None
        self.request: Request | None = None
        self.served = self.process = 0
        self.gone_s: float | None = None
        self.began_s = time.monotonic()
        self.ready_s: float | None = None
        self._introduced_s: float | None = None
        self._ahead = False
        key = make_key()
        self._unsent, self._frames = bytearray(key_line(key)), Frames(key)
        self._messages: deque[dict[str, object] | None] = deque()
        with ExitStack() as opened, ExitStack() as lent:
            opened.callback(shutil.rmtree, folder, ignore_errors=True)
            try:
                self.log, self.errors = Log(), Log()
                opened.callback(self.log.close)
                opened.callback(self.errors.close)
                self.answers, answers = _pipe(0, opened, lent)
                self.requests, requests = _pipe(1, opened, lent)
                # Unbuffered, so that output survives a kernel that kills its process.
                self._warden = subprocess.Popen(
                    [sys.executable, "-X", str(folder / TOOLKIT), "-P", "-u",
                     "-m", "pallasc.compiler.workers.warden", program,
                     str(requests), str(answers), str(os.getpid()), str(folder), str(data_bytes)],
                    pass_fds=(requests, answers), env=dict(environment),
                    stdin=subprocess.DEVNULL, stdout=self.log.file, stderr=self.errors.file,
                    start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise ToolError(f"a compiling process cannot be started: {error}") from error
            self.ended = _process_descriptor(self._warden.pid, opened)
            self._opened = opened.pop_all()
        self.flush()

    # ---- talking

    @property
    def descriptors(self) -> list[int]:
        """The descriptors that a selector may wait for."""
        pipes = [self.answers, self.requests]
        return pipes if self.ended is None else [*pipes, self.ended]

    def events(self) -> dict[int, int]:
        """Return the events to wait for now: it sends something, ends, or can be sent more."""
        events = {} if self.gone_s is not None else {self.answers: EVENT_READ}
        if self.ended is not None:
            events[self.ended] = EVENT_READ
        if not self.flush():
            events[self.requests] = EVENT_WRITE
        return events

    def introduce(self, context: Request, *, ahead: bool = False) -> None:
        """Send it the context of all tasks; it replies when it is ready.

        Args:
            context: the context of all tasks.
            ahead: whether it has no task yet, so that nobody hears when it is ready.
        """
        self._ahead, self._introduced_s = ahead, time.monotonic()
        self.send(context)

    def assign(self, task: Task, request: Request) -> None:
        """Give it a task, with the request that was made for it."""
        self.log.mark()
        self.errors.mark()
        self.group, self.task = task.group, task
        self.request = replace(request, task=self.served)
        self.began_s = time.monotonic()
        self.send(self.request)

    def send(self, request: Request) -> None:
        """Send a request, or begin to; a worker that is gone is noticed when it is heard."""
        self._unsent += encode(request.to_json())
        self.flush()

    def flush(self) -> bool:
        """Send the rest that the pipe had no room for; return True if everything is sent."""
        try:
            while self._unsent:
                del self._unsent[: os.write(self.requests, self._unsent)]
        except BlockingIOError:
            return False
        except BrokenPipeError:
            self._unsent.clear()
        return True

    def hear(self) -> dict[str, object] | None:
        """Return a message, None if there is none yet; an empty message was garbled.

        More can come unless `gone_s` is set. Its process id and readiness are noted on the way.
        """
        self._read()
        while self._messages:
            message = self._messages.popleft()
            if message is None or not self._understood(message):
                return message or {}
        return {} if self._frames.stray_bytes > _MOST_STRAY_BYTES else None

    def _read(self) -> None:
        gone = self.is_over()  # a process that it started may hold the pipe open after its end
        with contextlib.suppress(BlockingIOError):
            for _ in range(_MOST_READS):
                data = os.read(self.answers, 1 << 20)
                if not data:
                    gone = True
                    break
                self._messages += self._frames.feed(data)
            else:
                return  # more may be waiting
        if gone and self.gone_s is None:
            self.gone_s = time.monotonic()

    def _understood(self, message: Mapping[str, object]) -> bool:
        """Note a worker's process id, or that it is ready; return False for other messages."""
        process = message.get("pid")
        if message.get("ready") is True:
            self.ready_s = self.ready_s or time.monotonic()
        elif isinstance(process, int) and not self.process:
            self.process = process
        else:
            return False
        return True

    def is_fit(self) -> bool:
        """Return True if it lives and has sent nothing unasked."""
        self._read()
        while self._messages and self._messages[0] and self._understood(self._messages[0]):
            self._messages.popleft()
        return self.gone_s is None and not self._messages

    def take_stray_bytes(self) -> int:
        """Return the number of bytes outside of messages since the last call."""
        count, self._frames.stray_bytes = self._frames.stray_bytes, 0
        return count

    # ---- watching

    def written(self, longest_bytes: int) -> str:
        """Return the end of its output since its task began; the standard error comes last."""
        errors = self.errors.tail(longest_bytes)
        return self.log.tail(max(0, longest_bytes - len(errors.encode()))) + errors

    def cut_logs(self) -> None:
        """Drop all but the end of its output, if there is too much."""
        self.log.cut()
        self.errors.cut()

    def seconds(self) -> float | None:
        """Return how long its task has taken, None while the worker is still starting."""
        if self._introduced_s is None:
            return time.monotonic() - self.began_s
        if self.ready_s is None:
            return None
        return time.monotonic() - max(self.began_s, self.ready_s)

    @property
    def start_s(self) -> float | None:
        """Time it took to get ready, None if it is not ready or the time is unknown."""
        if self._ahead or self._introduced_s is None or self.ready_s is None:
            return None
        return self.ready_s - self._introduced_s

    def release(self) -> float:
        """Note that its task is over; return how long that took, in seconds."""
        seconds = self.seconds()
        if seconds is None:
            seconds = time.monotonic() - self.began_s
        self.task = None
        self.served += 1
        return seconds

    def tree(self, parents: Mapping[int, int]) -> list[int]:
        """Return its processes."""
        return descendants(self._warden.pid, parents)

    def is_over(self) -> bool:
        """Return True if it has ended, with all its descendants."""
        return self._warden.poll() is not None

    def ending(self) -> str:
        """Return how it ended, for a message."""
        code = self._warden.poll()
        return "closed its end of the pipe" if code is None else exit_in_words(code)

    def end_with_stack(self) -> None:
        """Have it write its stack and end, and wait a moment for that."""
        if self.process:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.process, SHOW_STACK)
                os.kill(self.process, signal.SIGCONT)  # it may have been stopped
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._wait(_STACK_S)

    # ---- ending

    def end(self) -> None:
        """Begin to kill it with all its descendants; does not wait."""
        self._warden.send_signal(signal.SIGTERM)

    def finish(self) -> None:
        """Kill it with all its descendants, and wait until they have ended."""
        self.end()
        try:
            self._wait(_END_S)
        except subprocess.TimeoutExpired:
            for process in [self._warden.pid, *self.tree(parents())]:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process, signal.SIGKILL)
            self._warden.wait()
        self._opened.close()

    def _wait(self, timeout_s: float) -> None:
        if self.ended is not None:
            poll = select.poll()
            poll.register(self.ended, select.POLLIN)
            timeout_s = 1.0 if poll.poll(timeout_s * 1000) else 0.0
        self._warden.wait(timeout_s)


def _pipe(mine: int, opened: ExitStack, lent: ExitStack) -> tuple[int, int]:
    """Return the end of a pipe that the build keeps, which does not block, and the worker's.

    Args:
        mine: 0 to keep the reading end, 1 to keep the writing end.
        opened: closes the build's end.
        lent: closes the worker's end.
    """
    ends = os.pipe()
    opened.callback(os.close, ends[mine])
    os.set_blocking(ends[mine], False)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        least = max(3, min(_HIGH, most - _ROOM))
        theirs = fcntl.fcntl(ends[1 - mine], fcntl.F_DUPFD_CLOEXEC, least)
    finally:
        os.close(ends[1 - mine])
    lent.callback(os.close, theirs)
    return ends[mine], theirs


def _process_descriptor(process: int, opened: ExitStack) -> int | None:
    """Return a descriptor that becomes readable when a process ends, None if Linux gives none."""
    try:
        descriptor = os.pidfd_open(process)
    except OSError:
        return None
    opened.callback(os.close, descriptor)
    return descriptor


_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in .+$')
_STACK = re.compile(r"^(Current t|T)hread 0x[0-9a-f]+ .*\(most recent call first\):$")
_SAYS_WHY = re.compile(r"ERROR|rror:|bad_alloc|KeyboardInterrupt")
_SAYS_NOTHING = re.compile(r"^(Fatal Python error|Extension modules): ")
_MOST_FRAMES = 8


def exit_in_words(code: int) -> str:
    """Return how a process ended, from its exit code; a negative one is a signal."""
    if code >= 0:
        return f"ended with exit code {code}"
    if code == -signal.SIGKILL:
        return "was killed by SIGKILL (perhaps out of memory)"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def died(doing: str, ending: str, output: str) -> CompileError:
    """Return the error for a worker that died, with the last error that it wrote."""
    lines = [line.strip() for line in output.splitlines()]
    errors = [line for line in lines if _SAYS_WHY.search(line) and not _SAYS_NOTHING.match(line)]
    return CompileError(f"{doing} {ending}{f': {errors[-1]}' if errors else ''}", kind="died")


def too_slow(doing: str, timeout_s: float) -> CompileError:
    """Return the error for a worker that was stopped because it took too long."""
    return CompileError(
        f"{doing} took longer than {timeout_s:g} s (--timeout) and was stopped",
        hint="If it needs more time, raise --timeout.",
        kind="timeout",
    )


def never_ready(doing: str, limit_s: float) -> CompileError:
    """Return the error for a worker that was stopped before it could begin with its task."""
    return CompileError(
        f"{doing} was not ready after {limit_s:g} s and was stopped",
        hint="Give this machine less to do at a time (--jobs), or raise --timeout.",
        kind="timeout",
    )


def too_large(doing: str, held_bytes: int, limit_bytes: int) -> CompileError:
    """Return the error for a worker that was stopped because it held too much memory."""
    return CompileError(
        f"{doing} held {size(held_bytes, limit_bytes)} of memory, more than the "
        f"{size(limit_bytes)} that one "
        "may hold (--memory), and was stopped",
        hint="If it needs that much, raise --memory, with fewer --jobs where memory is short.",
        kind="memory",
    )


def explain_memory(error: PallascError, limit_bytes: int) -> None:
    """Add to an error the limit at which the kernel refused memory."""
    error.hint = error.hint or (
        f"One compiling process may hold {size(limit_bytes)} of memory; --memory sets how much."
    )


def garbled(doing: str) -> CompileError:
    """Return the error for a worker whose answer was garbled or is not an answer."""
    return CompileError(
        f"the answer of {doing} was lost: something in it writes to file descriptors that it did "
        "not open",
        kind="garbled",
    )


def place_in_stack(output: str, folders: Sequence[str]) -> Location | None:
    """Return the innermost place below `folders` in the stack that a dying process printed."""
    for line in output.splitlines():
        frame = _FRAME.match(line)
        if frame and frame["file"].startswith(tuple(f"{f.rstrip('/')}/" for f in folders if f)):
            return Location(frame["file"], int(frame["line"]))
    return None


def shortened(output: str) -> str:
    """Return output without the outer frames of long stacks and the list of extension modules."""
    shown, frames = [], 0
    for line in output.splitlines(keepends=True):
        frames = frames + 1 if _FRAME.match(line) else 0
        if frames == _MOST_FRAMES + 1:
            shown.append("  …\n")
        if frames <= _MOST_FRAMES and not line.startswith("Extension modules: "):
            shown.append(line)
    return "".join(shown)


CHECK_S = 0.25
"""Interval between two checks of a worker."""
_SHARED_S = 0.2
"""How old a list of all processes may be, which takes milliseconds to read."""
_SHARE = 0.02
"""The part of its time that the build may spend watching, with very many processes."""
_START_S = 120.0
"""Time limit of starting a worker, in addition to the limit of its task."""
_CLOSED_S = 30.0
"""Time for a process whose pipe has closed to end: its exit code explains more."""
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
        """Return True if a worker holds so much after a task that it should be replaced."""
        if self.memory_bytes is None or not worker.process:
            return False
        return held_bytes(worker.process) > _REPLACED_AT * self.memory_bytes


@dataclass(slots=True)
class Watch:
    """Looks after busy workers from time to time.

    Args:
        limits: limits of each worker.
    """

    limits: Limits
    _next_s: float = field(default_factory=time.monotonic)

    def pause_s(self) -> float:
        """Return how many seconds may pass until the next look."""
        return max(0.0, self._next_s - time.monotonic())

    def look(self, workers: Sequence[Worker]) -> list[tuple[Worker, Reply]]:
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

    def _stopped(self, worker: Worker, held: int) -> Reply | None:
        """Return the answer of a worker that exceeds a limit now, with its stack if possible."""
        task, limits = worker.task, self.limits
        if task is None:
            return None
        late = limits.timeout_s is not None and _is_late(worker, limits.timeout_s + limits.grace_s)
        if limits.memory_bytes is not None and held > limits.memory_bytes:
            error = too_large(task.doing, held, limits.memory_bytes)
        elif late:
            error = _late_error(worker, task, limits)
        elif worker.gone_s is not None and time.monotonic() > worker.gone_s + _CLOSED_S:
            error = died(task.doing, worker.ending(), "")
        else:
            return None
        worker.end_with_stack()
        return _failure(worker, task, error, repeat=not late)


def _late_error(worker: Worker, task: Task, limits: Limits) -> CompileError:
    timeout_s = limits.timeout_s or 0.0
    if worker.seconds() is None:
        return never_ready(task.doing, timeout_s + limits.grace_s + _START_S)
    return too_slow(task.doing, timeout_s)


def _is_late(worker: Worker, timeout_s: float) -> bool:
    seconds = worker.seconds()
    if seconds is None:
        return time.monotonic() > worker.began_s + timeout_s + _START_S
    return seconds > timeout_s


def receive(worker: Worker) -> Reply | None:
    """Return a worker's reply, or an error if it died, None if it is still at work."""
    message, task, request = worker.hear(), worker.task, worker.request
    if task is None or request is None:
        return None
    if message is None:
        if not worker.is_over():
            return None
        error = died(task.doing, worker.ending(), worker.written(TAIL_BYTES))
        return _failure(worker, task, error)
    try:
        reply = request.read_reply(message)
    except ValueError:
        return _failure(worker, task, garbled(task.doing))
    output, stray_bytes = worker.written(TAIL_BYTES), worker.take_stray_bytes()
    return replace(reply, output=output, stray_bytes=stray_bytes)


def _failure(worker: Worker, task: Task, error: CompileError, *, repeat: bool = True) -> Failed:
    output = worker.written(_STACKS_BYTES)
    return Failed(
        error=error,
        output=shortened(output)[-TAIL_BYTES:],
        place=place_in_stack(output, task.group[1].split(os.pathsep)),
        repeat=repeat and worker.served > 0,
        died=True,
    )
