"""The page of a variant: its figures, launches, tensor maps and plan."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from pallasc.analysis.metrics.kernel_metrics import Occupancy
from pallasc.reports.code import CodeSheet, lines_of
from pallasc.reports.columns import COLUMNS
from pallasc.reports.content import Entry
from pallasc.reports.figures import part_of
from pallasc.reports.plan_picture import PlanPicture, draw_plan
from pallasc.reports.tensor_pictures import MapPicture, draw_maps
from pallasc.reports.words import by, counted, number, percent, size
from pallasc.reports.work_rows import LoopRow, MixPart, loop_row, mix_parts, work_rows
from pallasc.specs.artifacts.artifact import Artifact, KernelResources
from pallasc.specs.artifacts.plan import Launch
from pallasc.specs.artifacts.resources import blocks_by_limit, model_figure
from pallasc.specs.artifacts.source_lines import SharedMemory, SourceLines

_RESERVED_BYTES = 1024
"""Shared memory that the system reserves in each block, from compute capability 8.0 on."""
_MOST_BLOCKS = 16
"""Maximum number of blocks whose memory is drawn individually."""
_NOT_TILES = {"findings", "status", "limit"}


class Tile(NamedTuple):
    """A figure at the top of a page."""

    name: str
    value: str
    note: str = ""
    kind: str = ""


class Limit(NamedTuple):
    """A resource, and the number of blocks it allows; `part` is relative to the largest shown."""

    name: str
    blocks: int
    part: float
    is_least: bool


class Portion(NamedTuple):
    """A part of the shared memory of a multiprocessor."""

    kind: str
    size: int
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSheet:
    """A launch; launches of one kernel with the same shape are shown once."""

    kernel: str
    origin: str
    times: int
    shape: str
    limits: tuple[Limit, ...]
    occupancy_text: str
    memory: tuple[Portion, ...]
    memory_text: str
    maps: tuple[MapPicture, ...]
    shared: tuple[SharedMemory, ...]
    work: tuple[tuple[str, str], ...]
    mix: tuple[MixPart, ...]
    loops: tuple[LoopRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """The page of a variant; `before` and `after` are the previous and next pages."""

    params: str
    before: str
    after: str
    tiles: tuple[Tile, ...] = ()
    launches: tuple[LaunchSheet, ...] = ()
    plan: PlanPicture | None = None
    changes: str = ""
    code: tuple[CodeSheet, ...] = ()


def launches_of(artifact: Artifact) -> list[tuple[int, int]]:
    """Return the numbers of launches that differ in more than addresses, and how often they occur.

    Mosaic launches come first, otherwise in the order of the plan.
    """
    counts: dict[object, list[int]] = {}
    launches = artifact.plan.launches
    for at, launch in enumerate(launches):
        key = (launch.kernel, launch.cubin, launch.grid, launch.block, launch.cluster)
        counts.setdefault(key, []).append(at)
    found = [(numbers[0], len(numbers)) for numbers in counts.values()]
    return sorted(found, key=lambda each: launches[each[0]].origin != "mosaic")


def launch_sheet(
    at: int, times: int, entry: Entry, artifact: Artifact, source: SourceLines | None
) -> LaunchSheet:
    """Return the data of a launch for the page.

    Args:
        at: its number among the launches of the plan.
        times: how often the plan launches it.
        entry: the variant.
        artifact: its artifact.
        source: its source lines, None if there are none.

    Raises:
        CorruptError: the artifact lacks something.
    """
    launch, metrics = artifact.plan.launches[at], entry.metrics[at]
    kernel = artifact.kernel_of(launch)
    blocks = metrics.occupancy.blocks_per_sm
    lines = lines_of(kernel, artifact, source) if source is not None else None
    return LaunchSheet(
        kernel=launch.kernel,
        origin=launch.origin,
        times=times,
        shape=_shape(launch),
        limits=_limits(launch, kernel, artifact, blocks),
        occupancy_text=_occupancy_text(metrics.occupancy),
        memory=tuple(
            _memory(launch, kernel, blocks, model_figure(artifact.target, "smem_per_sm_bytes"))
        ),
        memory_text=_memory_text(launch, kernel, blocks, artifact),
        maps=tuple(draw_maps(launch)),
        shared=lines.shared_memory if lines is not None else (),
        work=tuple(work_rows(metrics)),
        mix=mix_parts(metrics.mix),
        loops=tuple(map(loop_row, metrics.loops or ())),
    )


def plan_of(artifact: Artifact) -> PlanPicture:
    """Return the picture of an artifact's plan."""
    return draw_plan(artifact.plan)


