"""A dask cluster of two workers on this machine, against two processes (`--jobs 2`).

Two processes are the ideal: the workers start as many, on the same cores. The library mix is
compiled by both in turn, each time with an empty store; the cluster was started before. The goal
holds for the median over all rounds. Measure on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from harness import Figure, median_ratio, paired, run_benchmark, timed_process
from library_mix import write_mix

SPEED = 0.9
_START_S = 60.0
_FEW_CORES = {
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "500ms",
    "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL": "2s",
}
"""The settings that docs/cluster.md recommends for machines with few cores."""


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Return the speed of two workers relative to two processes."""
    with tempfile.TemporaryDirectory(prefix="pallasc-bench-") as folder:
        place = Path(folder)
        spec, stores = write_mix(place, options.variants), count()

        def build(*more: str) -> float:
            store = str(place / f"store{next(stores)}")
            command = ["-P", "-m", "pallasc", "build", str(spec), "--store", store, *more]
            return timed_process([sys.executable, *command], stderr=subprocess.DEVNULL)

        with cluster(place) as address:
            ideal, there = paired(
                lambda: build("--jobs", "2"),
                lambda: build("--executor", address),
                options.rounds,
            )
    name = f"{options.variants} variants"
    speed = median_ratio(ideal, there)
    return [
        Figure(f"{name}, --jobs 2", statistics.median(ideal), "s"),
        Figure(f"{name}, two workers of dask", statistics.median(there), "s"),
        Figure(f"{name}, speed of dask / --jobs 2", speed, goal=SPEED, at_least=True),
    ]


@contextlib.contextmanager
def cluster(place: Path) -> Iterator[str]:
    """Yield the address of a scheduler with two workers of one thread.

    Args:
        place: for their files.
    """
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port = int(opened.getsockname()[1])
    here = {**os.environ, **_FEW_CORES, "PALLASC_CACHE_DIR": str(place / "digests")}
    common = ["--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0"]
    worker = [
        "dask_worker", f"tcp://127.0.0.1:{port}", "--nthreads", "1", "--no-nanny",
        "--local-directory", str(place / "dask"), *common,
    ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((place / "dask.log").open("wb"))
        for words in (["dask_scheduler", "--port", str(port), *common], worker, worker):
            command = [sys.executable, "-P", "-m", f"distributed.cli.{words[0]}", *words[1:]]
            process = subprocess.Popen(command, env=here, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        _wait(place / "dask.log")
        yield f"dask://127.0.0.1:{port}"


def _wait(log: Path) -> None:
    deadline_s = time.monotonic() + _START_S
    while log.read_text().count("Registered to") < 2:
        if time.monotonic() > deadline_s:
            raise SystemExit(f"the workers did not start:\n{log.read_text()}")
        time.sleep(0.05)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--variants", type=int, default=60, help="how many variants are compiled")
    parser.add_argument("--rounds", type=int, default=3, help="how often both are timed")


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # as an installed package has it
    sys.exit(run_benchmark(__doc__ or "", measure, _options))
