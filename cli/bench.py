"""`pallasc bench`: how long kernels take on the GPU of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import click

from pallasc.cli.arguments.build_options import remote_options
from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import (
    compile_options,
    count_option,
    json_option,
    selection_options,
    specs_argument,
    store_option,
    store_setting,
)
from pallasc.cli.launching.launching import CollectOptions, launch_options
from pallasc.cli.terminal.output import echo


@click.command("bench", cls=Command, short_help="Measure how long kernels take on the GPU.")
@specs_argument()
@click.option(
    "--cold", is_flag=True, help="Empty the L2 cache before each launch that is measured."
)
@count_option("--repeats", "Measure this many launches.", default=100)
@count_option("--warmup", "Launch this many times before measuring.", least=0, default=25)
@click.option(
    "--flops",
    metavar="N",
    help='Operations of a launch: a number, or a product of parameters: "{2 * m * n * k}".',
)
@launch_options
@selection_options
@compile_options
@store_option
@store_setting
@remote_options
@json_option("the figures")
def command(
    specs: tuple[str, ...],
    cold: bool,
    repeats: int,
    warmup: int,
    flops: str | None,
    inputs: tuple[str, ...],
    archive: Path | None,
    seed: int,
    ordinal: int,
    targets: tuple[str, ...],
    expression: str | None,
    all_points: bool,
    store_root: Path | None,
    as_json: bool,
    **options: Unpack[CollectOptions],
) -> int:
    """Measure one variant of each kernel of SPECS on the GPU of this machine.

    Variants and inputs are chosen as by "pallasc run". Each launch lies between two events on the
    GPU, and the time between them counts. It includes what the events themselves take, but not what
    this process does meanwhile. By default a launch finds in the L2 cache what the launch before
    left there; with --cold it finds nothing of its arrays there.

    Bytes are those of inputs and outputs, each counted once: a kernel that reads an array twice
    moves more. The number of operations is taken from --flops.

    Examples:
      pallasc bench kernels.yaml --cold
      pallasc bench kernels.yaml -k "matmul and m=4096" --flops "{2 * m * n * k}"
      pallasc bench specs/ --all --repeats 1000 --json > figures.json
      pallasc bench kernels.pallasc --all

    --json prints one object:
      schema   1
      device   ordinal, name, arch, driver
      limits   of the GPU's model: model, memory_gb_per_s, fp32_tflop_per_s (without tensor cores),
               l2_bytes; null where the model is not known
      cold, repeats, warmup, seed  as given
      results  a list; of each: id, name, params, target, digest (of the artifact), median_us,
               min_us, p90_us, times_us (of each launch, in order), moved_bytes, gb_per_s,
               memory_share (of the model's bandwidth; null where that is not known, or the
               arrays fit into an L2 cache that is not emptied), flop, tflop_per_s (or null)
    """
    from pallasc.cli.arguments.selection import parse_inputs, refuse_keys
    from pallasc.cli.launching.figures import (
        Conditions,
        bench_json,
        bench_text,
        check_flops,
        measure,
    )
    from pallasc.cli.launching.launching import check_single, collect
    from pallasc.cli.launching.request import read_request
    from pallasc.cli.terminal.output import json_text
    from pallasc.runtime.device.devices import get_device

    refuse_keys(specs, "bench")
    files = parse_inputs(inputs, archive)
    request = read_request(
        specs,
        targets=targets,
        expression=expression,
        store_root=store_root,
        all_points=all_points,
    )
    request.check_inputs(files)
    check_flops(flops, request.variants)
    device = get_device(ordinal)
    chosen = collect(request, device, **options)
    if isinstance(chosen, int):
        return chosen
    check_single(files, chosen)
    under = Conditions(device, repeats, warmup, cold, seed, files, flops)
    measured = [measure(variant, under) for variant in chosen]
    if as_json:
        echo(json_text(bench_json(measured, under)))
    else:
        echo(bench_text(measured, under))
    return 0
