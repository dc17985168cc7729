"""A worker process from the build's side: start it, send requests, read replies, end it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from select import POLLIN, POLLOUT
from typing import IO

from msgspec.structs import replace

from pallasc.cache.format import size
from pallasc.compiler.workers.messages import READY, Failed, Group, Reply, Request, Task
from pallasc.compiler.workers.warden import SHOW_STACK, descendants, parents
from pallasc.errors import CompileError, Location, ToolError

LONGEST_BYTES = 64 << 20
_TAIL_BYTES = 256 << 10
_LEFT_OUT = b"[%d MB of output are left out]\n"


class Log:
    """An unnamed file to which a worker appends.

    Args:
        longest_bytes: `cut` truncates a longer file.
    """

    def __init__(self, longest_bytes: int = LONGEST_BYTES) -> None:
        self.file: IO[bytes] = tempfile.TemporaryFile(prefix="pallasc-worker-")  # noqa: SIM115
        self._longest_bytes = longest_bytes
        self._start = 0
        # After a cut, the worker writes to the new end, not to its old offset.
        fcntl.fcntl(self.file, fcntl.F_SETFL, os.O_APPEND)

    @property
    def size(self) -> int:
        """The length of the file in bytes."""
        return os.fstat(self.file.fileno()).st_size

    def mark(self) -> None:
        """Set the start of `tail` to the end of the output so far."""
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


def make_folder() -> Path:
    """Make the folder for a worker's temporary files; its warden removes it.

    Raises:
        ToolError: the folder cannot be created.
    """
    try:
        return Path(tempfile.mkdtemp(prefix="pallasc-worker-"))
    except OSError as error:
        raise ToolError(
            f"no folder for temporary files can be made: {error}",
            hint="Choose another folder with TMPDIR.",
        ) from error


PROGRAM = "pallasc.compiler.workers.worker"
TAIL_BYTES = 4000
_STACKS_BYTES = 64 << 10
_MOST_READS = 64
"""Maximum MB read at a time, so that a worker that never stops writing does not block the others.
"""
_LONGEST_LINE_BYTES = 256 << 20
_STARTED = re.compile(rb'\{"pid":(\d+)\}')
_STACK_S = 5.0
"""Time limit of writing a stack; only a process stuck in a system call takes this long."""
_END_S = 15.0
_START_S = 120.0
"""Time limit of starting a worker, in addition to the limit of its task."""
_CLOSED_S = 30.0
"""Time to wait for a worker's end after its pipe has closed, since its exit code explains more."""


