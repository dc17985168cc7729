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
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from selectors import EVENT_READ, EVENT_WRITE
from typing import IO

from pallasc.cache import process
from pallasc.cache.leases import is_over
from pallasc.compiler.toolchain.toolkit import TOOLKIT
from pallasc.compiler.workers.channel import Frames, encode, key_line, make_key
from pallasc.compiler.workers.failures import exit_in_words
from pallasc.compiler.workers.messages import Group, Request, Task
from pallasc.compiler.workers.warden import SHOW_STACK, descendants, parents
from pallasc.errors import ToolError

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
        """Forget what was written until now."""
        self._start = self.size

    def tail(self, longest_bytes: int) -> str:
        """Return the end of what was written since the mark."""
        end = self.size
        start = max(self._start, end - longest_bytes)
        return os.pread(self.file.fileno(), max(0, end - start), start).decode("utf-8", "replace")

    def cut(self) -> None:
        """Drop all but the end of a long file; what is written meanwhile may be lost."""
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


_PREFIX = "pallasc-workers-"
_SPLIT = re.compile(r"[\s,{}\udc80-\udcff]")


def temporary_folder() -> str:
    """Return the folder for temporary files, `/tmp` where Mosaic could not read its path.

    It contains the device library (`toolkit`), and Mosaic names it in a line of options for
    LLVM's passes, which is split at blanks, commas and braces, and has to be UTF-8.
    """
    folder = os.path.realpath(tempfile.gettempdir())
    return "/tmp" if _SPLIT.search(folder) else folder


class Scratch:
    """The temporary folder of one build, with one for each worker; made when first needed.

        <temporary folder>/pallasc-workers-<token>-<random>/<number>/

    The token (`cache/process`) names the build's process, so that the next build recognizes and
    removes what a killed build has left.
    """

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._count = 0

    def make_folder(self) -> Path:
        """Make an empty folder for a worker.

        Raises:
            ToolError: that fails.
        """
        try:
            if self._folder is None:
                remove_left_folders()
                prefix = f"{_PREFIX}{process.token()}-"
                self._folder = Path(tempfile.mkdtemp(prefix=prefix, dir=temporary_folder()))
            self._count += 1
            made = self._folder / str(self._count)
            made.mkdir(mode=0o700)
        except OSError as error:
            raise ToolError(
                f"no folder for temporary files can be made: {error}",
                hint="Choose another folder with TMPDIR.",
            ) from error
        return made

    def remove(self) -> None:
        """Remove the folder with its contents."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def remove_left_folders() -> None:
    """Remove the folders of this user's killed builds."""
    with contextlib.suppress(OSError), os.scandir(temporary_folder()) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and _is_left(entry):
                shutil.rmtree(entry.path, ignore_errors=True)


def _is_left(entry: os.DirEntry[str]) -> bool:
    with contextlib.suppress(OSError):
        status = entry.stat(follow_symlinks=False)
        name = entry.name.removeprefix(_PREFIX)
        is_ours = entry.is_dir(follow_symlinks=False) and status.st_uid == os.geteuid()
        return is_ours and is_over(name, status.st_mtime_ns, now_ns=time.time_ns())
    return False


PROGRAM = "pallasc.compiler.workers.worker"
_HIGH, _ROOM = 700, 64
"""The worker's ends of the pipes get high numbers, out of the reach of `os.closerange(3, 256)`."""
_MOST_READS = 64
"""How many MB are read at a time, so that a worker which never stops writing blocks nobody."""
_MOST_STRAY_BYTES = 256 << 20
"""A worker that writes more stray bytes into its channel is stopped."""
_STACK_S = 5.0
"""How long a process may take to write its stack; only one that hangs in Linux needs it all."""
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
        """What a selector may wait for."""
        pipes = [self.answers, self.requests]
        return pipes if self.ended is None else [*pipes, self.ended]

    def events(self) -> dict[int, int]:
        """Return what to wait for now: that it sends something, ends, or can be sent more."""
        events = {} if self.gone_s is not None else {self.answers: EVENT_READ}
        if self.ended is not None:
            events[self.ended] = EVENT_READ
        if not self.flush():
            events[self.requests] = EVENT_WRITE
        return events

    def introduce(self, context: Request, *, ahead: bool = False) -> None:
        """Send it what holds for all tasks; it tells when it is ready.

        Args:
            context: what holds for all tasks.
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
        """Send what the pipe had no room for; return whether everything is sent."""
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

        `gone_s` tells whether more can come. What it tells of itself is taken in on the way.
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
        """Take in what a worker tells of itself: its process id, or that it is ready."""
        process = message.get("pid")
        if message.get("ready") is True:
            self.ready_s = self.ready_s or time.monotonic()
        elif isinstance(process, int) and not self.process:
            self.process = process
        else:
            return False
        return True

    def is_fit(self) -> bool:
        """Tell whether it lives and has sent nothing unasked."""
        self._read()
        while self._messages and self._messages[0] and self._understood(self._messages[0]):
            self._messages.popleft()
        return self.gone_s is None and not self._messages

    def take_stray_bytes(self) -> int:
        """Return how many bytes beside messages came through the channel since the last call."""
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
        """How long it took to get ready, None if it is not, or nobody heard when it was."""
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
        """Tell whether it has ended, with all its descendants."""
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
