"""A build as `pallasc build` makes it, with the times of what happens; for `farm_home`.

    python -P farm_trace.py SPEC STORE JOBS BEGAN

prints one JSON object: when the workers were started, when the first variant was handed out, when
each variant's result was there (with its name and the seconds that compiling it took), and what the
build and its workers used of the processors. All times are seconds since BEGAN, the moment on the
monotonic clock at which the caller started this process.

Each worker keeps to one core. Beside other programs Linux may leave two workers on one core for
long while something of lower priority has the other; that cost two workers a fifth of their speed,
and says nothing about builds.
"""

import itertools
import json
import os
import resource
import sys
import time
from pathlib import Path

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.compiler.builds.report import Event, Tick
from pallasc.compiler.workers.pool import Pool
from pallasc.compiler.workers.worker_process import Worker
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml


def main(spec: str, store: str, jobs: int, began_s: float) -> None:
    """Build, and print what was noted."""
    told: dict[str, object] = {}
    results: list[tuple[str, str, float, float]] = []
    warm = Pool.warm

    def since_s() -> float:
        return time.monotonic() - began_s

    def noted_warm(pool: Pool, count: int) -> None:
        told.setdefault("warm_s", since_s())
        warm(pool, count)

    def on_event(event: Event | Tick) -> None:
        if isinstance(event, Tick):
            return
        if event.kind == "started":
            if "first_s" not in told:
                told.update(first_s=since_s(), own_before_s=_used_s(resource.RUSAGE_SELF))
        elif event.result is not None:
            variant = event.variant
            results.append((variant.name, variant.id, event.result.seconds, since_s()))

    Pool.warm = noted_warm  # type: ignore[method-assign]
    _keep_to_cores()
    variants = expand(load_yaml(Path(spec)))
    report = build(variants, store=Store(store), options=Options(jobs=jobs), on_event=on_event)
    if any(result.status != "compiled" for result in report.results):
        raise SystemExit(f"{spec}: something was not compiled")
    told.update(
        results=results,
        own_s=_used_s(resource.RUSAGE_SELF),
        workers_s=_used_s(resource.RUSAGE_CHILDREN),
    )
    print(json.dumps(told))


def _keep_to_cores() -> None:
    """Have each worker that is started inherit one core, in turn."""
    all_cores = os.sched_getaffinity(0)
    cores = itertools.cycle(sorted(all_cores))
    new_worker = Pool._new_worker

    def kept(pool: Pool) -> Worker:
        os.sched_setaffinity(0, {next(cores)})
        try:
            return new_worker(pool)
        finally:
            os.sched_setaffinity(0, all_cores)

    Pool._new_worker = kept  # type: ignore[method-assign]


def _used_s(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
