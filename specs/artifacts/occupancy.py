"""How many blocks of a launch a multiprocessor holds at once, and what limits them.

From the CUDA Occupancy Calculator: registers are given to warps in units of 256, and suffice for a
multiple of 4 warps, one for each part of a multiprocessor; from compute capability 8.0 on each
block takes 1,024 bytes of shared memory for the system.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pallasc.errors import CorruptError
from pallasc.specs.gpus import ARCH, ARCHITECTURES, MOST_BLOCKS_PER_SM

if TYPE_CHECKING:
    from pallasc.specs.artifacts.artifact import KernelResources, LaunchSize
    from pallasc.specs.artifacts.plan import Launch

REGISTERS_PER_SM = 65536
_WARP_THREADS = 32
_REGISTER_UNIT = 256
_WARP_UNIT = 4
_RESERVED_SMEM_BYTES = 1024


def blocks_by_limit(
    launch: Launch | LaunchSize,
    kernel: KernelResources,
    *,
    arch: str,
    threads_per_sm: int,
    smem_per_sm_bytes: int,
) -> dict[str, int]:
    """Return how many blocks of a launch each resource of a multiprocessor suffices for.

    The resources are "registers", "shared memory", "threads" and "blocks"; the least is what fits.

    Args:
        launch: the launch.
        kernel: what its kernel takes.
        arch: the architecture, `sm_90a`; of one that is not known, the most blocks of any count.
        threads_per_sm: resident threads of a multiprocessor.
        smem_per_sm_bytes: shared memory of a multiprocessor.
    """
    smem = launch.dynamic_smem_bytes + kernel.static_smem_bytes + _RESERVED_SMEM_BYTES
    match = ARCH.fullmatch(arch)
    row = ARCHITECTURES.get((int(match[1]), int(match[2]))) if match else None
    return {
        "registers": _warps_with_registers(kernel) // warps_of_block(launch),
        "shared memory": smem_per_sm_bytes // smem,
        "threads": threads_per_sm // (_WARP_THREADS * warps_of_block(launch)),
        "blocks": row.blocks_per_sm if row else MOST_BLOCKS_PER_SM,
    }


def model_figure(target: Mapping[str, Any], name: str) -> int:
    """Return a number that an artifact's record has of its model, such as `sm_count`.

    Raises:
        CorruptError: it has none, or something else.
    """
    figure = target.get(name)
    if type(figure) is not int or figure < 0:
        raise CorruptError(f"the artifact's target gives {figure!r} as its {name}")
    return figure


def blocks_per_sm(
    launch: Launch | LaunchSize, kernel: KernelResources, target: Mapping[str, Any]
) -> int:
    """Return how many blocks of a launch one multiprocessor of a model holds.

    Raises:
        CorruptError: the target lacks a number.
    """
    limits = blocks_by_limit(
        launch,
        kernel,
        arch=str(target.get("arch")),
        threads_per_sm=model_figure(target, "threads_per_sm"),
        smem_per_sm_bytes=model_figure(target, "smem_per_sm_bytes"),
    )
    return max(1, min(limits.values()))


def warps_per_sm(
    launch: Launch | LaunchSize, kernel: KernelResources, target: Mapping[str, Any]
) -> int:
    """Return how many warps of a launch one multiprocessor of a model holds.

    Raises:
        CorruptError: the target lacks a number.
    """
    return blocks_per_sm(launch, kernel, target) * warps_of_block(launch)


def warps_of_block(launch: Launch | LaunchSize) -> int:
    """Return how many warps a block of a launch has."""
    return -(-math.prod(launch.block) // _WARP_THREADS)


def _registers_of_warp(kernel: KernelResources) -> int:
    return -(-max(kernel.registers, 1) * _WARP_THREADS // _REGISTER_UNIT) * _REGISTER_UNIT


def _warps_with_registers(kernel: KernelResources) -> int:
    return REGISTERS_PER_SM // _registers_of_warp(kernel) // _WARP_UNIT * _WARP_UNIT
