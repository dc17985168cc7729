"""Checks that the arrays of a variant fit into the memory of a process."""

from __future__ import annotations

from collections.abc import Iterable

from pallasc.cache.format import size
from pallasc.checks.subject import Options, Subject
from pallasc.errors import CompileError
from pallasc.specs.arrays import ArraySpec
from pallasc.specs.artifacts.plan import Binding

_HINT = (
    "Name small sizes under check in the spec, or raise --memory. With fewer --jobs, each process "
    "gets more memory."
)


def check_arrays_fit(subject: Subject, options: Options) -> None:
    """Check that the arrays of a variant fit into the memory of this process.

    Inputs count twice: as passed, and in the emulated memory that the kernel reads.

    Raises:
        CompileError: they do not fit.
    """
    plan, limit = subject.plan, options.memory_bytes
    given, made = _bytes(plan.inputs), _bytes(plan.outputs)
    needed = (2 * given + made) * max(plan.device_count, 1)
    if limit is None or needed <= limit:
        return
    on = f" on {plan.device_count} devices" if plan.device_count > 1 else ""
    raise CompileError(
        f"the arrays of {subject.id}{on} need at least {size(needed, limit)} of memory, more than "
        f"the {size(limit)} that one process may hold (--memory)",
        hint=_HINT,
    )


def out_of_memory(name: str, error: MemoryError) -> CompileError:
    """Return the error for a variant that ran out of memory."""
    reason = str(error).partition("\n")[0].rstrip(".")
    lacking = CompileError(
        f"not enough memory to execute {name}{f': {reason}' if reason else ''}", hint=_HINT
    )
    lacking.__cause__ = error
    return lacking


def _bytes(bindings: Iterable[Binding]) -> int:
    return sum(ArraySpec(binding.dtype, binding.shape).nbytes for binding in bindings)
