"""Runs levels in workers, one job for each level and artifact."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pallasc.checks.emulate import check_installed, with_ptx
from pallasc.checks.worker import Check
from pallasc.compiler.toolchain.setup import declared_values, settled
from pallasc.compiler.workers.messages import Reply, Task
from pallasc.compiler.workers.pool import Pool, find_capacity

if TYPE_CHECKING:
    from pallasc.checks.report import Job, Settings

_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_GRACE_S = 5.0
"""Extra time before a level is stopped, so that levels with their own time limit can report their
progress."""


def run_jobs(jobs: Sequence[Job], finish: Callable[[Job, Reply], None], settings: Settings) -> None:
    """Run each job in a worker.

    Args:
        jobs: the jobs to run.
        finish: called with each finished job and its worker's reply.
        settings: the check's settings.

    Raises:
        ToolError: a worker cannot be started, or numpy or ml_dtypes is not installed.
    """
    limits = settings.limits
    check_installed()
    capacity = find_capacity()
    count = limits.jobs or capacity.jobs(len(jobs))
    memory = limits.memory_bytes
    if memory is None:
        memory = capacity.memory_bytes(count)
    executed = [job for job in jobs if job.level == "artifact"]
    found = with_ptx([job.subject for job in executed], settings.store, limits)
    for job, subject in zip(executed, found, strict=True):
        job.subject = subject
    tasks = [_task(number, job, limits.timeout_s) for number, job in enumerate(jobs)]
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
                named = [(f"{job.subject.id} ({job.level})", s) for job, s in running]
                settings.events.on_tick(named, done, len(jobs))


def _task(label: int, job: Job, timeout_s: float | None) -> Task:
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
            options=replace(job.options, timeout_s=timeout_s),
            xla_ptx=subject.xla_ptx,
            why_no_ptx=subject.why_no_ptx,
            env=env,
        )

    group = (f"{job.level} {devices}", folder, tuple(env.items()))
    return Task(label, group, request, f"the process that checks {subject.id}")
