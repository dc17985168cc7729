"""Scopes: the reach of strong accesses and fences (PTX ISA 9.0, 8.5).

Two strong accesses do not race, and an acquire sees a release, if the scope of each includes the
thread of the other.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from pallasc.emulator.machine.warp import Warp

WEAK, CTA, CLUSTER, GPU, SYS = range(-1, 4)
NAMES = (".cta", ".cluster", ".gpu", ".sys")
_SCOPES = {"cta": CTA, "cluster": CLUSTER, "gpu": GPU, "gl": GPU, "sys": SYS}


def scope_of(parts: Collection[str], default: int) -> int:
    """Return the scope that the parts of an opcode name."""
    return next((scope for name, scope in _SCOPES.items() if name in parts), default)


def distance(one: Warp, other: Warp) -> int:
    """Return the narrowest scope that includes both warps."""
    if one.block is other.block:
        return CTA
    if one.block.cluster is other.block.cluster:
        return CLUSTER
    return GPU if one.block.device == other.block.device else SYS


class Domain(NamedTuple):
    """The threads that a release reaches: those of a device, of a cluster or of a block, or all."""

    scope: int
    device: int
    cluster: int = 0
    rank: int = 0

    @classmethod
    def around(cls, warp: Warp, cluster: int, scope: int) -> Domain:
        """Return the domain of a warp's release; `cluster` is the number of its cluster."""
        block = warp.block
        if scope >= GPU:
            return cls(scope, block.device)
        return cls(scope, block.device, cluster, block.rank if scope == CTA else 0)

    def has(self, warp: Warp, cluster: int) -> bool:
        """Return True if the domain includes a warp."""
        return self.scope == SYS or self == Domain.around(warp, cluster, self.scope)

    def needed(self, warp: Warp, is_near: bool) -> int:
        """Return the scope that an acquire needs; `is_near` if its own cluster released, too."""
        if self.device != warp.block.device:
            return SYS
        return CTA if is_near else GPU