class Worker:
    """A worker process under its warden.

    Args:
        environment: its environment variables.
        folder: folder for its temporary files; the warden removes it.
        data_bytes: limit that Linux enforces on allocations of each of its processes, 0 for none.
        program: the module that the worker runs.

    Attributes:
        answers: the descriptor that its replies come from.
        requests: the descriptor that its requests are written to.
        arch: the architecture that it was prepared for, None for any; None from its first task on.
        context: the context that was sent to it, None before.
        group: the group that it serves, None until its first task.
        task: its current task.
        request: the last request that was sent to it, None before.
        served: number of tasks that it has answered.
        gone_s: time when its channel closed, None while it is open.
        process: its process id, 0 until the worker has sent this id.
        ready_s: time when it became ready for tasks, None before.
        began_s: time when it got its task.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        folder: Path,
        *,
        data_bytes: int = 0,
        program: str = PROGRAM,
    ) -> None:
        self.arch: str | None = None
        self.context: Request | None = None
        self.group: Group | None = None
        self.task: Task | None = None
        self.request: Request | None = None
        self.served = self.process = 0
        self.gone_s: float | None = None
        self.ready_s: float | None = None
        self.began_s = time.monotonic()
        self._unsent, self._received = bytearray(), bytearray()
        self._replies: deque[bytes] = deque()
        with ExitStack() as opened, ExitStack() as lent:
            opened.callback(shutil.rmtree, folder, ignore_errors=True)
            try:
                self._output, self._errors = Log(), Log()
                opened.callback(self._output.close)
                opened.callback(self._errors.close)
                self.answers, answers = _pipe(0, opened, lent)
                self.requests, requests = _pipe(1, opened, lent)
                # Unbuffered, so that output survives a kernel that kills its process.
                self._warden = subprocess.Popen(
                    [sys.executable, "-P", "-u",
                     "-m", "pallasc.compiler.workers.warden", program,
                     str(requests), str(answers), str(os.getpid()), str(folder), str(data_bytes)],
                    pass_fds=(requests, answers), env=dict(environment),
                    stdin=subprocess.DEVNULL, stdout=self._output.file, stderr=self._errors.file,
                    start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise ToolError(f"a compiling process cannot be started: {error}") from error
            self._opened = opened.pop_all()

    # ---- messages

    def events(self) -> dict[int, int]:
        """Return the events of `poll` to wait for: the worker sends data, or can accept more."""
        events = {} if self.gone_s is not None else {self.answers: POLLIN}
        if not self._flush():
            events[self.requests] = POLLOUT
        return events

    def introduce(self, context: Request) -> None:
        """Send the context of all tasks; the worker replies when it is ready."""
        self.context = context
        self.send(context)

    def assign(self, task: Task, request: Request) -> None:
        """Assign a task to the worker, and send the request that was made for the task."""
        self._output.mark()
        self._errors.mark()
        self.arch, self.group, self.task = None, task.group, task
        self.request = replace(request, task=self.served)
        self.began_s = time.monotonic()
        self.send(self.request)

    def send(self, request: Request) -> None:
        """Send a request, possibly in part; `reply` detects a worker that is gone."""
        self._unsent += pickle.dumps(request)
        self._flush()

    def reply(self) -> Reply | None:
        """Return the worker's reply to its task, a failure if it died, None if it still works."""
        self._read()
        task, request = self.task, self.request
        if task is None or request is None:
            return None
        if self._replies:
            try:
                reply = request.read_reply(self._replies.popleft())
            except ValueError:
                text = (
                    f"the answer of {task.doing} was lost: something in it writes to file "
                    "descriptors that it did not open"
                )
                return self.failure(CompileError(text, kind="garbled"))
            return replace(reply, output=self._written(TAIL_BYTES))
        if self.gone_s is None or not self.is_over():
            return None
        return self.failure(died(task.doing, self.ending(), self._written(TAIL_BYTES)))

    def failure(self, error: CompileError, *, repeat: bool = True) -> Failed:
        """Return the reply for a worker that died or is being stopped, with its last output."""
        folders = self.group[1].split(os.pathsep) if self.group else []
        output = self._written(_STACKS_BYTES)
        return Failed(
            error=error,
            output=without_frames(output, folders)[-TAIL_BYTES:],
            place=place_in_stack(output, folders),
            repeat=repeat and self.served > 0,
            died=True,
        )

    def is_fit(self) -> bool:
        """Return True if the worker is alive and has sent no unrequested reply."""
        self._read()
        return self.gone_s is None and not self._replies

    def _flush(self) -> bool:
        """Send the data that the pipe had no room for; return True if everything is sent."""
        try:
            while self._unsent:
                del self._unsent[: os.write(self.requests, self._unsent)]
        except BlockingIOError:
            return False
        except BrokenPipeError:
            self._unsent.clear()
        return True

    def _read(self) -> None:
        gone = self.is_over()  # even then, a process that it started may hold the pipe open
        with contextlib.suppress(BlockingIOError):
            for _ in range(_MOST_READS):
                data = os.read(self.answers, 1 << 20)
                self._receive(data)
                if not data:
                    gone = True
                    break
            else:
                return  # more data may be waiting
        if gone and self.gone_s is None:
            self.gone_s = time.monotonic()

    def _receive(self, data: bytes) -> None:
        """Store replies; or record the worker's process id, or that it is ready."""
        self._received += data
        if len(self._received) > _LONGEST_LINE_BYTES:
            data = b"\n"  # an empty line is no reply
            self._received[:] = data
        if b"\n" not in data:
            return
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            started = None if self.process else _STARTED.fullmatch(line)
            if line == READY.strip():
                self.ready_s = self.ready_s or time.monotonic()
            elif started:
                self.process = int(started[1])
            else:
                self._replies.append(bytes(line))

    def _written(self, longest_bytes: int) -> str:
        """Return the end of the worker's output since its task began; standard error comes last."""
        errors = self._errors.tail(longest_bytes)
        return self._output.tail(max(0, longest_bytes - len(errors.encode()))) + errors

    # ---- supervision

    def cut_logs(self) -> None:
        """Drop all but the end of the worker's output, if there is too much."""
        self._output.cut()
        self._errors.cut()

    def seconds(self) -> float:
        """Return the time of the task so far; the worker's start counts only beyond `_START_S`."""
        seconds = time.monotonic() - max(self.began_s, self.ready_s or 0.0)
        is_starting = self.context is not None and self.ready_s is None
        return seconds - _START_S if is_starting else seconds

    def over_limit(
        self,
        held_bytes: int,
        *,
        memory_bytes: int | None,
        timeout_s: float | None,
        grace_s: float = 0.0,
    ) -> CompileError | None:
        """Return an error if the worker exceeds a limit, or lives on after its channel has closed.

        Args:
            held_bytes: memory that the worker and its descendants hold.
            memory_bytes: memory limit, 0 or None for no limit.
            timeout_s: time limit of its task, None for no limit.
            grace_s: additional time for the task if the worker enforces the limit itself.
        """
        doing = self.task.doing if self.task else ""
        if memory_bytes and held_bytes > memory_bytes:
            return CompileError(
                f"{doing} held more than the {size(memory_bytes)} of memory that it may hold "
                "(--memory), and was stopped",
                hint="If it needs that much, raise --memory, with fewer --jobs where memory is "
                "short.",
                kind="memory",
            )
        if timeout_s is not None and self.seconds() > timeout_s + grace_s:
            return CompileError(
                f"{doing} took longer than {timeout_s:g} s (--timeout) and was stopped",
                hint="If it needs more time, raise --timeout.",
                kind="timeout",
            )
        if self.gone_s is not None and time.monotonic() > self.gone_s + _CLOSED_S:
            return died(doing, self.ending(), "")
        return None

    def tree(self, parents: Mapping[int, int]) -> list[int]:
        """Return all processes below the outer warden: the worker, its warden, its descendants."""
        return descendants(self._warden.pid, parents)

    def is_over(self) -> bool:
        """Return True if the worker has ended, with all its descendants."""
        return self._warden.poll() is not None

    def ending(self) -> str:
        """Describe how the worker ended, for a message."""
        code = self._warden.poll()
        return "closed its end of the pipe" if code is None else exit_in_words(code)

    def end_with_stack(self) -> None:
        """Make the worker write its stack and end, and wait a moment for that."""
        if self.process:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.process, SHOW_STACK)
                os.kill(self.process, signal.SIGCONT)  # it may have been stopped
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._warden.wait(_STACK_S)

    def end(self) -> None:
        """Start to kill the worker with all its descendants, without waiting."""
        self._warden.send_signal(signal.SIGTERM)

    def finish(self) -> None:
        """Kill the worker with all its descendants, and wait until they have ended."""
        self.end()
        try:
            self._warden.wait(_END_S)
        except subprocess.TimeoutExpired:
            for process in [self._warden.pid, *self.tree(parents())]:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process, signal.SIGKILL)
            self._warden.wait()
        self._opened.close()


