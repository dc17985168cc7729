"""Real clusters for tests: a scheduler and workers of dask, each a process, on the loopback."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

PROGRAMS = Path(__file__).parents[2] / "building" / "programs"
"""Where `fake_worker` lies."""
_START_S = 300.0
"""A machine with much else to do takes its time."""


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = _START_S) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"waited {timeout_s} s for {what}"
        time.sleep(0.02)


@contextlib.contextmanager
def own_port() -> Iterator[int]:
    """Yield a port of the loopback that nobody else is given until the end.

    A socket that is bound and does not listen holds it; a server that reuses addresses, as those of
    dask do, may listen there beside it.
    """
    with socket.socket() as holding:
        holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holding.bind(("127.0.0.1", 0))
        yield int(holding.getsockname()[1])


def answers_at(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


class Cluster:
    """A scheduler and its workers.

    Args:
        folder: for what they write.
        port: of the scheduler.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.scheduler: subprocess.Popen[bytes] | None = None
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self._supervised: dict[str, threading.Thread] = {}
        self._over = threading.Event()

    @property
    def address(self) -> str:
        return f"dask://127.0.0.1:{self.port}"

    def start_scheduler(self) -> None:
        self.scheduler = self._start(
            "dask_scheduler", "scheduler", "--host", "127.0.0.1", "--port", str(self.port),
            "--dashboard-address", "127.0.0.1:0", "--no-show",
        )  # fmt: skip
        wait_for(lambda: answers_at(self.port), "the scheduler")

    def kill_scheduler(self) -> None:
        assert self.scheduler is not None
        self.scheduler.kill()
        self.scheduler.wait()

    def start_worker(
        self, name: str, *, port: int | None = None, supervised: bool = False, **variables: str
    ) -> None:
        """Start a worker of one thread; one that is supervised is started again where it ends.

        Args:
            name: what to call it.
            port: where it finds the scheduler, if that is not the scheduler's own port.
            supervised: whether to start it again.
            variables: of its environment.
        """

        def start() -> subprocess.Popen[bytes]:
            return self._start(
                "dask_worker", name, f"tcp://127.0.0.1:{port or self.port}", "--nthreads", "1",
                "--no-nanny", "--name", name, "--host", "127.0.0.1",
                "--dashboard-address", "127.0.0.1:0", "--local-directory",
                str(self.folder / name), "--death-timeout", str(_START_S), variables=variables,
            )  # fmt: skip

        def supervise() -> None:
            while not self._over.is_set():
                if self.workers[name].poll() is not None:
                    self.workers[name] = start()
                self._over.wait(0.1)

        self.workers[name] = start()
        if supervised:
            thread = threading.Thread(target=supervise)
            thread.start()
            self._supervised[name] = thread

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def wait_for_workers(self) -> None:
        for name in self.workers:
            wait_for(lambda name=name: "Registered to" in self.log(name), f"{name}")  # type: ignore[misc]

    def end(self) -> None:
        self._over.set()
        for thread in self._supervised.values():
            thread.join()
        for process in [*self.workers.values(), self.scheduler]:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()

    def _start(
        self, program: str, name: str, *arguments: str, variables: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        places = [(variables or {}).get("PYTHONPATH", ""), str(PROGRAMS)]
        environment = {
            **os.environ,
            "PALLASC_CACHE_DIR": str(self.folder / "store"),
            **(variables or {}),
            "PYTHONPATH": os.pathsep.join(filter(None, places)),
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", f"distributed.cli.{program}", *arguments],
                env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                cwd=self.folder, start_new_session=True,
            )  # fmt: skip


@contextlib.contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    with own_port() as port:
        made = Cluster(folder, port)
        try:
            made.start_scheduler()
            for number in range(workers):
                made.start_worker(f"worker{number}")
            made.wait_for_workers()
            yield made
        finally:
            made.end()


def processes_named(word: str) -> list[int]:
    """Return the processes whose command line has a word."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes()
                if word.encode() in words and int(entry.name) != os.getpid():
                    found.append(int(entry.name))
    return found


def is_alive(process: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, 0)
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z"
    return False


class Proxy:
    """A way to a port that can be cut: held up for a while, or closed.

    Args:
        port: where it leads.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self._open = threading.Event()
        self._open.set()
        self._refuses = False
        self._over = False
        self._lock = threading.Lock()
        self._pairs: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def hold(self) -> None:
        """Let nothing through; connections stay."""
        self._open.clear()

    def resume(self) -> None:
        self._refuses = False
        self._open.set()

    def drop(self) -> None:
        """End all connections, and take no others."""
        with self._lock:
            self._refuses = True
            pairs, self._pairs = self._pairs, []
        for opened in pairs:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        self._over = True
        self.resume()
        self.drop()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while not self._over:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = self._pair(near)
            except OSError:
                near.close()
                continue
            for source, target in ((near, far), (far, near)):
                thread = threading.Thread(target=self._carry, args=[source, target], daemon=True)
                thread.start()
                self._threads.append(thread)

    def _pair(self, near: socket.socket) -> socket.socket:
        """Return the other end for a connection, unless connections are refused."""
        with self._lock:
            if self._refuses:
                raise ConnectionRefusedError
            far = socket.create_connection(("127.0.0.1", self._to))
            self._pairs += [near, far]
        return far

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._open.wait()
                target.sendall(data)
        for opened in (source, target):
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
        source.close()  # the other direction closes its own


def end_process(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
