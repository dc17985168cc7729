"""What `farm_model` simulates with: the costs of a build's steps, measured with the real parts.

* Kernels: the library is built with one worker into an empty store; then the manifests are removed
  and it is built again, which lowers every variant and compiles none. The first gives the seconds
  of tracing, lowering and compiling, the second those of tracing and lowering.
* Weight: a variant's record and blobs, compressed as packs are.
* Start of a worker: what a second architecture adds to a build, less its variant's own time.
* Client: CPU time of the build's own process for a further variant that is found; for one that a
  cluster compiled, the seconds in which its thread verifies, stores and signs it, disk included.
* Scheduler: CPU time and memory of a real one of dask for each of 10,000 tasks that do nothing.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from filled_store import fill, write_spec
from library_mix import write_mix
from parallel_build import _used

from pallasc.cache.store import Store
from pallasc.compiler.builds import compile_misses, on_cluster
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml

LIBRARY = Path(__file__).resolve().parent.parent / "specs" / "library"
TASKS = 10_000
TAKEN = 30
PAYLOAD_BYTES = 2000
"""About what a request for a variant takes."""
SCHEDULER = """
import sys
from distributed.cli.dask_scheduler import main
main(["--port", "0", "--no-dashboard", "--host", "127.0.0.1", "--scheduler-file", sys.argv[1]])
"""
_SILENT: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
TWO = """\
schema: 1
targets: [{targets}]
kernels:
  - name: row_sum
    entry: pallasc.specs.library.reduction:row_sum
    args: {{x: "f32[1024, 4096]"}}
    static: {{chunk_size: 1024}}
"""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A measured variant: seconds to trace and lower, to compile; its bytes in a pack.

    `first_s` is what it takes beyond that where a process meets its kernel for the first time.
    """

    name: str
    architecture: str
    lower_s: float
    compile_s: float
    packed_bytes: int
    first_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Home:
    """What a build on one machine takes beside its variants, in seconds of one core.

    Attributes:
        warm_s: until the workers are started.
        prepare_s: what the client then does before it hands out the first variant.
        start_s: what each worker does before its first variant.
        end_s: from the last result until the build has ended.
        waiting: the part of a worker's time in which it needs no core.
    """

    warm_s: float
    prepare_s: float
    start_s: float
    end_s: float
    waiting: float


@dataclass(frozen=True, slots=True)
class Costs:
    """What the steps of a build cost, in seconds and bytes.

    Attributes:
        kernels: variants as they were measured.
        start_s: a worker, until it is ready for an architecture.
        after_s: a worker, for a variant that it has compiled: what that has read, written down.
        look_up_s: the client, for a variant that is found or missed.
        fetch_s: the client, for a variant that a remote store has, besides the transfer.
        submit_s: the client, to send a task.
        publish_s: the client, to take in a result.
        scheduler_s: the scheduler, for a task.
        scheduler_bytes: what the scheduler holds for a task.
    """

    kernels: Sequence[Kernel]
    start_s: float
    after_s: float
    look_up_s: float
    fetch_s: float
    submit_s: float
    publish_s: float
    scheduler_s: float
    scheduler_bytes: float


def costs_to_json(costs: Costs) -> dict[str, Any]:
    """Return costs as JSON."""
    return asdict(costs)


def costs_from_json(data: Mapping[str, Any]) -> Costs:
    """Return the costs of an earlier run."""
    return Costs(**{**data, "kernels": [Kernel(**kernel) for kernel in data["kernels"]]})


def measure_costs() -> Costs:
    """Measure all costs but `after_s` (see `farm_home`); takes some minutes."""
    with tempfile.TemporaryDirectory(prefix="pallasc-bench-") as folder:
        place = Path(folder)
        start_s = _start(place)
        look_up_s, fetch_s = _client(place)
        submit_s, scheduler_s, scheduler_bytes = _scheduler(place)
        return Costs(
            kernels=_kernels(place),
            start_s=start_s,
            after_s=0.0,
            look_up_s=look_up_s,
            fetch_s=fetch_s,
            submit_s=submit_s,
            publish_s=_publish(place),
            scheduler_s=scheduler_s,
            scheduler_bytes=scheduler_bytes,
        )


def _kernels(place: Path) -> list[Kernel]:
    specs = sorted(LIBRARY.glob("*.yaml"))
    store = place / "library"
    first, _ = _build(specs, store, 1)
    shutil.rmtree(store / "v1" / "man")
    second, _ = _build(specs, store, 1)
    lowered = {row["id"]: row["seconds"] for row in second["variants"]}
    return [
        Kernel(
            name=row["name"],
            architecture=row["arch"],
            lower_s=lowered[row["id"]],
            compile_s=max(0.0, row["seconds"] - lowered[row["id"]]),
            packed_bytes=_packed_bytes(Store(store), row["action_key"]),
        )
        for row in first["variants"]
    ]


