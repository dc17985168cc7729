"""A dask cluster on this machine, for `farm.py`: its speed, and what it costs the client.

* dask: the library mix is compiled by two processes (`--jobs 2`) and by two workers of dask, with
  one thread each, that were started before. Each round begins with empty stores and new sessions.
* client: 10,000 variants go through a scheduler to two workers that answer at once, with what a
  compilation answers but its files (`farm_noop`). What counts is the client: its CPU time with all
  its threads, and the time of the whole, for each variant.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import farm_noop
from harness import Figure, median_ratio, paired, timed_process
from library_mix import write_mix
from parallel_build import write_same

from pallasc.cache.store import Store
from pallasc.compiler.cluster import link
from pallasc.compiler.cluster.address import parse_address
from pallasc.compiler.cluster.pool import ClusterPool
from pallasc.compiler.inputs.lookup import Lookup
from pallasc.compiler.inputs.request import data_digests, request_fields
from pallasc.compiler.toolchain.setup import prepare
from pallasc.compiler.workers.messages import Compile, Compiled, Task
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml

SPEED = 0.9
CLIENT_MS = 1.0
_MANY = 10_000
_START_S = 60.0
_SPARING = {
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "500ms",
    "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL": "2s",
}
"""What docs/cluster.md advises for machines with few cores."""


def speed(place: Path, options: argparse.Namespace) -> list[Figure]:
    """Return how fast two workers of dask are against two processes."""
    spec = write_mix(place, options.variants)
    stores = iter(range(10_000))
    home_cpu_s = 0.0
    before_s = _children_cpu_s()
    with cluster(place) as address:

        def build(*more: str) -> float:
            command = [
                sys.executable, "-P", "-m", "pallasc", "build", str(spec), *more,
                "--store", str(place / f"store{next(stores)}"),
            ]  # fmt: skip
            return timed_process(command, stderr=subprocess.DEVNULL)

        def at_home() -> float:
            nonlocal home_cpu_s
            before = _children_cpu_s()
            seconds = build("--jobs", "2")
            home_cpu_s += _children_cpu_s() - before
            return seconds

        home, there = paired(at_home, lambda: build("--executor", address), options.rounds)
    ratios = [here_s / there_s for here_s, there_s in zip(home, there, strict=True)]
    there_cpu_s = _children_cpu_s() - before_s - home_cpu_s
    name = f"{options.variants} variants"
    return [
        Figure(f"{name}, --jobs 2", statistics.median(home), "s"),
        Figure(f"{name}, two workers of dask", statistics.median(there), "s"),
        Figure(
            f"{name}, speed of dask / --jobs 2",
            median_ratio(home, there),
            goal=SPEED,
            at_least=True,
        ),
        Figure(f"{name}, the same, lowest of {options.rounds} rounds", min(ratios)),
        Figure(f"{name}, the same, highest", max(ratios)),
        Figure(f"{name}, CPU time, --jobs 2", home_cpu_s / options.rounds, "s"),
        Figure(
            f"{name}, CPU time, dask with a share of its start", there_cpu_s / options.rounds, "s"
        ),
    ]


def _children_cpu_s() -> float:
    """Return the CPU time of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def client(place: Path, options: argparse.Namespace) -> list[Figure]:
    """Return what each variant costs the client."""
    variants = expand(load_yaml(write_same(place, _MANY)))
    store = Store(place / "store")
    with cluster(place, path=Path(__file__).parent) as address, prepare() as setup:
        context = setup.context(store)
        requests = Lookup(context, store).requests

        def task(number: int) -> Task:
            variant = variants[number]
            made = Compile(
                variant=variant,
                request=requests.of(variant).key,
                fields=request_fields(variant, context),
                data=data_digests(variant, context.digests),
                env={},
                trusted_records=None,
            )
            return Task(number, (variant.target.arch, variant.base_dir, ()), made)

        tasks = [task(number) for number in range(_MANY)]
        link.carry_out = farm_noop.carry_out
        with ClusterPool(parse_address(address), 2, setup.environment) as pool:
            pool.describe(context, setup.versions_now(), [])
            done = [answer for _, _, answer in pool.run(tasks[:100]) if answer is not None]
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            done = [answer for _, _, answer in pool.run(tasks) if answer is not None]
            seconds = time.perf_counter() - began_s
            cpu_s = time.process_time() - began_cpu_s
    assert len(done) == _MANY
    assert all(isinstance(answer.reply, Compiled) for answer in done)
    name = f"{_MANY} variants through a scheduler"
    return [
        Figure(f"{name}, client's CPU time for each", cpu_s / _MANY * 1e3, "ms", goal=CLIENT_MS),
        Figure(f"{name}, time for each", seconds / _MANY * 1e3, "ms", goal=CLIENT_MS),
    ]


@contextlib.contextmanager
def cluster(place: Path, *, path: Path | None = None) -> Iterator[str]:
    """Yield the address of a scheduler with two workers of one thread.

    Args:
        place: for what they write.
        path: a folder in which the workers find modules.
    """
    place.mkdir(parents=True, exist_ok=True)
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port = int(opened.getsockname()[1])
    here = {**os.environ, **_SPARING, "PALLASC_CACHE_DIR": str(place / "digests")}
    if path is not None:
        here["PYTHONPATH"] = str(path)
    common = ["--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0"]
    worker = [
        "dask_worker", f"tcp://127.0.0.1:{port}", "--nthreads", "1", "--no-nanny",
        "--local-directory", str(place / "dask"), *common,
    ]  # fmt: skip
    commands = [["dask_scheduler", "--port", str(port), *common], worker, worker]
    started: list[subprocess.Popen[bytes]] = []
    with (place / "dask.log").open("wb") as log:
        try:
            for words in commands:
                command = [sys.executable, "-P", "-m", f"distributed.cli.{words[0]}", *words[1:]]
                started.append(subprocess.Popen(command, env=here, stdout=log, stderr=log))
            _wait(place / "dask.log")
            yield f"dask://127.0.0.1:{port}"
        finally:
            for process in reversed(started):
                process.terminate()
                process.wait()


def _wait(log: Path) -> None:
    deadline_s = time.monotonic() + _START_S
    while log.read_text().count("Registered to") < 2:
        if time.monotonic() > deadline_s:
            raise SystemExit(f"the workers did not start:\n{log.read_text()}")
        time.sleep(0.05)


PARTS = {"dask": speed, "client": client}
