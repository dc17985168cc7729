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
    launch: Launch | LaunchSize, kernel: KernelResources, target: Mapping[str, Any]
) -> dict[str, int]:
    """Return how many blocks of a launch each resource of a multiprocessor suffices for.

    The resources are "registers", "shared memory", "threads" and "blocks"; the least is what fits.

    Args:
        launch: the launch.
        kernel: what its kernel takes.
        target: the model. Of an architecture that is not known, the most blocks of any count.

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
    return max(1, min(blocks_by_limit(launch, kernel, target).values()))


def warps_of_block(launch: Launch | LaunchSize) -> int:
    """Return how many warps a block of a launch has."""
    return -(-math.prod(launch.block) // _WARP_THREADS)


def _warps_with_registers(kernel: KernelResources) -> int:
    units = -(-max(kernel.registers, 1) * _WARP_THREADS // _REGISTER_UNIT)
    return REGISTERS_PER_SM // (units * _REGISTER_UNIT) // _WARP_UNIT * _WARP_UNIT