def tiles_of(entry: Entry) -> tuple[Tile, ...]:
    """Return the figures at the top of a variant's page."""
    if entry.artifact is None:
        return ()
    tiles = []
    for column in COLUMNS:
        value = column.value(entry)
        if column.key in _NOT_TILES or (value is None and not column.always):
            continue
        note = entry.figures.limited_by and f"limited by {entry.figures.limited_by}"
        tiles.append(
            Tile(
                column.label,
                column.show(entry),
                note if column.key == "occupancy" else "",
                "bad" if column.is_bad(entry) else "",
            )
        )
    return tuple(tiles)


def _shape(launch: Launch) -> str:
    parts = [
        f"Grid of {by(launch.grid)} blocks",
        f"{by(launch.block)} threads each ({-(-math.prod(launch.block) // 32)} warps)",
    ]
    if launch.cluster is not None and math.prod(launch.cluster) > 1:
        parts.append(f"clusters of {by(launch.cluster)}")
    if launch.pdl:
        parts.append("programmatic dependent launch")
    return ", ".join(parts)


def _limits(
    launch: Launch, kernel: KernelResources, artifact: Artifact, blocks: int
) -> tuple[Limit, ...]:
    limits = blocks_by_limit(launch, kernel, artifact.target)
    most = max(1, *limits.values())
    return tuple(
        Limit(name, limit, math.sqrt(limit / most), limit <= blocks)
        for name, limit in limits.items()
    )


def _occupancy_text(occupancy: Occupancy) -> str:
    return (
        f"{occupancy.warps_per_sm} of {occupancy.most_warps_per_sm} warps "
        f"({percent(part_of(occupancy))}), limited by {', '.join(occupancy.limited_by)}; the grid "
        f"makes {_waves(occupancy.waves)}."
    )


def _waves(waves: float) -> str:
    text = number(round(waves, 2))
    return f"{text} wave{'' if text == '1' else 's'}"


def _memory(launch: Launch, kernel: KernelResources, blocks: int, total: int) -> Iterator[Portion]:
    static, dynamic = kernel.static_smem_bytes, launch.dynamic_smem_bytes
    shown = min(blocks, _MOST_BLOCKS)
    each = blocks / shown if shown else 0
    for block in range(shown):
        for kind, taken in (("dynamic", dynamic), ("static", static), ("system", _RESERVED_BYTES)):
            if taken:
                yield Portion(kind, round(taken * each), f"block {block}, {kind}: {size(taken)}")
    free = total - blocks * (static + dynamic + _RESERVED_BYTES)
    if free > 0:
        yield Portion("free", free, f"free: {size(free)}")


def _memory_text(launch: Launch, kernel: KernelResources, held: int, artifact: Artifact) -> str:
    total = model_figure(artifact.target, "smem_per_sm_bytes")
    most = model_figure(artifact.target, "smem_optin_bytes")
    taken = kernel.static_smem_bytes + launch.dynamic_smem_bytes
    blocks = counted(held, "block")
    return (
        f"{size(launch.dynamic_smem_bytes)} dynamic and {size(kernel.static_smem_bytes)} static "
        f"of a block, {size(taken)} of at most {size(most)}; {blocks} in {size(total)}."
    )