def _packed_bytes(store: Store, action_key: str) -> int:
    import zstandard

    held = store.get_artifact(action_key, verify=True)
    assert held is not None
    data = json.dumps(held.record).encode()
    return len(zstandard.compress(data + b"".join(held.blob(name) or b"" for name in held.names)))


def _start(place: Path) -> float:
    """Return the seconds of a worker's start."""
    found = []
    for targets in ("h100-sxm", "h100-sxm, a100-sxm"):
        spec = place / f"start{len(found)}.yaml"
        spec.write_text(TWO.format(targets=targets))
        found.append(min(_start_once(spec, place) for _ in range(3)))
    return found[1] - found[0]


def _start_once(spec: Path, place: Path) -> float:
    """Return the seconds of a build with one worker at a time, less those of its variants."""
    with tempfile.TemporaryDirectory(dir=place) as store:
        report, seconds = _build([spec], Path(store), 1)
    return seconds - sum(row["seconds"] for row in report["variants"])


def _client(place: Path) -> tuple[float, float]:
    """Return the CPU seconds of a build's process for a variant: found, and fetched."""
    found, fetched = {}, {}
    remote = ("--remote", f"file://{place}/remote")
    for count in (1000, 5000):
        spec, store = write_spec(place / f"spec{count}", count), place / f"store{count}"
        fill(Store(store), spec)
        found[count] = _used(spec, store)[0]
        push = ["cache", "push", str(spec), "--store", str(store), *remote]
        subprocess.run([sys.executable, "-P", "-m", "pallasc", *push], check=True, **_SILENT)
        fetched[count] = _used(spec, place / f"empty{count}", *remote)[0]
    look_up_s = (found[5000] - found[1000]) / 4000
    fetch_s = (fetched[5000] - fetched[1000]) / 4000 - look_up_s
    return look_up_s, max(0.0, fetch_s)


def _publish(place: Path) -> float:
    """Return the seconds of a build's thread for a result of a cluster."""
    variants = expand(load_yaml(write_mix(place / "taken", TAKEN)))
    spent_s = 0.0

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal spent_s
            began_s = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                spent_s += time.perf_counter() - began_s

        return call

    with (
        mock.patch.object(on_cluster, "received", timed(on_cluster.received)),
        mock.patch.object(compile_misses, "_result", timed(compile_misses._result)),
    ):
        options = Options(jobs=1, executor="dask:")
        report = build(variants, store=Store(place / "taken" / "store"), options=options)
    assert all(result.status == "compiled" for result in report.results)
    return spent_s / TAKEN


def _scheduler(place: Path) -> tuple[float, float, float]:
    """Return seconds to submit a task, and the scheduler's seconds and bytes for one."""
    from distributed import Client

    named = place / "scheduler.json"
    process = subprocess.Popen(
        [sys.executable, "-c", SCHEDULER, str(named)], stderr=subprocess.DEVNULL
    )
    try:
        while not named.exists():
            time.sleep(0.05)
        with Client(scheduler_file=str(named), set_as_default=False) as client:
            payloads = [os.urandom(PAYLOAD_BYTES) for _ in range(TASKS)]
            before = _used_by(process.pid)
            began = time.process_time()
            futures = client.map(len, payloads, pure=False, batch_size=500)
            time.sleep(5)  # they are sent in the background
            submit_s = (time.process_time() - began) / TASKS
            held = _used_by(process.pid)
            worker = subprocess.Popen(
                [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file",
                 str(named), "--no-dashboard", "--nthreads", "1", "--no-nanny"],
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
            try:
                client.gather(futures)
                after = _used_by(process.pid)
            finally:
                worker.kill()
                worker.wait()
        return submit_s, (after[0] - before[0]) / TASKS, (held[1] - before[1]) / TASKS
    finally:
        process.kill()
        process.wait()


def _used_by(process: int) -> tuple[float, int]:
    """Return CPU seconds and resident bytes of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds, int(fields[21]) * resource.getpagesize()


def _build(specs: Sequence[Path], store: Path, jobs: int) -> tuple[dict[str, Any], float]:
    """Build specs; return the report and the seconds."""
    command = [
        sys.executable, "-P", "-m", "pallasc", "build", *map(str, specs), "--store", str(store),
        "--jobs", str(jobs), "--json",
    ]  # fmt: skip
    began = time.perf_counter()
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return json.loads(told.stdout), time.perf_counter() - began
