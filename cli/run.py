"""`pallasc run`: launch kernels, and compare them with their references."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import (
    compile_options,
    file_option,
    json_option,
    require_store_option,
    selection_options,
    specs_argument,
    store_option,
)
from pallasc.cli.launching.launching import CollectOptions, launch_options
from pallasc.cli.terminal.output import echo


@click.command("run", cls=Command, short_help="Launch kernels and compare with their references.")
@specs_argument()
@launch_options
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Write each output as a .npy file into this folder.",
)
@file_option("--profile", "Write what profiled kernels measured into FILE, for Perfetto.")
@selection_options
@compile_options
@store_option
@require_store_option
@json_option("the results")
def command(
    specs: tuple[str, ...],
    inputs: tuple[str, ...],
    seed: int,
    ordinal: int,
    output: Path | None,
    profile: Path | None,
    targets: tuple[str, ...],
    expression: str | None,
    store_root: Path | None,
    as_json: bool,
    **options: Unpack[CollectOptions],
) -> int:
    """Launch one variant of each kernel of SPECS on the GPU of this machine.

    SPECS are specs, or bundles; nothing of a bundle is compiled, and it has no references.

    Of variants that differ in their target only, the one that suits the GPU best is launched; where
    they differ in other parameters, -k has to choose. A variant that is not in the store is
    compiled first. The result of a kernel is compared with the reference of its spec, which runs on
    the CPU in another process; without a tolerance in the spec, floating-point results may differ
    by four units in the last place, others not at all.

    Inputs without a file are random numbers, the same for the same seed: floating point between 1/8
    and 2 of either sign, whole numbers of up to 8 bits any, wider ones 0 to 15. A .npy file must
    have the array's shape and type; types that numpy lacks are stored as their bits: bf16 as
    uint16, fp8 as uint8, i4 as int8.

    Examples:
      pallasc run kernels.yaml
      pallasc run kernels.yaml -k "matmul and m=4096" --seed 7
      pallasc run kernels.yaml -k softmax --input x=x.npy --output results/
      pallasc run specs/ --all --json > report.json
      pallasc run kernels.pallasc -k "matmul and m=4096"
      pallasc run kernels.yaml -k profiled --profile trace.json

    --json prints one object:
      schema   1
      device   ordinal, name, arch, driver
      results  a list; of each: id, name, params, target, digest (of the artifact), seed,
               reference (its entry, or null), same (as the reference, or null),
               inputs (path, dtype, shape, file or null),
               outputs (path, dtype, shape, sha256, file or null, and compared: count, mismatches,
               rtol, atol, max_abs, max_rel, first (index, got, wanted); null without a reference)
    """
    from pallasc.cli.launching.launching import check_single, collect, parse_inputs
    from pallasc.cli.launching.outcome_text import outcome_json, outcome_text
    from pallasc.cli.launching.outcomes import Launcher, check, launch_all
    from pallasc.cli.launching.profile_trace import TraceFile
    from pallasc.cli.launching.request import read_request
    from pallasc.runtime.device.devices import get_device

    files = parse_inputs(inputs)
    request = read_request(specs, targets=targets, expression=expression, store_root=store_root)
    request.check_inputs(files)
    device = get_device(ordinal)
    chosen = collect(request, device, **options)
    if isinstance(chosen, int):
        return chosen
    check_single(files, chosen)
    traces = TraceFile(profile) if profile is not None else None
    launcher = Launcher(device, seed, files, output, many=len(chosen) > 1, traces=traces)
    outcomes = launch_all(chosen, launcher)
    if traces is not None:
        traces.write()
    if as_json:
        from pallasc.cli.launching.chip import device_json
        from pallasc.cli.terminal.output import json_text

        results = [outcome_json(outcome, seed) for outcome in outcomes]
        echo(json_text({"device": device_json(device), "results": results}))
    else:
        echo("\n\n".join(outcome_text(outcome, device, seed) for outcome in outcomes))
    check(outcomes)
    return 0
