"""The work of a launch, as rows of a page: work, roofline, instructions by class, loops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pallasc.analysis.metrics import KernelMetrics, LoopMetrics
from pallasc.analysis.sass import Class
from pallasc.reports.words import number, short_time, size

_BOUND_BY = {"tensor": "tensor cores", "memory": "memory"}
_MOST_NAMED = 4
"""Maximum number of instruction classes listed for a loop."""


class MixPart(NamedTuple):
    """Instructions of one class in a kernel."""

    kind: str
    label: str
    instructions: int


class LoopRow(NamedTuple):
    """A loop: its start address, nesting depth, instructions, and the most frequent ones."""

    address: str
    depth: int
    instructions: int
    note: str


def work_rows(metrics: KernelMetrics) -> Iterator[tuple[str, str]]:
    """Yield names and values for the work of a launch; the reason if a value is unknown."""
    work, roofline = metrics.work, metrics.roofline
    flops = metrics.tensor_flops
    yield (
        "Tensor operations",
        _unknown(metrics, "tensor_flops") if flops is None else _operations(flops),
    )
    yield "TMA", _both(work.tma_load_bytes, work.tma_store_bytes, metrics, "tma_load_bytes")
    yield (
        "Loads and stores",
        _both(work.global_load_bytes, work.global_store_bytes, metrics, "global_load_bytes"),
    )
    of_flops = roofline.seconds_of_flops
    parts = f"{size(roofline.least_bytes)} in {short_time(roofline.seconds_of_bytes)}"
    if of_flops is not None:
        parts += f", operations in {short_time(of_flops)}"
    yield (
        "Roofline bound",
        f"{short_time(roofline.bound_s)} by {_BOUND_BY[roofline.limited_by]}: {parts}",
    )


def mix_parts(mix: Mapping[Class, int] | None) -> tuple[MixPart, ...]:
    """Return the instructions of a kernel by class, the most frequent first."""
    ranked = sorted((mix or {}).items(), key=lambda each: -each[1])
    return tuple(MixPart(kind, kind.replace("_", " "), count) for kind, count in ranked)


def loop_row(loop: LoopMetrics) -> LoopRow:
    """Return a loop as a row."""
    named = [f"{part.instructions} {part.label}" for part in mix_parts(loop.mix)[:_MOST_NAMED]]
    note = "waits" if loop.is_wait else ", ".join(named)
    return LoopRow(f"{loop.header:04x}", loop.depth, sum(loop.mix.values()), note)


def _both(loads: int | None, stores: int | None, metrics: KernelMetrics, name: str) -> str:
    if loads is None or stores is None:
        return _unknown(metrics, name)
    return f"{size(loads)} loaded, {size(stores)} stored"


def _unknown(metrics: KernelMetrics, name: str) -> str:
    return f"not known: {metrics.reasons.get(name, 'no reason is given')}"


def _operations(count: int) -> str:
    for factor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if count >= factor:
            return f"{count / factor:.3g} {unit}FLOP"
    return f"{number(count)} FLOP"
