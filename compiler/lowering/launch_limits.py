"""Check launches against the limits of the hardware, which otherwise only the driver would tell.

Limits: CUDA C++ programming guide, "Technical specifications per compute capability"; a cluster of
more than 8 blocks is not portable, and 16 is the most that any GPU has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from pallasc.errors import CompileError
from pallasc.specs.artifacts.artifact import KernelResources
from pallasc.specs.artifacts.plan import Launch, LaunchPlan
from pallasc.specs.gpus import Target

_GRID = (2**31 - 1, 65535, 65535)
_BLOCK = (1024, 1024, 64)
_THREADS = 1024
_CLUSTER = 16
_REGISTERS = 65536


def check_launches(plan: LaunchPlan, kernels: Iterable[KernelResources], target: Target) -> None:
    """Check every launch of a plan.

    Raises:
        CompileError: a launch asks for more than `target` has.
    """
    resources = {(kernel.cubin, kernel.name): kernel for kernel in kernels}
    for step in plan.steps:
        if isinstance(step, Launch):
            problem = (
                _shape_problem(step)
                or _cluster_problem(step, target)
                or _resource_problem(step, resources[step.cubin, step.kernel], target)
            )
            if problem:
                raise CompileError(f"{step.kernel} cannot be launched: {problem}", kind="launch")


def _shape_problem(launch: Launch) -> str | None:
    threads = math.prod(launch.block)
    if threads > _THREADS:
        return f"a block has {threads} threads, and CUDA takes at most {_THREADS}"
    for what, sizes, most in (("grid", launch.grid, _GRID), ("block", launch.block, _BLOCK)):
        if any(not 1 <= size <= limit for size, limit in zip(sizes, most, strict=True)):
            return f"its {what} in 32 bits is {sizes}, and CUDA takes from 1 to {most}"
    return None


def _cluster_problem(launch: Launch, target: Target) -> str | None:
    if launch.cluster is None:
        return None
    blocks = math.prod(launch.cluster)
    if "clusters" not in target.features and blocks > 1:
        return f"it has clusters, and {target.arch} has none"
    if blocks > _CLUSTER:
        return f"a cluster has {blocks} blocks, and GPUs take at most {_CLUSTER}"
    if any(size % part for size, part in zip(launch.grid, launch.cluster, strict=True)):
        return f"its grid {launch.grid} does not divide into clusters of {launch.cluster}"
    return None


def _resource_problem(launch: Launch, kernel: KernelResources, target: Target) -> str | None:
    smem = launch.dynamic_smem_bytes + kernel.static_smem_bytes
    if smem > target.smem_optin_bytes:
        has = target.smem_optin_bytes
        return f"a block takes {smem} bytes of shared memory, and {target.name} has {has}"
    registers = math.prod(launch.block) * kernel.registers
    if registers > _REGISTERS:
        return f"a block takes {registers} registers, and a multiprocessor has {_REGISTERS}"
    return None
