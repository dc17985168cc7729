"""The figures of a variant: one number each, for tables, plots and rankings.

A variant may launch several kernels. Registers, shared memory and spills are the maximum over its
kernels; occupancy is the lowest of its Mosaic launches; the roofline bound is for all launches
together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pallasc.analysis.metrics import KernelMetrics, Occupancy
from pallasc.specs.artifacts.artifact import Artifact


class Figures(NamedTuple):
    """The figures of a variant; None if unknown.

    Attributes:
        registers: of a thread.
        spill_bytes: of a thread, stores and loads.
        smem_bytes: of a block, static and dynamic.
        cubin_bytes: of all its cubins.
        occupancy: see the module; 0 to 1.
        limited_by: the resources that limit it.
        bound_s: the minimum time for the operations and bytes of its launches on the target.
    """

    registers: int | None = None
    spill_bytes: int | None = None
    smem_bytes: int | None = None
    cubin_bytes: int | None = None
    occupancy: float | None = None
    limited_by: str = ""
    bound_s: float | None = None


def figures_of(artifact: Artifact, metrics: Sequence[KernelMetrics]) -> Figures:
    """Return the figures of an artifact, given the metrics of its launches.

    Raises:
        CorruptError: its record is damaged.
    """
    spills = [kernel.spill_bytes for kernel in artifact.kernels]
    mosaic = [each.occupancy for each in metrics if each.origin == "mosaic"]
    least = min(mosaic or [each.occupancy for each in metrics], key=part_of, default=None)
    return Figures(
        registers=max((kernel.registers for kernel in artifact.kernels), default=None),
        spill_bytes=None if None in spills else max(filter(None, spills), default=0),
        smem_bytes=max((kernel.smem_bytes for kernel in artifact.kernels), default=None),
        cubin_bytes=artifact.cubin_bytes,
        occupancy=part_of(least) if least else None,
        limited_by=", ".join(least.limited_by) if least else "",
        bound_s=sum(each.roofline.bound_s for each in metrics) if metrics else None,
    )


def part_of(occupancy: Occupancy) -> float:
    """Return the resident warps as a fraction of a multiprocessor's maximum, 0 to 1."""
    return occupancy.warps_per_sm / max(1, occupancy.most_warps_per_sm)
