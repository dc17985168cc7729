"""A dask cluster of two workers on this machine, against two processes (`--jobs 2`).

Both build the library mix in turn, each time into an empty store. The cluster is already running.
Goal: in the median, the cluster is at least 0.9 times as fast. Measure on an idle machine.
"""

import argparse
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from harness import (
    PYTHON,
    Figure,
    build_command,
    in_turn,
    medians,
    ratio,
    run_benchmark,
    timed_process,
)
from inputs import write_mix

_START_S = 60.0
_FEW_CORES = {
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "500ms",
    "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL": "2s",
}
"""The settings that docs/cluster.md recommends for machines with few cores."""


def measure(options: argparse.Namespace, place: Path) -> Sequence[Figure]:
    """Time a build with each in turn."""
    spec, stores = write_mix(place, options.variants), count()

    def build(*more: str) -> float:
        return timed_process(build_command(spec, place / f"store{next(stores)}", *more))

    with cluster(place) as address:
        works = {
            "--jobs 2": lambda: build("--jobs", "2"),
            "two workers of dask": lambda: build("--executor", address),
        }
        times = in_turn(works, options.rounds, warm_up=False)
    name = f"{options.variants} variants, "
    speed = ratio(times, *works)
    goal = Figure(f"{name}speed of dask / --jobs 2", speed, goal=0.9, at_least=True)
    return [*medians(times, name), goal]


@contextlib.contextmanager
def cluster(place: Path) -> Iterator[str]:
    """Yield the address of a scheduler with two workers of one thread."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port = str(opened.getsockname()[1])
    environment = {**os.environ, **_FEW_CORES, "PALLASC_CACHE_DIR": str(place / "digests")}
    common = ["--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0"]
    scheduler = ["dask_scheduler", "--port", port]
    worker = ["dask_worker", f"tcp://127.0.0.1:{port}", "--nthreads", "1", "--no-nanny"]
    worker += ["--local-directory", str(place / "dask")]
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((place / "dask.log").open("wb"))
        for module, *words in (scheduler, worker, worker):
            command = [*PYTHON, "-m", f"distributed.cli.{module}", *words, *common]
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        wait(place / "dask.log")
        yield f"dask://127.0.0.1:{port}"


def wait(log: Path) -> None:
    """Wait for both workers."""
    deadline_s = time.monotonic() + _START_S
    while log.read_text().count("Registered to") < 2:
        if time.monotonic() > deadline_s:
            raise SystemExit(f"the workers did not start:\n{log.read_text()}")
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__, measure, variants=60, rounds=3))
