"""Runs levels in workers, one job for each level and artifact."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pallasc.checks.emulate import check_installed
from pallasc.checks.worker import Check
from pallasc.compiler.toolchain.setup import declared_values, prepare, settled
from pallasc.compiler.workers.messages import Reply, Task
from pallasc.compiler.workers.pool import Pool, find_capacity, find_ptx, without_ptx
from pallasc.errors import PallascError

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.checks.check import Job, OnTick
    from pallasc.compiler.builds.options import Options as BuildOptions

_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_GRACE_S = 5.0
"""Extra time before a level is stopped, so that levels with their own time limit can report their
progress."""


def run_jobs(
    jobs: Sequence[Job],
    finish: Callable[[Job, Reply], None],
    *,
    store: Store,
    limits: BuildOptions,
    on_tick: OnTick,
) -> None:
    """Run each job in a worker.

    Args:
        jobs: the jobs to run.
        finish: called with each finished job and its worker's reply.
        store: the store with the PTX of XLA's kernels.
        limits: jobs, time and memory of the workers.
        on_tick: called regularly with the running jobs.

    Raises:
        ToolError: a worker cannot be started, or numpy or ml_dtypes is not installed.
    """
    check_installed()
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
        memory_bytes=memory,
        grace_s=_GRACE_S,
        program="pallasc.checks.worker",
    ) as pool:
        for _, task, reply in pool.run(tasks):
            if task is not None and reply is not None:
                done += 1
                finish(jobs[task.label], reply)
            else:
                running = [(jobs[task.label], seconds) for task, seconds in pool.running()]
                on_tick([(f"{j.subject.id} ({j.level})", s) for j, s in running], done, len(jobs))


def _find_ptx(jobs: Sequence[Job], store: Store, limits: BuildOptions, count: int) -> None:
    """Add the PTX of XLA's kernels to the jobs that execute it, or the reason if there is none."""
    lacking = [
        (job, (job.subject.variant, job.subject.artifact))
        for job in jobs
        if job.level == "artifact" and job.subject.variant and without_ptx(job.subject.artifact)
    ]
    if not lacking:
        return
    compiled = [pair for _, pair in lacking]
    try:
        with prepare(limits.ptxas) as setup:
            found = find_ptx(compiled, setup, store, jobs=count, timeout_s=limits.timeout_s)
    except PallascError as error:  # no compiler is installed
        found = [error] * len(lacking)
    for (job, _), texts in zip(lacking, found, strict=True):
        if isinstance(texts, PallascError):
            job.subject = replace(job.subject, why_no_ptx=texts.message)
        else:
            job.subject = replace(job.subject, xla_ptx=texts)


def _task(label: int, job: Job, timeout_s: float | None, memory_bytes: int) -> Task:
    subject, variant = job.subject, job.subject.variant
    env = declared_values(variant.env) if variant is not None else {}
    devices = variant.mesh if variant is not None else ()
    folder = variant.base_dir if variant is not None else ""

    def request() -> Check:
        return Check(
            level=job.level,
            id=subject.id,
            variant=variant,
            record=subject.artifact.record,
            blobs=subject.artifact.blobs(),
            options=replace(job.options, timeout_s=timeout_s, memory_bytes=memory_bytes or None),
            xla_ptx=subject.xla_ptx,
            why_no_ptx=subject.why_no_ptx,
            env=env,
        )

    group = (f"{job.level} {devices}", folder, tuple(env.items()))
    return Task(label, group, request, f"the process that checks {subject.id}")
