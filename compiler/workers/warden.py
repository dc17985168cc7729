"""The process between the build and a worker, which ensures that no descendant outlives it.

The build starts `python -P -m pallasc.compiler.workers.warden` with the arguments `MODULE REQUESTS
ANSWERS PARENT FOLDER DATA_BYTES`. This process forks. The child becomes the worker: it sends
`{"pid": …}`, then calls `MODULE.main(REQUESTS, ANSWERS)`, with FOLDER for its temporary files. The
parent becomes the warden, and waits. It is a subreaper: descendants whose parent died become its
children, in any session. When the worker ends, or the build sends SIGTERM, or the build itself
dies, the warden kills all descendants, removes the folder, and exits with the worker's status.

Process-pool libraries (loky, pebble) cannot do this: they watch workers only from the build, so
processes that a worker starts in another session, or that remain when the build is killed, escape
them.

There are two wardens, the second a child of the first. A kernel that kills its parent process kills
the inner warden, and the outer one then kills all remaining processes.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import NoReturn

_HELD = re.compile(rb"^(?:RssAnon|RssShmem|VmSwap):\s+(\d+)", re.MULTILINE)
_RESIDENT = re.compile(rb"^VmRSS:\s+(\d+)", re.MULTILINE)


def parents() -> dict[int, int]:
    """Return the parent of every visible process."""
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            # The name in parentheses may contain anything, so count from its end.
            fields = _proc_file(f"/proc/{name}/stat").rpartition(b")")[2].split(maxsplit=2)
            if len(fields) > 1:
                table[int(name)] = int(fields[1])
    return table


def descendants(process: int, parents: Mapping[int, int]) -> list[int]:
    """Return all processes below a process, parents before their children."""
    children: dict[int, list[int]] = {}
    for child, parent in parents.items():
        children.setdefault(parent, []).append(child)
    tree = [process]
    for member in tree:
        tree += children.get(member, [])
    return tree[1:]


def held_bytes(process: int) -> int:
    """Return the memory that a process does not share with others, 0 if it has ended.

    File pages do not count: Linux drops them under pressure, and processes share them.
    """
    status = _proc_file(f"/proc/{process}/status")
    return 1024 * sum(map(int, _HELD.findall(status) or _RESIDENT.findall(status)))


def _proc_file(path: str) -> bytes:
    """Return a file of `/proc`, b"" if the process has ended."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, 1 << 14)
        finally:
            os.close(descriptor)
    return b""


SHOW_STACK = signal.SIGUSR2
"""Signal that makes a worker write its stack to its output and end."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_KILL_S = 10.0
"""Time to wait for killed processes to end; only a process that hangs in Linux takes longer."""
_OUT_OF_MEMORY_SCORE = "500"
_HEEDED = {signal.SIGCHLD, signal.SIGTERM}


def main(arguments: list[str]) -> NoReturn:
    """Become warden and worker; does not return."""
    module, requests, answers, build, folder, data_bytes = arguments
    # If the build ignored SIGCHLD, this process would inherit that, and `waitpid` report nothing.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEEDED)
    warden = int(build)
    for _ in ("outer", "inner"):
        warden = _become_child_of_warden(warden, int(requests), int(answers), folder)
    _call_at_death_of(warden, signal.SIGKILL)
    _prepare(int(requests), int(answers), folder, int(data_bytes))
    from pallasc.compiler.inputs.recorders import isolate_process  # the wardens do not need it
    from pallasc.specs.settings import PLACES, SYSTEM_PATH

    isolate_process(folder, module, hidden=PLACES, path=SYSTEM_PATH)
    os.write(int(answers), b'{"pid":%d}\n' % os.getpid())
    program = importlib.import_module(module)
    _end_with(lambda: program.main(int(requests), int(answers)))


def _become_child_of_warden(parent: int, requests: int, answers: int, folder: str) -> int:
    """Fork, become the warden in the first process, and return its pid in the second."""
    _call_at_death_of(parent, signal.SIGTERM)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    warden = os.getpid()
    child = os.fork()
    if child:
        os.close(requests)
        os.close(answers)
        _watch(child, folder)
    return warden


def _prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _call_at_death_of(parent: int, call: signal.Signals) -> None:
    """Make Linux send this process a signal when its parent dies."""
    _prctl(_PR_SET_PDEATHSIG, call)
    if os.getppid() != parent:
        os._exit(1)


# ---- the worker


def _prepare(requests: int, answers: int, folder: str, data_bytes: int) -> None:
    """Prepare this process for supervision, before any user code runs."""
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _limit(resource.RLIMIT_CORE, 0)
    if data_bytes:
        _limit(resource.RLIMIT_DATA, data_bytes)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(_OUT_OF_MEMORY_SCORE)  # short of memory, Linux kills the worker, not the build
    faulthandler.enable()
    signal.signal(SHOW_STACK, signal.SIG_DFL)
    faulthandler.register(SHOW_STACK, all_threads=True, chain=True)
    tempfile.tempdir = folder
    for descriptor in (requests, answers):
        os.set_inheritable(descriptor, False)
    os.register_at_fork(after_in_child=lambda: _detach(requests, answers))


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, hard))


def _end_with(run: Callable[[], int]) -> NoReturn:
    """Exit with the code that `run` returns, 1 if it raises.

    Python itself would first wait for threads that user code may have left running, possibly
    forever, so neither threads nor `atexit` handlers run.
    """
    code, fatal = 1, None
    try:
        code = run()
    except BaseException as error:  # noqa: BLE001 - nobody is left to handle it
        sys.__excepthook__(type(error), error, error.__traceback__)
        fatal = signal.SIGINT if isinstance(error, KeyboardInterrupt) else None
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if fatal is not None:
        _end_by(fatal)
    os._exit(code)


def _detach(*descriptors: int) -> None:
    """Disconnect the pipes in a process that a kernel forked, so that it cannot send replies."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(nowhere, descriptor, inheritable=False)
    os.close(nowhere)


# ---- the warden


def _watch(worker: int, folder: str) -> None:
    """Wait until the worker or the build ends; does not return."""
    status = None
    while status is None:
        if signal.sigwait(_HEEDED) == signal.SIGTERM:
            break
        status = _reap(worker)
    _kill_everything()
    shutil.rmtree(folder, ignore_errors=True)
    _end_like(status)


def _reap(worker: int) -> int | None:
    """Reap all children that have ended; return the worker's status if it is one of them."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            status = ended[1] if ended[0] == worker else status
    return status


def _kill_everything() -> None:
    """Kill all descendants until none is left, since they may fork in the meantime."""
    deadline_s = time.monotonic() + _KILL_S
    with contextlib.suppress(ChildProcessError):
        while True:
            for process in descendants(os.getpid(), parents()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process, signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            if time.monotonic() > deadline_s:
                return
            signal.sigtimedwait({signal.SIGCHLD}, 0.05)


def _end_like(status: int | None) -> NoReturn:
    """Exit with the worker's exit code, or by the signal that killed it."""
    if status is not None and os.WIFSIGNALED(status):
        _end_by(os.WTERMSIG(status))
    os._exit(0 if status is None else os.waitstatus_to_exitcode(status))


def _end_by(number: int) -> NoReturn:
    _limit(resource.RLIMIT_CORE, 0)
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    os._exit(128 + number)


if __name__ == "__main__":
    main(sys.argv[1:])
