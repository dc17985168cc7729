"""`pallasc run`: launch kernels, and compare them with their references."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Unpack

import click
from click.core import ParameterSource

from pallasc.cli.arguments.build_options import remote_options
from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import (
    compile_options,
    file_option,
    json_option,
    launching_options,
    selection_options,
    specs_argument,
    store_option,
    store_setting,
)
from pallasc.cli.launching.launching import CollectOptions, launch_options
from pallasc.cli.terminal.output import echo
from pallasc.errors import DeviceError

if TYPE_CHECKING:
    from pallasc.cli.launching.launching import Chosen, DeviceRow
    from pallasc.cli.launching.outcomes import Execute
    from pallasc.cli.launching.profile_trace import TraceFile
    from pallasc.cli.launching.request import Request
    from pallasc.runtime.device.devices import Device

_WITHOUT_GPU = "Without a GPU, --emulate executes the kernels on the CPU."


@click.command("run", cls=Command, short_help="Launch kernels and compare with their references.")
@specs_argument()
@click.option(
    "--emulate",
    "emulated",
    is_flag=True,
    help="Execute the PTX on the CPU; no GPU is needed.",
)
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
@launching_options
@store_option
@store_setting
@remote_options
@json_option("the results")
def command(
    specs: tuple[str, ...],
    emulated: bool,
    inputs: tuple[str, ...],
    archive: Path | None,
    seed: int,
    ordinal: int,
    output: Path | None,
    profile: Path | None,
    targets: tuple[str, ...],
    expression: str | None,
    all_points: bool,
    store_root: Path | None,
    as_json: bool,
    **options: Unpack[CollectOptions],
) -> int:
    """Launch one variant of each kernel of SPECS on the GPU of this machine, or emulate it.

    SPECS are specs, or bundles; nothing of a bundle is compiled, and it has no references.

    Of variants that differ in their target only, the one that suits the GPU best is launched; where
    they differ in other parameters, -k has to choose. A variant that is not in the store is
    compiled first. The result of a kernel is compared with the reference of its spec, which runs on
    the CPU in another process; without a tolerance in the spec, floating-point results may differ
    by four units in the last place, others not at all.

    Inputs without a file are random numbers, the same for the same seed: floating point between 1/8
    and 2 of either sign, whole numbers of up to 8 bits any, wider ones 0 to 15. A file must have
    the shape and type of the input; types that numpy lacks are stored as their bits: bf16 as
    uint16, fp8 as uint8, i4 as int8.

    With --emulate no GPU is needed: the CPU executes the launch plan and the PTX of the artifact,
    XLA's kernels included. That is slow, so choose small arrays. Of variants that differ in
    their target only, the first is emulated; --target chooses another. An access out of bounds, a
    deadlock or a failed assertion ends the command with exit code 1 and the line of your source.
    Kernels over several devices run on as many emulated GPUs: each array, also in files, has the
    device as its first dimension. --device and --profile cannot be used with --emulate.

    Examples:
      pallasc run kernels.yaml
      pallasc run kernels.yaml -k "matmul and m=4096" --seed 7
      pallasc run kernels.yaml -k softmax --input x=x.npy --output results/
      pallasc run kernels.yaml -k "softmax and m=16" --emulate --timeout 60
      pallasc run kernels.yaml -k all_gather --emulate --input x=x.npy
      pallasc run specs/ --all --json > report.json
      pallasc run kernels.pallasc -k "matmul and m=4096"
      pallasc run kernels.yaml -k profiled --profile trace.json

    --json prints one object:
      schema    1
      device    ordinal, name, arch, driver; null with --emulate
      emulated  whether the CPU executed it
      results   a list; of each: id, name, params, target, digest (of the artifact), seed,
                devices (how many ran it together), reference (its entry, or null), same (as the
                reference, or null),
                inputs (path, dtype, shape, file or null),
                outputs (path, dtype, shape, sha256, file or null, and compared: count, mismatches,
                rtol, atol, max_abs, max_rel, first (index, got, wanted); null without a reference)
    """
    from pallasc.cli.arguments.selection import parse_inputs, refuse_keys
    from pallasc.cli.launching.launching import check_single
    from pallasc.cli.launching.outcomes import (
        Launcher,
        check,
        launch_all,
        outcome_json,
        outcome_text,
    )
    from pallasc.cli.launching.profile_trace import TraceFile
    from pallasc.cli.launching.request import read_request

    files = parse_inputs(inputs, archive)
    if emulated:
        _refuse_without_meaning()
    refuse_keys(specs, "run --emulate" if emulated else "run")
    request = read_request(
        specs,
        targets=targets,
        expression=expression,
        store_root=store_root,
        all_points=all_points,
    )
    request.check_inputs(files)
    traces = TraceFile(profile) if profile is not None else None
    if emulated:
        way = _emulated(request, options)
    else:
        way = _launched(request, _device(ordinal), traces, options)
    if isinstance(way, int):
        return way
    check_single(files, way.chosen)
    launcher = Launcher(way.execute, seed, files, output, many=len(way.chosen) > 1)
    outcomes = launch_all(way.chosen, launcher)
    if traces is not None:
        traces.write()
    if as_json:
        from pallasc.cli.terminal.output import json_text

        results = [outcome_json(outcome, seed) for outcome in outcomes]
        echo(json_text({"device": way.device, "emulated": emulated, "results": results}))
    else:
        texts = (outcome_text(o, way.place(o.chosen), seed) for o in outcomes)
        echo("\n\n".join(texts))
    check(outcomes)
    return 0


class _Way(NamedTuple):
    """What runs, by what and where; `device` is what `--json` prints of the GPU."""

    chosen: list[Chosen]
    execute: Execute
    place: Callable[[Chosen], str]
    device: DeviceRow | None


def _emulated(request: Request, options: CollectOptions) -> _Way | int:
    """Return what is emulated, or the exit status where a build failed."""
    from pallasc.cli.launching.launching import collect_emulated

    found = collect_emulated(request, **options)
    return found if isinstance(found, int) else _Way(*found, _emulated_gpus, None)


def _launched(
    request: Request, device: Device, traces: TraceFile | None, options: CollectOptions
) -> _Way | int:
    """Return what is launched on a GPU, or the exit status where a build failed."""
    from pallasc.cli.launching.launching import collect, device_json
    from pallasc.cli.launching.profile_trace import OnGpu

    chosen = collect(request, device, **options)
    if isinstance(chosen, int):
        return chosen
    return _Way(chosen, OnGpu(device, traces), lambda _: str(device), device_json(device))


def _emulated_gpus(chosen: Chosen) -> str:
    count = chosen.artifact.plan.device_count
    return f"{count} emulated GPUs" if count > 1 else "an emulated GPU"


def _refuse_without_meaning() -> None:
    """Refuse options that are about a GPU.

    Raises:
        click.UsageError: the command line has one.
    """
    context = click.get_current_context()
    for parameter, why in (("ordinal", "no GPU is used"), ("profile", "no time is measured")):
        # The value does not tell whether it was given: --device 0 is the default.
        if context.get_parameter_source(parameter) is not ParameterSource.DEFAULT:
            name = next(p.opts[0] for p in context.command.params if p.name == parameter)
            raise click.UsageError(f"{name} cannot be used with --emulate: {why}.")


def _device(ordinal: int) -> Device:
    """Return the GPU.

    Raises:
        ArgumentError: there is no GPU of that number.
        DeviceError: the driver cannot be used; the hint tells what works without.
    """
    from pallasc.runtime.device.devices import get_device

    try:
        return get_device(ordinal)
    except DeviceError as error:
        error.hint = f"{error.hint}\n  {_WITHOUT_GPU}" if error.hint else _WITHOUT_GPU
        raise
