"""What `pallasc bench` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from pallasc.cli.launching.chip import Limits, device_json, limits_of, model_of
from pallasc.cli.terminal.output import table

if TYPE_CHECKING:
    from pallasc.cli.launching.figures import Figures
    from pallasc.cli.launching.measurements import Conditions, Measured

_COLUMNS = ("VARIANT", "MEDIAN", "MIN", "P90", "GB/S", "OF MEMORY")
_UNKNOWN = "-"


def bench_text(measured: Sequence[Measured], under: Conditions) -> str:
    """Return how it was measured, a line for each variant, and what the GPU could do."""
    head = [*_COLUMNS, "TFLOP/S"] if under.flops is not None else [*_COLUMNS]
    rows = [[row.chosen.variant.id, *_cells(row.figures)][: len(head)] for row in measured]
    cache = "the L2 cache emptied before each" if under.cold else "the L2 cache warm"
    driver = device_json(under.device)["driver"]
    return "\n".join(
        [
            f"{under.device}, driver for CUDA {driver}; {under.repeats:,} launches, {cache}",
            table(head, rows, right=head[1:]),
            *_remarks(measured, under),
        ]
    )


def _cells(figures: Figures) -> list[str]:
    times = (figures.median_us, figures.min_us, figures.p90_us)
    share = figures.memory_share
    return [
        *(f"{time_us:,.2f} µs" for time_us in times),
        _number(figures.gb_per_s, 0),
        _UNKNOWN if share is None else f"{100 * share:.0f} %",
        _number(figures.tflop_per_s, 1),
    ]


def _number(value: float | None, digits: int) -> str:
    return _UNKNOWN if value is None else f"{value:,.{digits}f}"


def _remarks(measured: Sequence[Measured], under: Conditions) -> list[str]:
    """Return the limits of the model, and why shares of it may be missing."""
    limits = known_limits(measured, under)
    if limits is None:
        return [f"No model is called {under.device.name}, so its limits are not known."]
    lines = [f"{limits.model}: {limits.memory_gb_per_s:,.0f} GB/s of memory"]
    if under.flops is not None:
        lines[0] += f"; {limits.fp32_tflop_per_s:,.1f} TFLOP/s in FP32, tensor cores apart"
    if any(row.figures.memory_share is None for row in measured):
        size = f"{limits.l2_bytes / 2**20:.0f} MiB"
        lines.append(f"Arrays of up to {size} stay in the L2 cache; --cold reads them from memory.")
    return lines


def known_limits(measured: Sequence[Measured], under: Conditions) -> Limits | None:
    """Return the limits of the GPU's model, None where it is not known."""
    model = model_of(under.device, [row.chosen.variant.target for row in measured])
    return None if model is None else limits_of(model)


def bench_json(measured: Sequence[Measured], under: Conditions) -> dict[str, object]:
    """Return what `--json` prints."""
    limits = known_limits(measured, under)
    return {
        "device": device_json(under.device),
        "limits": None if limits is None else asdict(limits),
        "cold": under.cold,
        "repeats": under.repeats,
        "warmup": under.warmup,
        "seed": under.seed,
        "results": [_result_json(row) for row in measured],
    }


def _result_json(measured: Measured) -> dict[str, object]:
    variant = measured.chosen.variant
    return {
        "id": variant.id,
        "name": variant.name,
        "params": dict(variant.params),
        "target": variant.target.name,
        "digest": measured.chosen.artifact.digest,
        "times_us": measured.times_us,
        **asdict(measured.figures),
    }
