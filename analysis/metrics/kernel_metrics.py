"""The numbers of each launch of an artifact.

Each is exact or a bound that holds, or None with a reason: there is no estimate of a time.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pallasc.analysis.metrics.roofline import Roofline, roofline_of
from pallasc.analysis.metrics.work import FIELDS, Work, unknown_work, work_of
from pallasc.analysis.sass.classes import CLASSES, Class, classify
from pallasc.analysis.sass.disassembly import disassemble_all
from pallasc.analysis.sass.instructions import Code, Instruction
from pallasc.analysis.sass.loops import loops
from pallasc.errors import ToolError
from pallasc.specs.artifacts.artifact import Artifact, KernelResources
from pallasc.specs.artifacts.occupancy import (
    blocks_by_limit,
    model_figure,
    warps_of_block,
)
from pallasc.specs.artifacts.plan import Launch

Codes = Mapping[str, Mapping[str, Code]]
"""The code of kernels by the cubin's digest and the kernel's name."""

_SHAPE = re.compile(r"\.(?:(\d+)x(\d+)x(\d+)|(16|8)(8)(4|8|16|32|64))\b")

_TOGETHER = 128
"""Artifacts whose kernels are read at once: code takes 1 MB of memory a kernel."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How much of a multiprocessor the blocks of a launch fill.

    Attributes:
        blocks_per_sm: blocks that are resident at once.
        warps_per_sm: their warps.
        most_warps_per_sm: warps that a multiprocessor holds.
        limited_by: the resources that allow no more blocks.
        waves: how often all multiprocessors are filled; with clusters, as if any multiprocessors
            could form one, so that the true number may be higher.
    """

    blocks_per_sm: int
    warps_per_sm: int
    most_warps_per_sm: int
    limited_by: tuple[str, ...]
    waves: float


@dataclass(frozen=True, slots=True)
class LoopMetrics:
    """A loop: where it begins, its depth, its parent's beginning, its instructions by class."""

    header: int
    depth: int
    parent: int | None
    is_wait: bool
    mix: Mapping[Class, int]
    tensor_flops: int | None


@dataclass(frozen=True, slots=True)
class KernelMetrics:
    """The numbers of a launch.

    Attributes:
        launch: its number among the launches of the plan.
        kernel, origin: the kernel's name, and "mosaic" or "xla".
        occupancy: see `Occupancy`.
        instructions, mix, loops: of the kernel's SASS, each instruction once.
        work: see `Work`; of the whole launch.
        roofline: see `Roofline`.
        reasons: why something is None, by its name.
    """

    launch: int
    kernel: str
    origin: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] | None
    occupancy: Occupancy
    instructions: int | None
    mix: Mapping[Class, int] | None
    loops: tuple[LoopMetrics, ...] | None
    work: Work
    roofline: Roofline
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def waves(self) -> float:
        """How often the grid fills all multiprocessors."""
        return self.occupancy.waves

    @property
    def tensor_flops(self) -> int | None:
        """Operations of tensor cores, of all types."""
        flops = self.work.tensor_flops
        return None if flops is None else sum(flops.values())


def artifact_metrics(
    artifact: Artifact, *, codes: Codes | None = None, reason: str = ""
) -> tuple[KernelMetrics, ...]:
    """Return the numbers of each launch of an artifact.

    Args:
        artifact: the artifact.
        codes: the code of its kernels, where that is known already.
        reason: why `codes` lacks some.

    Raises:
        CorruptError: a cubin, the plan or the record is damaged.
    """
    if codes is None:
        codes, reason = codes_of([artifact])
    return tuple(
        _metrics(number, launch, artifact.kernel_of(launch), artifact, codes, reason)
        for number, launch in enumerate(artifact.plan.launches)
    )


def all_metrics(artifacts: Iterable[Artifact]) -> dict[str, tuple[KernelMetrics, ...]]:
    """Return the numbers of many artifacts by their digests; their kernels are read together.

    Raises:
        CorruptError: a cubin, a plan or a record is damaged.
    """
    found: dict[str, tuple[KernelMetrics, ...]] = {}
    several = {artifact.digest: artifact for artifact in artifacts}.values()
    for start in range(0, len(several), _TOGETHER):
        some = list(several)[start : start + _TOGETHER]
        codes, reason = codes_of(some)
        for artifact in some:
            found[artifact.digest] = artifact_metrics(artifact, codes=codes, reason=reason)
    return found


def codes_of(artifacts: Iterable[Artifact]) -> tuple[Codes, str]:
    """Return the code of artifacts' kernels; nothing and why where there is no nvdisasm.

    Raises:
        CorruptError: a cubin is damaged.
    """
    cubins = {k.cubin: artifact for artifact in artifacts for k in artifact.kernels}
    try:
        return disassemble_all({key: found.blob(key) for key, found in cubins.items()}), ""
    except ToolError as error:
        return {}, error.message


