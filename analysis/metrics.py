"""The metrics of each launch of an artifact.

Each metric is exact, or a valid bound, or None with a reason. No times are estimated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pallasc.analysis.loops import Loop, loops
from pallasc.analysis.nvdisasm import disassemble_all
from pallasc.analysis.roofline import Roofline, roofline_of
from pallasc.analysis.sass import Class, Codes, mix_of
from pallasc.analysis.work import Work, unknown_work, work_of
from pallasc.errors import ToolError
from pallasc.specs.artifacts.artifact import (
    Artifact,
    KernelResources,
    blocks_by_limit,
    warps_of_block,
)
from pallasc.specs.artifacts.plan import Launch
from pallasc.specs.gpus import Target
from pallasc.specs.spelling import amount, short_time

_TOGETHER = 128
"""Number of artifacts disassembled together: code takes 1 MB of memory per kernel."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The occupancy of a multiprocessor by the blocks of a launch.

    Attributes:
        blocks_per_sm: number of resident blocks.
        warps_per_sm: number of warps in these blocks.
        most_warps_per_sm: maximum number of warps of a multiprocessor.
        limited_by: the resources that allow no more blocks.
        waves: how many times the grid fills all multiprocessors; for clusters, a lower bound, which
            assumes that any multiprocessors can form a cluster.
    """

    blocks_per_sm: int
    warps_per_sm: int
    most_warps_per_sm: int
    limited_by: tuple[str, ...]
    waves: float

    @property
    def part(self) -> float:
        """The resident warps as a fraction of the maximum."""
        return self.warps_per_sm / max(1, self.most_warps_per_sm)


@dataclass(frozen=True, slots=True)
class KernelMetrics:
    """The metrics of a launch.

    Attributes:
        launch: its index among the launches of the plan.
        kernel, origin: the kernel's name, and "mosaic" or "xla".
        occupancy: see `Occupancy`.
        instructions, mix, loops: static counts from the kernel's SASS.
        work: see `Work`; for the whole launch.
        roofline: see `Roofline`.
        reasons: the reason for each field that is None, by field name.
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
    loops: tuple[Loop, ...] | None
    work: Work
    roofline: Roofline
    reasons: Mapping[str, str] = field(default_factory=dict)


def all_metrics(artifacts: Iterable[Artifact]) -> dict[str, tuple[KernelMetrics, ...]]:
    """Return the metrics of the launches of many artifacts, by digest.

    Raises:
        CorruptError: a cubin, a plan or a record is damaged.
    """
    several = list({artifact.digest: artifact for artifact in artifacts}.values())
    found: dict[str, tuple[KernelMetrics, ...]] = {}
    for start in range(0, len(several), _TOGETHER):
        some = several[start : start + _TOGETHER]
        cubins = {kernel.cubin: each.blob(kernel.cubin) for each in some for kernel in each.kernels}
        try:
            codes, reason = disassemble_all(cubins), ""
        except ToolError as error:
            codes, reason = {}, error.message
        found |= {each.digest: artifact_metrics(each, codes=codes, reason=reason) for each in some}
    return found


def artifact_metrics(
    artifact: Artifact, *, codes: Codes, reason: str = ""
) -> tuple[KernelMetrics, ...]:
    """Return the metrics of each launch of an artifact.

    Args:
        artifact: the artifact.
        codes: the code of its kernels.
        reason: why `codes` is incomplete.

    Raises:
        CorruptError: the plan or the record is damaged.
    """
    return tuple(
        _metrics(number, launch, artifact, codes, reason)
        for number, launch in enumerate(artifact.plan.launches)
    )


def _metrics(
    number: int, launch: Launch, artifact: Artifact, codes: Codes, reason: str
) -> KernelMetrics:
    code = codes.get(launch.cubin, {}).get(launch.kernel)
    kernel = artifact.kernel_of(launch)
    work = _work(launch, kernel, artifact)
    roofline = roofline_of(launch, artifact.plan, artifact.target, work)
    reasons = dict(work.reasons)
    if roofline.seconds_of_flops is None:
        reasons["seconds_of_flops"] = reasons.get("tensor_flops", "no peak of its type is known")
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
        loops=None if code is None else loops(code),
        work=work,
        roofline=roofline,
        reasons=reasons,
    )


def _work(launch: Launch, kernel: KernelResources, artifact: Artifact) -> Work:
    if kernel.ptx is None:
        whose = "a kernel of XLA's" if kernel.origin == "xla" else "the bundle has no PTX"
        return unknown_work(f"no PTX to count in: {whose}")
    return work_of(launch, artifact.blob(kernel.ptx).decode("utf-8", "replace").rstrip("\0"))


def occupancy_of(launch: Launch, kernel: KernelResources, target: Target) -> Occupancy:
    """Return the occupancy of a launch on the model that it was compiled for."""
    limits = blocks_by_limit(launch, kernel, target)
    blocks = max(1, min(limits.values()))
    together = math.prod(launch.cluster or (1, 1, 1))
    resident = blocks * target.sm_count // together
    return Occupancy(
        blocks_per_sm=blocks,
        warps_per_sm=blocks * warps_of_block(launch),
        most_warps_per_sm=target.threads_per_sm // 32,
        limited_by=tuple(name for name, limit in limits.items() if limit <= blocks),
        waves=math.prod(launch.grid) / together / max(1, resident),
    )


def metrics_json(metrics: KernelMetrics) -> dict[str, Any]:
    """Return the metrics of a launch as JSON; unknown values are null, explained in `reasons`."""
    data = asdict(metrics)
    data["occupancy"]["waves"] = round(metrics.occupancy.waves, 4)
    return {**data.pop("work"), **data}


def work_rows(metrics: KernelMetrics) -> Iterator[tuple[str, str]]:
    """Yield names and texts of the work of a launch, and of the least time that it takes."""
    work, roofline = metrics.work, metrics.roofline
    if work.tensor_flops is None:
        yield "tensor cores", f"unknown: {metrics.reasons['tensor_flops']}"
    elif work.tensor_flops:
        each = (f"{amount(n)}FLOP in {kind}" for kind, n in work.tensor_flops.items())
        yield "tensor cores", ", ".join(each)
    moved = (work.tma_load_bytes, work.tma_store_bytes)
    if moved == (None, None):
        yield "TMA", f"unknown: {metrics.reasons['tma_load_bytes']}"
    elif moved != (0, 0):
        texts = ("unknown" if n is None else f"{amount(n)}B" for n in moved)
        yield "TMA", "{} loaded, {} stored".format(*texts)
    times = [(roofline.seconds_of_bytes, f"by memory ({amount(roofline.least_bytes)}B of arrays)")]
    if roofline.seconds_of_flops:
        times.append((roofline.seconds_of_flops, "by tensor cores"))
    if roofline.bound_s:
        each = (f"{short_time(seconds)} {by}" for seconds, by in sorted(times, reverse=True))
        yield "bound", f"at least {', '.join(each)}"
