"""The numbers of a launch as text, 80 columns where names allow."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pallasc.cli.terminal.output import count, table

if TYPE_CHECKING:
    from pallasc.analysis.metrics.kernel_metrics import KernelMetrics, LoopMetrics
    from pallasc.analysis.sass.classes import Class

_WIDTH = 80
_NAME = 14
_TIMES = (("ns", 1e9, 1e-6), ("µs", 1e6, 1e-3), ("ms", 1e3, 1.0), ("s", 1.0, math.inf))
_UNITS = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))


def metrics_text(metrics: KernelMetrics) -> str:
    """Return the numbers of a launch, a name and its values a line, then its loops."""
    lines = [f"launch {metrics.launch}: {metrics.kernel}"]
    for name, text in _rows(metrics):
        indent = " " * (_NAME + 2)
        lines += textwrap.wrap(
            text,
            _WIDTH,
            initial_indent=f"  {name:<{_NAME}}",
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    if metrics.loops:
        lines += [f"  {line}" for line in _loops(metrics.loops)]
    return "\n".join(lines)


def _rows(metrics: KernelMetrics) -> Iterator[tuple[str, str]]:
    occupancy = metrics.occupancy
    yield "grid", _grid(metrics)
    yield (
        "occupancy",
        f"{count(occupancy.blocks_per_sm, 'block')}, {occupancy.warps_per_sm} of "
        f"{occupancy.most_warps_per_sm} warps an SM; limited by {_and(occupancy.limited_by)}",
    )
    yield "waves", f"{occupancy.waves:.3g}"
    yield from _work(metrics)
    yield "bound", _bound(metrics)
    if metrics.instructions is not None:
        yield "instructions", f"{metrics.instructions:,}: {_mix(metrics.mix or {})}"


def _grid(metrics: KernelMetrics) -> str:
    blocks = count(math.prod(metrics.grid), "block")
    cluster = f" in clusters of {math.prod(metrics.cluster)}" if metrics.cluster else ""
    return f"{blocks}{cluster} of {math.prod(metrics.block)} threads"


def _work(metrics: KernelMetrics) -> Iterator[tuple[str, str]]:
    work, reasons = metrics.work, metrics.reasons
    if work.tensor_flops is None:
        yield "tensor cores", f"unknown: {reasons['tensor_flops']}"
    elif work.tensor_flops:
        each = (f"{amount(n)}FLOP in {kind}" for kind, n in work.tensor_flops.items())
        yield "tensor cores", ", ".join(each)
    for name, kind in (("TMA", "tma"), ("global memory", "global")):
        loads, stores = (getattr(work, f"{kind}_{way}_bytes") for way in ("load", "store"))
        if loads is None and stores is None:
            yield name, f"unknown: {reasons[f'{kind}_load_bytes']}"
        elif loads or stores or None in (loads, stores):
            texts = ("unknown" if n is None else f"{amount(n)}B" for n in (loads, stores))
            yield name, "{} loaded, {} stored".format(*texts)


def _bound(metrics: KernelMetrics) -> str:
    roofline = metrics.roofline
    memory = f"{amount(roofline.least_bytes)}B of arrays take {_time(roofline.seconds_of_bytes)}"
    if roofline.seconds_of_flops is None:
        return f"at least {_time(roofline.bound_s)}: {memory} (tensor cores unknown)"
    tensor = f"tensor cores {_time(roofline.seconds_of_flops)}"
    both = f"{memory}, {tensor}" if roofline.seconds_of_flops else memory
    return f"at least {_time(roofline.bound_s)}: {both}"


def _loops(loops: tuple[LoopMetrics, ...]) -> list[str]:
    own = [loop for loop in loops if not loop.is_wait]
    waits = len(loops) - len(own)
    rows = [
        [
            "  " * (loop.depth - 1) + f"{loop.header:#06x}",
            str(sum(loop.mix.values())),
            f"{amount(loop.tensor_flops)}FLOP" if loop.tensor_flops else "",
            _mix(loop.mix, most=3),
        ]
        for loop in own
    ]
    head = ("LOOP AT", "INSTRUCTIONS", "ITERATION", "MOST")
    lines = table(head, rows, right=head[1:3]).split("\n")
    waiting = [f"and {count(waits, 'loop')} that only {'wait' if waits > 1 else 'waits'}"]
    return [*(lines if own else []), *(waiting if waits else [])]


def _mix(mix: Mapping[Class, int], most: int | None = None) -> str:
    """Return classes and their counts: tensor cores and copies first, then the most frequent."""
    first = [name for name in mix if name in ("tensor", "tma", "local")]
    others = sorted((n for n in mix if n not in first), key=lambda name: -mix[name])
    return ", ".join(f"{name} {mix[name]:,}" for name in [*first, *others][:most])


def amount(number: float) -> str:
    """Return a number with four digits and the prefix of its unit: `34.36 G`."""
    letter, unit = next((each for each in _UNITS if number >= each[1]), _UNITS[-1])
    return f"{number / unit:.4g} {letter}" if letter else f"{number:.4g} "


def _time(seconds: float) -> str:
    unit, factor = next(each for each in _TIMES if seconds < each[2])[:2]
    return f"{seconds * factor:.4g} {unit}"


def _and(names: tuple[str, ...]) -> str:
    return " and ".join(names)
