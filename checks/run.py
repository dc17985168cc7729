"""Runs levels and emulations in workers, with the build's limits on time and memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import repeat
from typing import TYPE_CHECKING

from msgspec import structs

from pallasc.checks.findings import ARTIFACT_RULES, Finding, from_findings
from pallasc.checks.levels import Subject
from pallasc.checks.locate import with_source_lines
from pallasc.checks.worker import Check, Emulate, Emulated
from pallasc.compiler.toolchain.setup import declared_values, prepare, settled
from pallasc.compiler.workers.messages import Reply, Task
from pallasc.compiler.workers.pool import Pool, Texts, find_capacity, find_ptx, without_ptx
from pallasc.errors import CheckError, PallascError, ToolError, UnsupportedError

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.checks.report import Job, Settings
    from pallasc.compiler.builds.options import Options
    from pallasc.specs.artifacts.artifact import Artifact
    from pallasc.specs.spec import Variant


_HELP = {rule.name: rule.help for rule in ARTIFACT_RULES}


def check_installed() -> None:
    """Check that the emulator's dependencies are installed.

    Raises:
        ToolError: one of them is missing.
    """
    lacking = [name for name in ("numpy", "ml_dtypes") if find_spec(name) is None]
    if lacking:
        raise ToolError(
            f"the emulator requires {' and '.join(lacking)}, not installed in this Python.",
            hint="Install it with: pip install 'pallasc[emulate]'",
        )


_NOT_KEPT = "pallasc bundle create --keep-ptx keeps PTX in bundles"
_OF_XLA = "it is an XLA kernel, and bundles never contain its PTX; name the spec instead"


def with_ptx(subjects: Sequence[Subject], store: Store, limits: Options) -> Iterator[Subject]:
    """Yield subjects with the PTX of XLA's kernels, or the reason why there is none.

    Args:
        subjects: the variants; those with source are compiled again to get the PTX.
        store: the build's store.
        limits: the number of compiling processes and their time limit.
    """
    compiled = [
        (subject.variant, subject.artifact)
        for subject in subjects
        if subject.variant is not None and without_ptx(subject.artifact)
    ]
    found: Iterator[Texts | PallascError] = iter(())
    if compiled:
        jobs = limits.jobs or find_capacity().jobs(len(compiled))
        try:
            with prepare(limits.ptxas) as setup:
                found = iter(
                    find_ptx(compiled, setup, store, jobs=jobs, timeout_s=limits.timeout_s)
                )
        except PallascError as error:  # no compiler is installed
            found = repeat(error)
    for subject in subjects:
        if not without_ptx(subject.artifact):
            yield subject
        elif subject.variant is None:
            own = [kernel for kernel in subject.artifact.kernels if kernel.origin == "mosaic"]
            why = _NOT_KEPT if any(kernel.ptx is None for kernel in own) else _OF_XLA
            yield replace(subject, why_no_ptx=why)
        elif isinstance(texts := next(found), PallascError):
            yield replace(subject, why_no_ptx=texts.message.strip().rstrip("."))
        else:
            yield replace(subject, xla_ptx=texts)


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


def subjects_of(
    compiled: Sequence[tuple[Variant, Artifact]], *, store: Store, is_bundled: bool, limits: Options
) -> list[Subject]:
    """Return the subjects to emulate, compiling again to get the PTX of XLA's kernels.

    Raises:
        UnsupportedError: the PTX of a kernel is not available.
    """
    subjects = [Subject(v.id, artifact, None if is_bundled else v) for v, artifact in compiled]
    found = list(with_ptx(subjects, store, limits))
    for subject in found:
        if subject.why_no_ptx:
            (first, *_), *_ = without_ptx(subject.artifact).values()
            raise UnsupportedError(
                f"{subject.id}: there is no PTX of the kernel {first}: {subject.why_no_ptx}."
            )
    return found


def emulate(
    subject: Subject, inputs: Sequence[bytes], *, store: Store, limits: Options
) -> Emulated:
    """Run the plan of a variant in a worker, and locate a fault in the user's source.

    Args:
        subject: the variant, with all PTX.
        inputs: the bytes of each input as in device memory; the arrays of all devices are joined.
        store: the build's store.
        limits: time and memory limits.

    Raises:
        UnsupportedError: a kernel has an instruction that the emulator does not support.
        CompileError: the worker was stopped at a limit, or died.
    """
    request = Emulate(
        record=subject.artifact.record,
        blobs=subject.artifact.blobs(),
        xla_ptx=subject.xla_ptx,
        inputs=tuple(inputs),
    )
    task = Task(0, ("", "", ()), request, f"the process that emulates {subject.id}")
    emulated = _answer(task, limits)
    if emulated.fault is None:
        return emulated
    result = from_findings("artifact", (emulated.fault,))
    ((located, _),) = with_source_lines([(result, subject)], store, limits)
    return structs.replace(emulated, fault=located.findings[0])


def _answer(task: Task, limits: Options) -> Emulated:
    with Pool(
        1,
        settled(os.environ),
        timeout_s=limits.timeout_s,
        memory_bytes=limits.memory_bytes,
        tick_s=None,
        program="pallasc.checks.worker",
    ) as pool:
        for _, _, reply in pool.run([task]):
            if reply is not None:
                return reply.require(Emulated)
    raise PallascError(f"{task.doing} sent no answer.")


def fault_error(subject: Subject, fault: Finding) -> CheckError:
    """Return the error that describes a kernel's fault, with a hint."""
    at = f" (at {fault.instruction})" if fault.instruction else ""
    places = [
        f"\n  {f'{place.location}: ' if place.location else ''}{place.text}"
        for place in fault.places
    ]
    return CheckError(
        f"{subject.id}: {fault.message}{at} [{fault.rule}]{''.join(places)}",
        location=fault.location,
        hint=fault.hint or _HELP[fault.rule],
    )
