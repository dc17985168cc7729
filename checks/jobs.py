"""The jobs of a check: levels for artifacts, each run in a worker."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pallasc.checks.candidate import Candidate, Events
from pallasc.checks.levels import Level
from pallasc.checks.stored_results import Checkable
from pallasc.checks.subject import Options
from pallasc.errors import PallascError

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.checks.messages import Check
    from pallasc.compiler.builds.options import Options as BuildOptions
    from pallasc.compiler.workers.messages import Reply, Task

_PROGRAM = "pallasc.checks.worker"
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_GRACE_S = 5.0
"""Levels that enforce their own time limit report their progress; others are stopped after this
grace period."""


class Asking(NamedTuple):
    """A variant that asks for a result, and the result's scope if not the whole variant."""

    candidate: Candidate
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Job:
    """A level for one artifact, shared by the variants that ask for it."""

    level: Level
    subject: Candidate
    checkable: Checkable
    options: Options
    asking: list[Asking] = field(default_factory=list)
    xla_ptx: Mapping[str, str] = field(default_factory=dict)
    why_no_ptx: str = ""


def run_jobs(
    jobs: Sequence[Job],
    finish: Callable[[Job, Reply], None],
    *,
    store: Store,
    limits: BuildOptions,
    events: Events,
) -> None:
    """Run each job in a worker.

    Args:
        jobs: the jobs to run.
        finish: called with each finished job and its worker's reply.
        store: the store to look up the PTX of XLA's kernels in.
        limits: jobs, time and memory of the workers.
        events: callbacks for progress.

    Raises:
        ToolError: a worker cannot be started.
    """
    from pallasc.compiler.toolchain.setup import settled
    from pallasc.compiler.workers.pool import Pool, find_capacity

    capacity = find_capacity()
    count = limits.jobs or capacity.jobs(len(jobs))
    memory = limits.memory_bytes
    if memory is None:
        memory = capacity.memory_bytes(count)
    _find_ptx(jobs, store, limits, count)
    tasks = [_task(number, job, limits.timeout_s, memory) for number, job in enumerate(jobs)]
    done = 0
    with Pool(
        count,
        {**settled(os.environ), **_ONE_THREAD},
        timeout_s=limits.timeout_s,
        memory_bytes=memory or None,
        grace_s=_GRACE_S,
        program=_PROGRAM,
    ) as pool:
        for _, task, reply in pool.run(tasks):
            if task is not None and reply is not None:
                done += 1
                finish(jobs[task.label], reply)
            else:
                running = [(jobs[task.label], seconds) for task, seconds in pool.running()]
                named = [(f"{job.subject.id} ({job.level.name})", s) for job, s in running]
                events.on_tick(named, done, len(jobs))


def _find_ptx(jobs: Sequence[Job], store: Store, limits: BuildOptions, count: int) -> None:
    """Set the PTX of XLA's kernels on the jobs that take it, or the reason why there is none."""
    from pallasc.compiler.toolchain.setup import prepare
    from pallasc.compiler.workers.pool import find_ptx, without_ptx

    lacking = [
        (job, job.subject.variant)
        for job in jobs
        if job.level.takes_ptx and job.subject.variant and without_ptx(job.subject.artifact)
    ]
    if not lacking:
        return
    compiled = [(variant, job.subject.artifact) for job, variant in lacking]
    try:
        with prepare(limits.ptxas) as setup:
            found = find_ptx(compiled, setup, store, jobs=count, timeout_s=limits.timeout_s)
    except PallascError as error:  # no compiler is installed
        found = [error] * len(lacking)
    for (job, _), texts in zip(lacking, found, strict=True):
        if isinstance(texts, PallascError):
            job.why_no_ptx = texts.message
        else:
            job.xla_ptx = texts


def _task(label: int, job: Job, timeout_s: float | None, memory_bytes: int) -> Task:
    from pallasc.checks.messages import Check
    from pallasc.compiler.toolchain.setup import declared_values
    from pallasc.compiler.workers.messages import Task

    subject, level, options = job.subject, job.level, job.options
    variant = subject.variant if level.calls_user else None
    env = declared_values(variant.env) if variant is not None else {}
    devices = variant.mesh if variant is not None else ()
    folder = variant.base_dir if variant is not None else ""

    def request() -> Check:
        return Check(
            level=level.name,
            id=subject.id,
            variant=subject.variant,
            record=subject.artifact.record,
            blobs=subject.artifact.blobs(),
            seed=options.seed,
            schedules=options.schedules,
            inputs=options.inputs,
            xla_ptx=job.xla_ptx,
            why_no_ptx=job.why_no_ptx,
            timeout_s=timeout_s,
            memory_bytes=memory_bytes or None,
            env=env,
        )

    group = (f"{level.name} {devices}", folder, tuple(env.items()))
    return Task(label, group, request, f"the process that checks {subject.id}")
