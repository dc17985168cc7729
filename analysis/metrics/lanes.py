"""Detects kernels in which lanes of a warp diverge by lane number.

`thread.py` follows the first lane of each warp, and one that is not elected. The other lanes take
the same path unless a decision depends on the number of a thread within its warp.
"""

from __future__ import annotations

from collections.abc import Iterable

from pallasc.emulator.ptx.syntax import (
    Immediate,
    Instruction,
    Kernel,
    Register,
    Special,
    registers_in,
)

_LANE_BITS = 5


def by_single_lanes(kernel: Kernel, block: tuple[int, int, int], decisive: Iterable[int]) -> bool:
    """Return True if a guard among the `decisive` instructions depends on the lane.

    Args:
        kernel: the kernel.
        block: the size of its blocks.
        decisive: the numbers of the instructions that guards are computed from, and of guarded
            ones.
    """
    numbers = sorted(decisive)
    own: set[str] = set()
    grown = True
    while grown:
        before = len(own)
        for number in numbers:
            each = kernel.instructions[number]
            if _is_of_lane(each, own, whole_warps=block[0] % 32 == 0):
                own.update(register.name for o in each.operands[:1] for register in registers_in(o))
        grown = len(own) > before
    guards = (kernel.instructions[number].guard for number in numbers)
    return any(guard is not None and guard.name in own for guard in guards)


def _is_of_lane(each: Instruction, own: set[str], *, whole_warps: bool) -> bool:
    if each.parts[0] in ("shfl", "elect", "bra"):
        return False
    sources = each.operands[1:]
    if each.parts[0] == "shr" and isinstance(sources[-1], Immediate) and whole_warps:
        # The number of a warp, or of a warpgroup.
        return False if sources[-1].bits >= _LANE_BITS else _names(sources, own)
    return _names(sources, own)


def _names(sources: Iterable[object], own: set[str]) -> bool:
    for source in sources:
        if isinstance(source, Special) and source.name in ("%tid.x", "%laneid"):
            return True
        if isinstance(source, Register) and source.name in own:
            return True
    return False
