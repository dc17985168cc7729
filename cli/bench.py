"""`pallasc bench`: measure kernels on the GPU of this machine."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pallasc.cli import launching
from pallasc.cli.arguments import options
from pallasc.cli.arguments import variants as given
from pallasc.cli.arguments.command import Command
from pallasc.cli.output.text import print_result, table
from pallasc.errors import SpecError
from pallasc.specs.arrays import parse_template
from pallasc.specs.canonical import Scalar

if TYPE_CHECKING:
    from pallasc.cli.arguments.variants import Work
    from pallasc.cli.launching import Chosen
    from pallasc.specs.artifacts.plan import LaunchPlan
    from pallasc.specs.gpus import Target


@click.command("bench", cls=Command, short_help="Measure how long kernels take on the GPU.")
@options.specs_argument()
@options.flag("--cold", "Empty the L2 cache before each measured launch.")
@options.count_option("--repeats", "Number of measured launches.", default=100)
@options.count_option("--warmup", "Number of launches before the measurement.", least=0, default=25)
@options.option(
    "--flops",
    "N",
    'Operations per launch: a number, or a product of parameters: "{2 * m * n * k}".',
)
@launching.launch_options
@options.selection_options
@given.build_options(options.together())
@options.json_option("the measurements")
def command(
    flops: str | None,
    files: dict[str, Path],
    seed: int,
    ordinal: int,
    every: bool,
    as_json: bool,
    work: Work,
    **timing: Any,
) -> int:
    """Measure one variant of each kernel of SPECS on a local GPU.

    Variants and inputs are selected as in "pallasc run". Times are measured between two GPU events
    around each launch. They include the overhead of the events, but no host time. By default, the
    L2 cache still contains data of the previous launch; with --cold, it contains none of the
    kernel's arrays.

    GB/s counts the bytes of each input and output once, even if a kernel reads an array twice.
    TFLOP/s counts the operations given by --flops.

    Examples:
      pallasc bench kernels.yaml --cold
      pallasc bench kernels.yaml -k "matmul and m=4096" --flops "{2 * m * n * k}"
      pallasc bench specs/ --all --repeats 1000 --json > figures.json
      pallasc bench kernels.pallasc --all
    """
    from pallasc.runtime.adapters.device_arrays import Operands
    from pallasc.runtime.device.devices import get_device
    from pallasc.runtime.timing import time_launches

    cold = timing["cold"]
    request = launching.read_request(work, files)
    if flops is not None:
        for variant in request.variants:
            parse_flop(flops, dict(variant.params))
    device = get_device(ordinal)
    chosen = launching.collect(request, device, every=every)
    launching.check_single(files, chosen)
    model = launching.model_of(device, [own.variant.target for own in chosen])
    limits = None if model is None else limits_of(model)
    measured: list[Measured] = []
    for own in chosen:
        signature = own.route.signature
        arrays = launching.make_inputs(signature, seed=seed, files=files, name=own.variant.id)
        with launching.naming(own.variant):
            operands = Operands(signature, [value.data for value in arrays], device)
            times_us = time_launches(own.route, device, operands.pointers, **timing)
        flop = None if flops is None else parse_flop(flops, dict(own.variant.params))
        moved = moved_bytes(signature)
        figures = Figures.of(times_us, moved_bytes=moved, flop=flop, limits=limits, cold=cold)
        measured.append((own, figures))
    data = {
        "device": launching.device_json(device),
        "limits": None if limits is None else asdict(limits),
        **timing,
        "seed": seed,
        "results": [_result_json(*row) for row in measured],
    }
    cache = "the L2 cache emptied before each" if cold else "the L2 cache warm"
    driver = launching.device_json(device)["driver"]
    lines = [
        f"{device}, driver for CUDA {driver}; {timing['repeats']:,} launches, {cache}",
        _table(measured, with_flops=flops is not None),
    ]
    if limits is None:
        lines.append(f"{device.name} is not a known model, so its limits are unknown.")
    else:
        lines += _remarks(measured, limits, with_flops=flops is not None)
    print_result(data, lines, as_json=as_json)
    return 0


Measured = tuple["Chosen", "Figures"]
"""A variant with its figures."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Peak performance of a GPU model.

    Attributes:
        model: name of the model.
        memory_gb_per_s: memory bandwidth, in 10^9 bytes per second.
        fp32_tflop_per_s: single-precision performance, without tensor cores.
        l2_bytes: size of the L2 cache.
    """

    model: str
    memory_gb_per_s: float
    fp32_tflop_per_s: float
    l2_bytes: int


def limits_of(model: Target) -> Limits:
    """Return the limits of a model at its boost clock."""
    # A fused multiply-add counts as two operations.
    flop_per_s = 2e9 * model.sm_count * model.fpus_per_sm * model.clock_ghz
    bandwidth = model.memory_bandwidth_bytes_per_s / 1e9
    return Limits(model.name, bandwidth, flop_per_s / 1e12, model.l2_bytes)


_PERCENTILE = 0.9


@dataclass(frozen=True, slots=True)
class Figures:
    """Performance figures of a kernel.

    Attributes:
        times_us: time of each launch, in order.
        median_us, min_us, p90_us: statistics of these times; p90 is the 90th percentile.
        moved_bytes: size of inputs and outputs, each counted once.
        gb_per_s: `moved_bytes` per median time, in 10^9 bytes per second; None if the median is 0.
        memory_share: fraction of the GPU's memory bandwidth; None if the bandwidth is unknown, or
            if the arrays may be in the L2 cache.
        flop: operations per launch, None unless the user gave them.
        tflop_per_s: `flop` per median time.
    """

    times_us: Sequence[float]
    median_us: float
    min_us: float
    p90_us: float
    moved_bytes: int
    gb_per_s: float | None
    memory_share: float | None
    flop: float | None
    tflop_per_s: float | None

    @classmethod
    def of(
        cls,
        times_us: Sequence[float],
        *,
        moved_bytes: int,
        flop: float | None,
        limits: Limits | None,
        cold: bool,
    ) -> Figures:
        """Compute the figures from launch times.

        Args:
            times_us: time of each launch, at least one.
            moved_bytes: see `moved_bytes`.
            flop: operations per launch, if known.
            limits: limits of the GPU's model, if known.
            cold: the L2 cache was emptied before each launch.
        """
        median_us = statistics.median(times_us)
        gb_per_s = moved_bytes / median_us / 1e3 if median_us else None
        share = None
        if gb_per_s is not None and limits and (cold or moved_bytes > limits.l2_bytes):
            share = gb_per_s / limits.memory_gb_per_s
        return cls(
            times_us,
            median_us,
            min_us=min(times_us),
            p90_us=sorted(times_us)[math.ceil(_PERCENTILE * len(times_us)) - 1],
            moved_bytes=moved_bytes,
            gb_per_s=gb_per_s,
            memory_share=share,
            flop=flop,
            tflop_per_s=flop / median_us / 1e6 if flop is not None and median_us else None,
        )


def moved_bytes(signature: LaunchPlan) -> int:
    """Return the size of all inputs and outputs; an input updated in place counts twice."""
    updated = [signature.inputs[number] for number in signature.updated]
    return sum(array.size_bytes for array in (*signature.passed, *updated))


def parse_flop(text: str, params: Mapping[str, Scalar]) -> float:
    """Return the operations per launch: a number, or `{2 * m * n * k}` over the parameters.

    Raises:
        SpecError: the text is not a positive number or such a product.
    """
    value = parse_template(text).fill(params)
    try:
        operations = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        # Rejected below, because comparisons with nan are false.
        operations = math.nan
    if not 0 < operations < math.inf:
        raise SpecError(
            f"--flops must be a positive number of operations, got {text!r}, which is {value!r}.",
            hint='Write a number such as 1.4e11, or a product of parameters: "{2 * m * n * k}".',
        )
    return operations


_COLUMNS = ("VARIANT", "MEDIAN", "MIN", "P90", "GB/S", "OF MEMORY", "TFLOP/S")


def _table(measured: Sequence[Measured], *, with_flops: bool) -> str:
    columns = len(_COLUMNS) if with_flops else len(_COLUMNS) - 1
    rows = []
    for chosen, figures in measured:
        times = (figures.median_us, figures.min_us, figures.p90_us)
        share = figures.memory_share
        cells = [
            chosen.variant.id,
            *(f"{time_us:,.2f} µs" for time_us in times),
            _number(figures.gb_per_s, 0),
            "-" if share is None else f"{100 * share:.0f} %",
            _number(figures.tflop_per_s, 1),
        ]
        rows.append(cells[:columns])
    return table(_COLUMNS[:columns], rows, right=_COLUMNS[1:])


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _remarks(measured: Sequence[Measured], limits: Limits, *, with_flops: bool) -> list[str]:
    """Return the model's limits, and why memory shares may be missing."""
    lines = [f"{limits.model}: {limits.memory_gb_per_s:,.0f} GB/s of memory"]
    if with_flops:
        lines[0] += f"; {limits.fp32_tflop_per_s:,.1f} TFLOP/s in FP32 without tensor cores"
    if any(figures.memory_share is None for _, figures in measured):
        size = f"{limits.l2_bytes / 2**20:.0f} MiB"
        lines.append(f"Arrays of up to {size} stay in the L2 cache; --cold reads them from memory.")
    return lines


def _result_json(chosen: Chosen, figures: Figures) -> dict[str, object]:
    from pallasc.cli.output.reports import variant_facts

    return {
        **variant_facts(chosen.variant),
        "digest": chosen.artifact.digest,
        **asdict(figures),
    }
