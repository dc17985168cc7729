"""The page of a variant: its figures, launches, tensor maps and plan."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from pallasc.reports.code import CodeSheet
from pallasc.reports.columns import COLUMNS
from pallasc.reports.content import Entry
from pallasc.reports.figures import Residency, residency, resources_of
from pallasc.reports.plan_picture import PlanPicture, draw_plan
from pallasc.reports.tensor_pictures import MapPicture, draw_maps
from pallasc.reports.words import by, number, percent, size
from pallasc.specs.artifacts.artifact import Artifact, KernelResources
from pallasc.specs.artifacts.occupancy import model_figure
from pallasc.specs.artifacts.plan import Launch

_RESERVED_BYTES = 1024
"""Shared memory that the system takes of each block, from compute capability 8.0 on."""
_MOST_BLOCKS = 16
"""Blocks whose memory is drawn one by one."""
_NOT_TILES = {"findings", "status", "limit"}


class Tile(NamedTuple):
    """A figure at the top of a page."""

    name: str
    value: str
    note: str = ""
    kind: str = ""


class Limit(NamedTuple):
    """A resource, and for how many blocks it suffices; `part` of the most that are shown."""

    name: str
    blocks: int
    part: float
    is_least: bool


class Portion(NamedTuple):
    """A part of the shared memory of a multiprocessor."""

    kind: str
    size: int
    title: str


class Shared(NamedTuple):
    """Something that lies in the shared memory of a block."""

    name: str
    bytes: int


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
    shared: tuple[Shared, ...] = ()
    metrics: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """The page of a variant; `before` and `after` are the pages beside it."""

    params: str
    before: str
    after: str
    tiles: tuple[Tile, ...] = ()
    launches: tuple[LaunchSheet, ...] = ()
    plan: PlanPicture | None = None
    changes: str = ""
    code: tuple[CodeSheet, ...] = ()


def launches_of(artifact: Artifact) -> list[tuple[Launch, int]]:
    """Return the launches that differ in more than addresses, each with how often it occurs.

    Mosaic's come first, else the order is that of the plan.
    """
    counts: dict[object, tuple[Launch, int]] = {}
    for launch in artifact.plan.launches:
        key = (launch.kernel, launch.cubin, launch.grid, launch.block, launch.cluster)
        first, times = counts.get(key, (launch, 0))
        counts[key] = (first, times + 1)
    return sorted(counts.values(), key=lambda each: each[0].origin != "mosaic")


def launch_sheet(launch: Launch, times: int, artifact: Artifact, metrics: str = "") -> LaunchSheet:
    """Return what the page shows of a launch.

    Raises:
        CorruptError: the artifact lacks something.
    """
    kernel = resources_of(launch, artifact)
    held = residency(launch, kernel, artifact)
    memory = tuple(
        _memory(launch, kernel, held, model_figure(artifact.target, "smem_per_sm_bytes"))
    )
    return LaunchSheet(
        kernel=launch.kernel,
        origin=launch.origin,
        times=times,
        shape=_shape(launch),
        limits=_limits(held),
        occupancy_text=_occupancy_text(held),
        memory=memory,
        memory_text=_memory_text(launch, kernel, held, artifact),
        maps=tuple(draw_maps(launch)),
        metrics=metrics,
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


def _limits(held: Residency) -> tuple[Limit, ...]:
    most = max(1, *held.limits.values())
    return tuple(
        Limit(name, blocks, math.sqrt(blocks / most), blocks == held.blocks)
        for name, blocks in held.limits.items()
    )


def _occupancy_text(held: Residency) -> str:
    return (
        f"{held.warps} of {held.most_warps} warps ({percent(held.occupancy)}), limited by "
        f"{held.limited_by}; the grid makes {number(round(held.waves, 2))} waves."
    )


def _memory(
    launch: Launch, kernel: KernelResources, held: Residency, total: int
) -> Iterator[Portion]:
    static, dynamic = kernel.static_smem_bytes, launch.dynamic_smem_bytes
    shown = min(held.blocks, _MOST_BLOCKS)
    each = held.blocks / shown if shown else 0
    for block in range(shown):
        for kind, taken in (("dynamic", dynamic), ("static", static), ("system", _RESERVED_BYTES)):
            if taken:
                yield Portion(kind, round(taken * each), f"block {block}, {kind}: {size(taken)}")
    free = total - held.blocks * (static + dynamic + _RESERVED_BYTES)
    if free > 0:
        yield Portion("free", free, f"free: {size(free)}")


def _memory_text(
    launch: Launch, kernel: KernelResources, held: Residency, artifact: Artifact
) -> str:
    total = model_figure(artifact.target, "smem_per_sm_bytes")
    most = model_figure(artifact.target, "smem_optin_bytes")
    taken = kernel.static_smem_bytes + launch.dynamic_smem_bytes
    blocks = f"{held.blocks} block{'' if held.blocks == 1 else 's'}"
    return (
        f"{size(launch.dynamic_smem_bytes)} dynamic and {size(kernel.static_smem_bytes)} static "
        f"of a block, {size(taken)} of at most {size(most)}; {blocks} in {size(total)}."
    )
