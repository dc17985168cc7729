"""What is known of a point without a GPU: the figures that rules and ranks are computed from.

A point may launch several kernels. What a launch does is added up; what it needs of a
multiprocessor is that of the launch whose bound is longest, as that one decides the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pallasc.analysis.metrics.kernel_metrics import KernelMetrics
from pallasc.specs.artifacts.artifact import Artifact

_INIT = b"mbarrier.init"
"""Initializes a barrier in shared memory; Mosaic writes one for each, and no loop."""


class Facts(NamedTuple):
    """The figures of a point; None where one cannot be known, with the reason in the metrics.

    Attributes:
        digest: of its artifact.
        spill_bytes: spill stores and loads of a thread, of all its kernels.
        smem_bytes: shared memory of a block.
        warps_per_sm: warps that a multiprocessor holds at once.
        waves: how often the grid fills all multiprocessors.
        instructions: of the machine code, each once.
        tile_flops: operations of tensor cores in one round of its longest loop that has any.
        mbarriers: barriers in shared memory; a pipeline has some for each stage.
        load_bytes: what is copied or loaded from global memory, caches included.
        store_bytes: what is stored to it.
        bound_s: the least time by bytes and operations.
    """

    digest: str
    spill_bytes: int | None
    smem_bytes: int
    warps_per_sm: int
    waves: float
    instructions: int | None
    tile_flops: int | None
    mbarriers: int
    load_bytes: int | None
    store_bytes: int | None
    bound_s: float

    def to_json(self) -> dict[str, object]:
        """Return the figures as `--json` prints them."""
        return {**self._asdict(), "waves": round(self.waves, 4)}


def facts_of(artifact: Artifact, launches: Sequence[KernelMetrics]) -> Facts:
    """Return the figures of a point.

    Args:
        artifact: what it was compiled into.
        launches: the numbers of its launches.

    Raises:
        CorruptError: the artifact is damaged.
    """
    longest = max(launches, key=lambda launch: (launch.roofline.bound_s, -launch.launch))
    kernels = {kernel.name: kernel for kernel in artifact.kernels}
    return Facts(
        digest=artifact.digest,
        spill_bytes=_sum(kernel.spill_bytes for kernel in artifact.kernels),
        smem_bytes=kernels[longest.kernel].smem_bytes,
        warps_per_sm=longest.occupancy.warps_per_sm,
        waves=longest.occupancy.waves,
        instructions=_sum(launch.instructions for launch in launches),
        tile_flops=_tile_flops(launches),
        mbarriers=sum(_mbarriers(artifact, kernel.ptx) for kernel in artifact.kernels),
        load_bytes=_sum(
            _both(launch.work.tma_load_bytes, launch.work.global_load_bytes)
            for launch in _known(launches)
        ),
        store_bytes=_sum(
            _both(launch.work.tma_store_bytes, launch.work.global_store_bytes)
            for launch in _known(launches)
        ),
        bound_s=math.fsum(launch.roofline.bound_s for launch in launches),
    )


def _known(launches: Sequence[KernelMetrics]) -> Sequence[KernelMetrics]:
    """Return the launches whose work can be known: XLA's kernels have no PTX, and do little."""
    return [launch for launch in launches if launch.origin == "mosaic"] or launches


def _tile_flops(launches: Sequence[KernelMetrics]) -> int | None:
    """Return the operations of the loop that has most of them, None where none has any."""
    loops = [loop for launch in launches for loop in launch.loops or ()]
    return max((loop.tensor_flops for loop in loops if loop.tensor_flops), default=None)


def _mbarriers(artifact: Artifact, ptx: str | None) -> int:
    return 0 if ptx is None else artifact.blob(ptx).count(_INIT)


def _both(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second


def _sum(counts: Iterable[int | None]) -> int | None:
    """Return the sum, None where a part is not known."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total
