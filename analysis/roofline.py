"""Lower bound on the time of a launch on its target, from bytes and operations alone.

Device memory moves at most `memory_bandwidth_bytes_per_s`, tensor cores do at most their peak
operations, and a launch accesses each array that is passed to it, except temporaries, at least
once. How close a kernel comes to the bound is not estimated.

The peaks are dense figures, half of the data sheets' figures "with sparsity", at the boost clock.
From NVIDIA's data sheets "A100 Tensor Core GPU" (2021), "RTX A6000" (2020), "L40S" (2023), "H100
Tensor Core GPU" (2023), "H200 Tensor Core GPU" (2024), "GH200 Grace Hopper Superchip" (2023) and
"Blackwell" (B200 and GB200: HGX and GB200 NVL72, 2025; B300 and GB300: HGX and GB300 NVL72, 2025),
with the digits of the architectures' whitepapers where a data sheet rounds. Types and models for
which the sources have no figure are left out. Jetsons are left out, too: their figures are for the
GPU and other processors together. The peaks are only for reports: no module that compiles imports
this one, so the peaks do not affect keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from pallasc.analysis.work import Work
from pallasc.specs.artifacts.plan import Launch, LaunchPlan
from pallasc.specs.gpus import Target

_H100 = {"f16": 989.4, "tf32": 494.7, "f8": 1978.9, "i8": 1978.9, "f64": 66.9}
_B200 = {"f16": 2250.0, "tf32": 1125.0, "f8": 4500.0, "i8": 4500.0}
_GB200 = {"f16": 2500.0, "tf32": 1250.0, "f8": 5000.0, "i8": 5000.0}
_A100 = {"f16": 312.0, "tf32": 156.0, "i8": 624.0, "f64": 19.5}

_TERA_OPERATIONS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        **dict.fromkeys(("a100-sxm", "a100-sxm-40gb", "a100-pcie"), _A100),
        "a6000": {"f16": 154.8, "tf32": 77.4, "i8": 309.7},
        "l40s": {"f16": 362.05, "tf32": 183.2, "f8": 733.0, "i8": 733.0},
        **dict.fromkeys(("h100-sxm", "h200", "gh200"), _H100),
        "h100-pcie": {"f16": 756.5, "tf32": 378.0, "f8": 1513.0, "i8": 1513.0, "f64": 51.0},
        "b200": _B200,
        "gb200": _GB200,
        "b300": {"f16": 2250.0, "tf32": 1125.0, "f8": 4500.0},
        "gb300": {"f16": 2500.0, "tf32": 1250.0, "f8": 5000.0},
    }
)
"""Peaks in 10^12 operations per second, by model and type; "f16" includes bf16, and "f8" includes
all 8-bit types that are not integers."""


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
    """

    least_bytes: int
    seconds_of_bytes: float
    seconds_of_flops: float | None
    bound_s: float
    limited_by: Literal["memory", "tensor"]


def roofline_of(launch: Launch, plan: LaunchPlan, target: Target, work: Work) -> Roofline:
    """Return the bounds of a launch on the model that it was compiled for."""
    numbers = {access.buffer for access in launch.accesses()}
    buffers = [plan.buffers[number] for number in numbers]
    least = sum(buffer.size for buffer in buffers if buffer.role != "temporary")
    of_bytes = least / target.memory_bandwidth_bytes_per_s
    of_flops = _seconds_of_flops(work, target.name)
    by_tensor = of_flops is not None and of_flops > of_bytes
    return Roofline(
        least_bytes=least,
        seconds_of_bytes=of_bytes,
        seconds_of_flops=of_flops,
        bound_s=max(of_bytes, of_flops or 0.0),
        limited_by="tensor" if by_tensor else "memory",
    )


def _seconds_of_flops(work: Work, model: str) -> float | None:
    peaks = _TERA_OPERATIONS.get(model, {})
    if work.tensor_flops is None or not work.tensor_flops.keys() <= peaks.keys():
        return None
    return sum((n / (peaks[kind] * 10**12) for kind, n in work.tensor_flops.items()), 0.0)
