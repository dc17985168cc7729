"""Real clusters for tests: a scheduler and workers of dask, each a process, on the loopback."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

PROGRAMS = Path(__file__).parent
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
        variables: of the environment of all processes.
    """

    def __init__(self, folder: Path, port: int, variables: Mapping[str, str]) -> None:
        self.folder, self.port, self._variables = folder, port, variables
        self.scheduler: subprocess.Popen[bytes] | None = None
        self.workers: dict[str, subprocess.Popen[bytes]] = {}

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

    def start_worker(self, name: str, *arguments: str, **variables: str) -> None:
        """Start a worker of one thread.

        Args:
            name: its name.
            arguments: further arguments.
            variables: of its environment.
        """
        self.workers[name] = self._start(
            "dask_worker", name, f"tcp://127.0.0.1:{self.port}", "--nthreads", "1",
            "--no-nanny", "--name", name, "--host", "127.0.0.1",
            "--dashboard-address", "127.0.0.1:0", "--local-directory",
            str(self.folder / name), "--death-timeout", str(_START_S), *arguments,
            variables=variables,
        )  # fmt: skip

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def wait_for_workers(self) -> None:
        for name in self.workers:
            wait_for(lambda name=name: "Registered to" in self.log(name), f"{name}")  # type: ignore[misc]

    def end(self) -> None:
        for process in [*self.workers.values(), self.scheduler]:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()

    def _start(
        self, program: str, name: str, *arguments: str, variables: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        store = {"PALLASC_CACHE_DIR": str(self.folder / "store")}
        environment = {**os.environ, **store, **self._variables, **(variables or {})}
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", f"distributed.cli.{program}", *arguments],
                env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                cwd=self.folder, start_new_session=True,
            )  # fmt: skip


@contextlib.contextmanager
def cluster(
    folder: Path, variables: Mapping[str, str] | None = None, *, workers: int = 2
) -> Iterator[Cluster]:
    with own_port() as port:
        made = Cluster(folder, port, variables or {})
        try:
            made.start_scheduler()
            for number in range(workers):
                made.start_worker(f"worker{number}")
            made.wait_for_workers()
            yield made
        finally:
            made.end()


def is_alive(process: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, 0)
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z"
    return False
