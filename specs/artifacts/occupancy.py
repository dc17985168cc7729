"""Occupancy: the blocks of a launch that a multiprocessor holds at once, and their limits.

From the CUDA Occupancy Calculator: registers are allocated to warps in units of 256, and the number
of warps is a multiple of 4, one for each partition of a multiprocessor. From compute capability 8.0
on, each block uses 1,024 bytes of shared memory for the system.
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
    launch: Launch | LaunchSize, kernel: KernelResources, target: Mapping[str, Any]
) -> dict[str, int]:
    """Return how many blocks of a launch each resource of a multiprocessor allows.

    The resources are "registers", "shared memory", "threads", and "blocks"; the minimum fits.

    Args:
        launch: the launch.
        kernel: resources of its kernel.
        target: the model. An unknown architecture gets the highest limit on blocks.

    Raises:
        CorruptError: the target lacks a number.
    """
    smem = launch.dynamic_smem_bytes + kernel.static_smem_bytes + _RESERVED_SMEM_BYTES
    match = ARCH.fullmatch(str(target.get("arch")))
    row = ARCHITECTURES.get((int(match[1]), int(match[2]))) if match else None
    warps = warps_of_block(launch)
    return {
        "registers": _warps_with_registers(kernel) // warps,
        "shared memory": model_figure(target, "smem_per_sm_bytes") // smem,
        "threads": model_figure(target, "threads_per_sm") // (_WARP_THREADS * warps),
        "blocks": row.blocks_per_sm if row else MOST_BLOCKS_PER_SM,
    }


def model_figure(target: Mapping[str, Any], name: str) -> int:
    """Return a figure of the model in an artifact's record, such as `sm_count`.

    Raises:
        CorruptError: the figure is missing or malformed.
    """
    figure = target.get(name)
    if type(figure) is not int or figure < 0:
        raise CorruptError(f"the artifact's target gives {figure!r} as its {name}")
    return figure


def blocks_per_sm(
    launch: Launch | LaunchSize, kernel: KernelResources, target: Mapping[str, Any]
) -> int:
    """Return the number of blocks of a launch that one multiprocessor holds.

    Raises:
        CorruptError: the target lacks a number.
    """
    return max(1, min(blocks_by_limit(launch, kernel, target).values()))


def warps_of_block(launch: Launch | LaunchSize) -> int:
    """Return the number of warps in a block of a launch."""
    return -(-math.prod(launch.block) // _WARP_THREADS)


def _warps_with_registers(kernel: KernelResources) -> int:
    units = -(-max(kernel.registers, 1) * _WARP_THREADS // _REGISTER_UNIT)
    return REGISTERS_PER_SM // (units * _REGISTER_UNIT) // _WARP_UNIT * _WARP_UNIT