def _metrics(
    number: int,
    launch: Launch,
    kernel: KernelResources,
    artifact: Artifact,
    codes: Codes,
    reason: str,
) -> KernelMetrics:
    work = _work(launch, kernel, artifact)
    code = codes.get(launch.cubin, {}).get(launch.kernel)
    reasons = dict(work.reasons)
    if code is None:
        why = reason or "the cubin has no code for it"
        reasons |= dict.fromkeys(("instructions", "mix", "loops"), why)
    return KernelMetrics(
        launch=number,
        kernel=launch.kernel,
        origin=launch.origin,
        grid=launch.grid,
        block=launch.block,
        cluster=launch.cluster,
        occupancy=occupancy_of(launch, kernel, artifact.target),
        instructions=None if code is None else len(code.instructions),
        mix=None if code is None else mix_of(code.instructions),
        loops=None if code is None else _loops(code),
        work=work,
        roofline=roofline_of(launch, artifact.plan, artifact.target, work),
        reasons=reasons,
    )


def _work(launch: Launch, kernel: KernelResources, artifact: Artifact) -> Work:
    if kernel.ptx is None:
        whose = "a kernel of XLA's" if kernel.origin == "xla" else "the bundle has no PTX"
        return unknown_work(f"no PTX to count in: {whose}")
    ptx = artifact.blob(kernel.ptx).decode("utf-8", "replace").rstrip("\0")
    return work_of(launch, ptx, launch.kernel)


def occupancy_of(launch: Launch, kernel: KernelResources, target: Mapping[str, Any]) -> Occupancy:
    """Return how a launch fills the multiprocessors of the model that it was compiled for."""
    threads = model_figure(target, "threads_per_sm")
    limits = blocks_by_limit(launch, kernel, target)
    blocks = max(1, min(limits.values()))
    together = math.prod(launch.cluster or (1, 1, 1))
    resident = blocks * model_figure(target, "sm_count") // together
    return Occupancy(
        blocks_per_sm=blocks,
        warps_per_sm=blocks * warps_of_block(launch),
        most_warps_per_sm=threads // 32,
        limited_by=tuple(name for name, limit in limits.items() if limit <= blocks),
        waves=math.prod(launch.grid) / together / max(1, resident),
    )


def mix_of(instructions: Iterable[Instruction]) -> dict[Class, int]:
    """Return how many instructions of each class there are, in the order of the classes."""
    counts = Counter(map(classify, instructions))
    return {name: counts[name] for name in CLASSES if counts[name]}


def _loops(code: Code) -> tuple[LoopMetrics, ...]:
    found = loops(code)
    around = {loop.parent for loop in found if not loop.is_wait}
    return tuple(
        LoopMetrics(
            header=loop.header,
            depth=loop.depth,
            parent=loop.parent,
            is_wait=loop.is_wait,
            mix=mix_of(loop.body),
            tensor_flops=None if loop.header in around else flops_of(loop.body),
        )
        for loop in found
    )


def flops_of(instructions: Iterable[Instruction]) -> int | None:
    """Return the operations of tensor instructions; None where an opcode does not have its shape.

    `HGMMA.64x128x16` says M, N and K; so does `HMMA.16816`, as 16, 8 and 16.
    """
    total = 0
    for each in instructions:
        if classify(each) == "tensor":
            match = _SHAPE.search(each.opcode)
            if match is None:
                return None
            total += 2 * math.prod(int(size) for size in match.groups() if size)
    return total


def metrics_json(metrics: KernelMetrics) -> dict[str, Any]:
    """Return the numbers of a launch as JSON; what is not known is null, and `reasons` says why."""
    occupancy, roofline, work = metrics.occupancy, metrics.roofline, metrics.work
    return {
        "launch": metrics.launch,
        "kernel": metrics.kernel,
        "origin": metrics.origin,
        "grid": list(metrics.grid),
        "block": list(metrics.block),
        "cluster": None if metrics.cluster is None else list(metrics.cluster),
        "occupancy": {
            "blocks_per_sm": occupancy.blocks_per_sm,
            "warps_per_sm": occupancy.warps_per_sm,
            "most_warps_per_sm": occupancy.most_warps_per_sm,
            "limited_by": list(occupancy.limited_by),
            "waves": round(occupancy.waves, 4),
        },
        "instructions": metrics.instructions,
        "mix": None if metrics.mix is None else dict(metrics.mix),
        "loops": None if metrics.loops is None else [_loop_json(x) for x in metrics.loops],
        **{name: getattr(work, name) for name in FIELDS},
        "roofline": {
            "least_bytes": roofline.least_bytes,
            "seconds_of_bytes": roofline.seconds_of_bytes,
            "seconds_of_flops": roofline.seconds_of_flops,
            "bound_s": roofline.bound_s,
            "limited_by": roofline.limited_by,
        },
        "reasons": {**metrics.reasons, **roofline.reasons},
    }


def _loop_json(loop: LoopMetrics) -> dict[str, Any]:
    return {
        "header": loop.header,
        "depth": loop.depth,
        "parent": loop.parent,
        "is_wait": loop.is_wait,
        "mix": dict(loop.mix),
        "tensor_flops": loop.tensor_flops,
    }
