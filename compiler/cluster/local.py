"""A cluster in the process of the build: `--executor dask:`.

Scheduler and worker talk through memory and listen on no port; what compiles are processes of
their own anyway.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pallasc.compiler.cluster.on_worker import end_host


@asynccontextmanager
async def local_cluster(threads: int) -> AsyncIterator[str]:
    """Yield the address of a scheduler with one worker.

    Args:
        threads: how many tasks the worker carries out at the same time.
    """
    import dask
    from distributed import Scheduler, Worker

    class WithoutServer:
        """Keeps a server of dask from opening a port for its dashboard."""

        def start_http_server(self, *arguments: Any, **options: Any) -> None:
            pass

    make_scheduler: Any = type("QuietScheduler", (WithoutServer, Scheduler), {})
    make_worker: Any = type("QuietWorker", (WithoutServer, Worker), {})
    settings = {
        "distributed.worker.profile.enabled": False,
        "distributed.admin.tick.interval": "500ms",
        "distributed.admin.tick.limit": "1h",
    }
    with (
        tempfile.TemporaryDirectory(prefix="pallasc-dask-", ignore_cleanup_errors=True) as folder,
        dask.config.set({**settings, "temporary-directory": folder}),
    ):
        async with make_scheduler(protocol="inproc", dashboard_address=None) as scheduler:
            worker = make_worker(
                scheduler.address,
                nthreads=threads,
                memory_limit=0,
                local_directory=folder,
                dashboard=False,
                dashboard_address=None,
            )
            async with worker:
                try:
                    yield scheduler.address
                finally:
                    end_host(worker.address)
