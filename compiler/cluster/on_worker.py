"""The functions that a dask worker calls, by name: bytes in, bytes out.

dask unpickles their names; what they are given and return are bytes, see `payloads`.
"""

from __future__ import annotations

import atexit
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from pallasc.compiler.cluster.payloads import Work

if TYPE_CHECKING:
    from distributed import Worker

    from pallasc.compiler.cluster.host import Host

_CANCELLED = "cancelled"
_WORKS = frozenset({"running", "paused"})
_lock = threading.Lock()
_hosts: dict[str, Host] = {}
"""The host of each dask worker in this process, by the worker's address."""


def carry_out(work: bytes, session: bytes = b"") -> bytes:
    """Do work; see `payloads` for what goes in and what comes out."""
    from distributed import get_worker

    read = Work.from_bytes(work)
    worker = get_worker()

    def is_wanted() -> bool:
        # The scheduler forgets a task as soon as its client cancels it, or is gone.
        task = worker.state.tasks.get(read.key)
        return worker.status.name in _WORKS and task is not None and str(task.state) != _CANCELLED

    def began() -> None:
        worker.log_event(read.topic, {"began": read.key})

    host = _host(worker)
    result = host.carry_out(read, session, worker=worker.address, is_wanted=is_wanted, began=began)
    return result.to_bytes()


def forget(session: str) -> None:
    """End the processes of a session on the workers of this process, and remove its files."""
    for host in list(_hosts.values()):
        # Processes take a moment to end, and the build waits for this call.
        threading.Thread(target=host.forget, args=[session], name="pallasc-forget").start()


def end_host(address: str) -> None:
    """End all that a dask worker of this process compiles."""
    with _lock:
        host = _hosts.pop(address, None)
    if host is not None:
        host.close()


def _host(worker: Worker) -> Host:
    from pallasc.compiler.cluster.host import Host

    with _lock:
        if worker.address not in _hosts:
            if not _hosts:
                atexit.register(_end_hosts)
            folder = Path(worker.local_directory or tempfile.gettempdir())
            _hosts[worker.address] = Host(folder, worker.state.nthreads)
        return _hosts[worker.address]


def _end_hosts() -> None:
    for address in list(_hosts):
        end_host(address)
