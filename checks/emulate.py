"""Emulate compiled variants in a worker, with the build's limits on time and memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from msgspec import structs

from pallasc.checks.findings import ARTIFACT_RULES, Finding, from_findings
from pallasc.checks.levels import Subject
from pallasc.checks.locate import Locator
from pallasc.checks.worker import Emulate, Emulated
from pallasc.compiler.toolchain.setup import prepare, settled
from pallasc.compiler.workers.messages import Task
from pallasc.compiler.workers.pool import Pool, find_capacity, find_ptx, without_ptx
from pallasc.errors import CheckError, PallascError, ToolError, UnsupportedError

if TYPE_CHECKING:
    from pallasc.cache.store import Store
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
            f"emulation requires {' and '.join(lacking)}, not installed in this Python.",
            hint="Run pip install pallasc[emulate].",
        )


def subjects_of(
    compiled: Sequence[tuple[Variant, Artifact]], *, store: Store | None, limits: Options
) -> list[Subject]:
    """Return the subjects to emulate, compiling again to get the PTX of XLA's kernels.

    Args:
        compiled: variants and their artifacts.
        store: the build's store; None if there is no source, as for bundles.
        limits: the number of compiling processes and their time limit.

    Raises:
        UnsupportedError: the PTX of a kernel is not available.
        ToolError: a compiler is needed and none is installed.
    """
    if store is None:
        for variant, artifact in compiled:
            _check_complete(variant, artifact)
        return [Subject(variant.id, artifact) for variant, artifact in compiled]
    if not any(without_ptx(artifact) for _, artifact in compiled):
        return [Subject(variant.id, artifact, variant) for variant, artifact in compiled]
    jobs = limits.jobs or find_capacity().jobs(len(compiled))
    with prepare(limits.ptxas) as setup:
        found = find_ptx(compiled, setup, store, jobs=jobs, timeout_s=limits.timeout_s)
    subjects = []
    for (variant, artifact), texts in zip(compiled, found, strict=True):
        if isinstance(texts, PallascError):
            raise texts
        subjects.append(Subject(variant.id, artifact, variant, texts))
    return subjects


def _check_complete(variant: Variant, artifact: Artifact) -> None:
    lacking = without_ptx(artifact)
    if not lacking:
        return
    own = [kernel for kernel in artifact.kernels if kernel.origin == "mosaic"]
    if any(kernel.ptx is None for kernel in own):
        hint = "Write the bundle with pallasc bundle create --keep-ptx, or name the spec instead."
    else:
        hint = "It is a kernel of XLA's. Name the spec instead of the bundle."
    (first, *_), *_ = lacking.values()
    raise UnsupportedError(f"{variant.id}: the bundle has no PTX of the kernel {first}.", hint=hint)


def emulate(
    subject: Subject, inputs: Sequence[bytes], *, store: Store | None, limits: Options
) -> Emulated:
    """Run the plan of a variant in a worker, and locate a fault in the user's source.

    Args:
        subject: the variant, with all PTX.
        inputs: the bytes of each input as in device memory; the arrays of all devices are joined.
        store: the build's store, None if there is no source.
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
    if emulated.fault is None or store is None:
        return emulated
    result = from_findings("artifact", (emulated.fault,))
    locator = Locator(store, limits.timeout_s, jobs=1)
    (located,) = locator.located([(result, subject)])
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
