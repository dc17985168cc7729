"""Lower bound on the time of a launch on its target, from bytes and operations alone.

Device memory moves at most `memory_bandwidth_bytes_per_s`, tensor cores do at most the operations
of `peaks.py`, and a launch reads or writes each of the caller's arrays that it is passed at least
once. How close a kernel comes to the bound is not estimated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pallasc.analysis.metrics.peaks import peak_operations_per_s
from pallasc.analysis.metrics.work import Work
from pallasc.specs.artifacts.plan import Bytes, Launch, LaunchPlan, Pointer
from pallasc.specs.artifacts.resources import model_figure

Limit = Literal["memory", "tensor"]


@dataclass(frozen=True, slots=True)
class Roofline:
    """Lower bounds of a launch.

    Attributes:
        least_bytes: total size of the inputs, outputs and constants passed to it, each counted
            once.
        seconds_of_bytes: time to move these bytes at the bandwidth of the device memory.
        seconds_of_flops: time of the tensor-core operations at their peak; None if unknown.
        bound_s: the maximum of the two.
        limited_by: the resource that determines `bound_s`, "memory" or "tensor".
        reasons: why a field is None.
    """

    least_bytes: int
    seconds_of_bytes: float
    seconds_of_flops: float | None
    bound_s: float
    limited_by: Limit
    reasons: Mapping[str, str] = field(default_factory=dict)


def roofline_of(
    launch: Launch, plan: LaunchPlan, target: Mapping[str, Any], work: Work
) -> Roofline:
    """Return the bounds of a launch on the model that it was compiled for.

    Raises:
        CorruptError: the target lacks a number.
    """
    least = sum(
        plan.buffers[number].size
        for number in sorted(set(_buffers(launch)))
        if plan.buffers[number].role != "temporary"
    )
    bandwidth = max(1, model_figure(target, "memory_bandwidth_bytes_per_s"))
    of_bytes = least / bandwidth
    of_flops, reason = _seconds_of_flops(work, str(target.get("name")))
    limited_by: Limit = "tensor" if of_flops is not None and of_flops > of_bytes else "memory"
    return Roofline(
        least_bytes=least,
        seconds_of_bytes=of_bytes,
        seconds_of_flops=of_flops,
        bound_s=max(of_bytes, of_flops or 0.0),
        limited_by=limited_by,
        reasons={"seconds_of_flops": reason} if reason else {},
    )


def _buffers(launch: Launch) -> Iterator[int]:
    for parameter in launch.parameters:
        if isinstance(parameter, Pointer):
            yield parameter.buffer
        elif isinstance(parameter, Bytes):
            yield from (tensor_map.buffer for _, tensor_map in parameter.tensor_maps)


def _seconds_of_flops(work: Work, model: str) -> tuple[float | None, str]:
    if work.tensor_flops is None:
        return None, work.reasons["tensor_flops"]
    seconds = 0.0
    for kind, operations in work.tensor_flops.items():
        peak = peak_operations_per_s(model, kind)
        if peak is None:
            return None, f"no peak of {model} for {kind} is known"
        seconds += operations / peak
    return seconds, ""