def _pipe(mine: int, opened: ExitStack, lent: ExitStack) -> tuple[int, int]:
    """Return the build's end of a pipe, which does not block, and the worker's end.

    Args:
        mine: 0 to keep the reading end, 1 to keep the writing end.
        opened: closes the build's end.
        lent: closes the worker's end.
    """
    ends = os.pipe()
    opened.callback(os.close, ends[mine])
    lent.callback(os.close, ends[1 - mine])
    os.set_blocking(ends[mine], False)
    return ends[mine], ends[1 - mine]


# ---- how a worker ended

_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in .+$')
_SAYS_WHY = re.compile(r"ERROR|rror:|bad_alloc|KeyboardInterrupt")
_SAYS_NOTHING = re.compile(r"^(Fatal Python error|Extension modules): ")


def exit_in_words(code: int) -> str:
    """Describe how a process ended, from its exit code; a negative code is a signal."""
    if code >= 0:
        return f"ended with exit code {code}"
    if code == -signal.SIGKILL:
        return "was killed by SIGKILL (perhaps out of memory)"
    names = {number.value: number.name for number in signal.Signals}
    return f"was killed by {names.get(-code, f'signal {-code}')}"


def died(doing: str, ending: str, output: str) -> CompileError:
    """Return the error for a worker that died, with the last error that it wrote."""
    lines = [line.strip() for line in output.splitlines()]
    errors = [line for line in lines if _SAYS_WHY.search(line) and not _SAYS_NOTHING.match(line)]
    return CompileError(f"{doing} {ending}{f': {errors[-1]}' if errors else ''}", kind="died")


def place_in_stack(output: str, folders: Sequence[str]) -> Location | None:
    """Return the innermost place below `folders` in the stack that a dying process printed."""
    for line in output.splitlines():
        frame = _FRAME.match(line)
        if frame and _is_below(frame["file"], folders):
            return Location(frame["file"], int(frame["line"]))
    return None


def without_frames(output: str, folders: Sequence[str]) -> str:
    """Leave out the frames of stacks that are not below `folders`, and lists of modules."""

    def is_kept(line: str) -> bool:
        frame = _FRAME.match(line)
        if frame is None:
            return not line.startswith("Extension modules: ")
        return _is_below(frame["file"], folders)

    return "".join(filter(is_kept, output.splitlines(keepends=True)))


def _is_below(file: str, folders: Sequence[str]) -> bool:
    return file.startswith(tuple(f"{folder.rstrip('/')}/" for folder in folders if folder))
