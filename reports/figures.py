"""The figures of a variant: one number each, for tables, plots and rankings.

A variant may launch several kernels. Registers, shared memory and spills are those of the kernel
that has most of them; occupancy is that of the Mosaic launch that fills a multiprocessor least.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from pallasc.errors import CorruptError
from pallasc.specs.artifacts.artifact import Artifact, KernelResources
from pallasc.specs.artifacts.occupancy import blocks_by_limit, model_figure
from pallasc.specs.artifacts.plan import Launch

WARP_THREADS = 32


class Residency(NamedTuple):
    """How one launch fills a multiprocessor.

    Attributes:
        blocks: blocks that fit at once; 0 where not even one does.
        limits: blocks that each resource suffices for.
        warps: warps of these blocks.
        most_warps: warps that a multiprocessor of the target can hold.
        waves: how often the multiprocessors of the target are filled by the grid; the last time
            perhaps in part.
    """

    blocks: int
    limits: dict[str, int]
    warps: int
    most_warps: int
    waves: float

    @property
    def occupancy(self) -> float:
        """The part of the warps that a multiprocessor can hold, 0 to 1."""
        return self.warps / self.most_warps if self.most_warps else 0.0

    @property
    def limited_by(self) -> str:
        """The resource that suffices for the fewest blocks."""
        return min(self.limits, key=lambda name: self.limits[name])


class Figures(NamedTuple):
    """The figures of a variant; None for what is not known.

    Attributes:
        registers: of a thread.
        spill_bytes: of a thread, stores and loads.
        smem_bytes: of a block, static and dynamic.
        cubin_bytes: of all its cubins.
        occupancy: see the module; 0 to 1.
        limited_by: the resource that limits it.
        blocks_per_sm: blocks on a multiprocessor.
        bound_s: the least time that operations and bytes of its launches take on the target.
        launches: number of launches.
    """

    registers: int | None = None
    spill_bytes: int | None = None
    smem_bytes: int | None = None
    cubin_bytes: int | None = None
    occupancy: float | None = None
    limited_by: str = ""
    blocks_per_sm: int | None = None
    bound_s: float | None = None
    launches: int = 0


def figures_of(artifact: Artifact) -> Figures:
    """Return the figures of an artifact.

    Raises:
        CorruptError: its record or its plan is damaged.
    """
    spills = [kernel.spill_bytes for kernel in artifact.kernels]
    least = min(_residencies(artifact), key=lambda each: each.occupancy, default=None)
    return Figures(
        registers=max((kernel.registers for kernel in artifact.kernels), default=None),
        spill_bytes=None if None in spills else max(filter(None, spills), default=0),
        smem_bytes=max((kernel.smem_bytes for kernel in artifact.kernels), default=None),
        cubin_bytes=artifact.cubin_bytes,
        occupancy=least.occupancy if least else None,
        limited_by=least.limited_by if least else "",
        blocks_per_sm=least.blocks if least else None,
        launches=len(artifact.plan.launches),
    )


def residency(launch: Launch, kernel: KernelResources, artifact: Artifact) -> Residency:
    """Return how a launch fills the multiprocessors of the artifact's target.

    Raises:
        CorruptError: the target lacks a number.
    """
    target = artifact.target
    threads = model_figure(target, "threads_per_sm")
    limits = blocks_by_limit(
        launch,
        kernel,
        arch=str(target.get("arch")),
        threads_per_sm=threads,
        smem_per_sm_bytes=model_figure(target, "smem_per_sm_bytes"),
    )
    blocks = min(limits.values())
    warps = blocks * -(-math.prod(launch.block) // WARP_THREADS)
    at_once = max(1, blocks) * max(1, model_figure(target, "sm_count"))
    return Residency(
        blocks, limits, warps, threads // WARP_THREADS, math.prod(launch.grid) / at_once
    )


def resources_of(launch: Launch, artifact: Artifact) -> KernelResources:
    """Return the resources of the kernel of a launch.

    Raises:
        CorruptError: the artifact has none.
    """
    for kernel in artifact.kernels:
        if (kernel.cubin, kernel.name) == (launch.cubin, launch.kernel):
            return kernel
    raise CorruptError(f"the artifact has no resources of {launch.kernel}")


def _residencies(artifact: Artifact) -> Iterator[Residency]:
    launches = artifact.plan.launches
    mosaic = [launch for launch in launches if launch.origin == "mosaic"]
    for launch in mosaic or launches:
        yield residency(launch, resources_of(launch, artifact), artifact)
