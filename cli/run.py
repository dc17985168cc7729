"""`pallasc run`: launch kernels and compare the results with their references."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pallasc.cli import launching
from pallasc.cli.arguments import options
from pallasc.cli.arguments import variants as given
from pallasc.cli.arguments.command import Command
from pallasc.cli.output.artifact_text import safe_name
from pallasc.cli.output.text import echo, print_result, refusing
from pallasc.errors import CheckError, DeviceError

if TYPE_CHECKING:
    from pallasc.cli.arguments.variants import Work
    from pallasc.cli.launching import Chosen, Value
    from pallasc.compiler.arrays import Comparison
    from pallasc.compiler.references import Arrays
    from pallasc.runtime.device.devices import Device


_WITHOUT_GPU = "Without a GPU, --emulate executes the kernels on the CPU."


@click.command("run", cls=Command, short_help="Launch kernels and compare with their references.")
@options.specs_argument()
@options.flag("--emulate", "Execute the PTX on the CPU; no GPU is needed.")
@launching.launch_options
@options.output_option(
    "FOLDER",
    "Write each output to this folder, as a .npy file.",
    required=False,
    file_okay=False,
)
@options.selection_options
@given.build_options(options.launching_options)
@options.json_option("the results")
def command(
    emulate: bool,
    files: dict[str, Path],
    seed: int,
    ordinal: int,
    output: Path | None,
    every: bool,
    as_json: bool,
    work: Work,
) -> int:
    """Launch one variant of each kernel of SPECS on a local GPU, or emulate it.

    SPECS are specs or bundles. Bundles are not compiled and have no references.

    If variants differ only in their target, the best one for the GPU is launched. If they differ in
    other parameters, select one with -k. Variants that are not in the store are compiled first.

    Results are compared with the spec's reference, which runs on the CPU in a separate process. If
    the spec has no tolerance, floating-point results may differ by four units in the last place,
    and other results must be equal.

    Inputs without a file are random, and depend only on the seed: floating-point values have
    magnitudes from 1/8 to 2 and either sign, integers of up to 8 bits can have any value, and wider
    integers are 0 to 15. Files must have the shape and type of the input. Types that numpy does not
    have are stored as bits: bf16 as uint16, fp8 as uint8, i4 as int8.

    With --emulate, no GPU is needed: the CPU executes the artifact's launch plan and PTX, including
    XLA's kernels. This is slow, so use small arrays. If variants differ only in their target, the
    first one is emulated; --target selects another. An out-of-bounds access, a deadlock, or a
    failed assertion ends the command with exit code 1 and prints your source line. Kernels for
    several devices run on as many emulated GPUs: each array and file has an additional first
    dimension, the device. --device cannot be used with --emulate.

    Examples:
      pallasc run kernels.yaml
      pallasc run kernels.yaml -k "matmul and m=4096" --seed 7
      pallasc run kernels.yaml -k softmax --input x=x.npy --output results/
      pallasc run kernels.yaml -k "softmax and m=16" --emulate --timeout 60
      pallasc run kernels.yaml -k all_gather --emulate --input x=x.npy
      pallasc run specs/ --all --json > report.json
      pallasc run kernels.pallasc -k "matmul and m=4096"
    """
    if emulate and ordinal:
        raise click.UsageError("--device cannot be used with --emulate: no GPU is used.")
    request = launching.read_request(work, files)
    device = None
    if emulate:
        chosen, execute = launching.collect_emulated(request, every=every)
    else:
        device = _device(ordinal)
        chosen = launching.collect(request, device, every=every)
        execute = partial(_launch, device)
    launching.check_single(files, chosen)

    def launch(own: Chosen) -> LaunchResult:
        devices = own.artifact.plan.device_count
        arrays = launching.make_inputs(
            own.route.signature, seed=seed, files=files, name=own.variant.id, devices=devices
        )
        folder = output / safe_name(own.variant.id) if output and len(chosen) > 1 else output
        return LaunchResult(own, arrays, _outputs(execute(own, arrays), folder))

    outcomes = launch_all(chosen, launch)
    data = {
        "device": launching.device_json(device) if device else None,
        "emulated": emulate,
        "results": [outcome_json(outcome, seed) for outcome in outcomes],
    }
    texts = "\n\n".join(outcome_text(outcome, device, seed) for outcome in outcomes)
    print_result(data, [texts], as_json=as_json)
    wrong = [outcome.chosen.variant.id for outcome in outcomes if outcome.same is False]
    if wrong:
        verb = "differs from its reference" if len(wrong) == 1 else "differ from their references"
        raise CheckError(f"{', '.join(wrong)} {verb}.")
    return 0


def _device(ordinal: int) -> Device:
    """Return the GPU.

    Raises:
        ArgumentError: there is no GPU with this ordinal.
        DeviceError: the driver cannot be used; the hint suggests `--emulate`.
    """
    from pallasc.runtime.device.devices import get_device

    try:
        return get_device(ordinal)
    except DeviceError as error:
        error.hint = f"{error.hint}\n  {_WITHOUT_GPU}" if error.hint else _WITHOUT_GPU
        raise


def _launch(device: Device, chosen: Chosen, inputs: list[Value]) -> list[Value]:
    """Launch a variant on a GPU, and wait for its outputs.

    Raises:
        DeviceError: the launch failed.
    """
    from pallasc.runtime.adapters.device_arrays import Operands

    signature = chosen.route.signature
    with launching.naming(chosen.variant):
        operands = Operands(signature, [value.data for value in inputs], device)
        chosen.route.enqueue(0, device.ordinal, operands.pointers)
        outputs = zip(signature.outputs, operands.outputs(), strict=True)
        return [launching.Value(binding, data) for binding, data in outputs]


@dataclass(slots=True)
class LaunchResult:
    """Result of one launch: the launched variant, and its arrays."""

    chosen: Chosen
    inputs: list[Value]
    outputs: list[Value]

    @property
    def same(self) -> bool | None:
        """True if all outputs match the reference's outputs, None without a reference."""
        if self.chosen.variant.reference is None:
            return None
        return not any(output.compared and output.compared.mismatches for output in self.outputs)

    def forget_bytes(self) -> None:
        """Drop the arrays' bytes to free memory."""
        for value in (*self.inputs, *self.outputs):
            value.data = b""


def _outputs(outputs: list[Value], folder: Path | None) -> list[Value]:
    """Set the digest of each output; write the outputs to the folder, if given.

    Raises:
        SpecError: a file cannot be written.
    """
    for output in outputs:
        output.digest = hashlib.sha256(output.data).hexdigest()
        if folder is not None:
            output.file = _write(folder, output)
    return outputs


def _write(folder: Path, value: Value) -> Path:
    """Write an output as a .npy file.

    Raises:
        SpecError: the file cannot be written.
    """
    from pallasc.compiler.arrays import npy_bytes

    array = value.binding
    path = folder / f"{safe_name(array.path)}.npy"
    with refusing(path, hint="Give --output another path."):
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(npy_bytes(array.dtype, array.shape, value.data))
    echo(f"wrote {path}", err=True)
    return path


def launch_all(
    chosen: Sequence[Chosen], launch: Callable[[Chosen], LaunchResult]
) -> list[LaunchResult]:
    """Launch all variants, compare outputs with references, and return the results in order.

    Raises:
        PallascError: a launch or a reference failed.
    """
    outcomes: dict[int, LaunchResult] = {}
    referring = [n for n, own in enumerate(chosen) if own.variant.reference is not None]
    for number in sorted({*range(len(chosen))} - {*referring}):
        outcomes[number] = launch(chosen[number])
        outcomes[number].forget_bytes()
    if referring:
        from pallasc.compiler.references import compare

        def launched(index: int) -> tuple[Arrays, Arrays]:
            outcome = outcomes[referring[index]] = launch(chosen[referring[index]])
            inputs, outputs = map(_arrays, (outcome.inputs, outcome.outputs))
            outcome.forget_bytes()
            return inputs, outputs

        variants = [chosen[number].variant for number in referring]
        for index, compared in compare(variants, launched):
            outputs = outcomes[referring[index]].outputs
            for output, each in zip(outputs, compared, strict=True):
                output.compared = each
    return [outcomes[number] for number in sorted(outcomes)]


def _arrays(values: Iterable[Value]) -> Arrays:
    return tuple((value.binding, value.data) for value in values)


_SHOWN_DIGITS = 16


def outcome_text(outcome: LaunchResult, device: Device | None, seed: int) -> str:
    """Return the variant's id and device, followed by one line per array.

    Args:
        outcome: result of the launch.
        device: the GPU, None for an emulation.
        seed: seed of random inputs.
    """
    place, count = str(device), outcome.chosen.artifact.plan.device_count
    if device is None:
        place = f"{count} emulated GPUs" if count > 1 else "an emulated GPU"
    rows = [
        (value.binding, f"random, seed {seed}" if value.file is None else str(value.file))
        for value in outcome.inputs
    ]
    for output in outcome.outputs:
        verdict = "not compared (no reference)"
        if output.compared is not None:
            verdict = difference_text(output.compared)
        rows.append((output.binding, f"{verdict}; sha256 {output.digest[:_SHOWN_DIGITS]}"))
    arrays = [(b.path, f"{b.dtype}[{', '.join(map(str, b.shape))}]") for b, _ in rows]
    widths = [max(map(len, column)) for column in zip(*arrays, strict=True)]
    lines = [
        f"  {path:<{widths[0]}}  {kind:<{widths[1]}}  {fact}"
        for (path, kind), (_, fact) in zip(arrays, rows, strict=True)
    ]
    return "\n".join([f"{outcome.chosen.variant.id} on {place}", *lines])


def difference_text(compared: Comparison) -> str:
    """Describe the difference between an output and its reference."""
    errors = (("largest absolute", compared.max_abs), ("relative", compared.max_rel))
    distances = [f"{name} error {error:.3g}" for name, error in errors if error is not None]
    allowed = f"rtol {compared.rtol:.3g}, atol {compared.atol:.3g}"
    end = f"{', '.join(distances) or 'no finite numbers'} ({allowed})"
    first = compared.first
    if first is None:
        return f"matches the reference: {end}"
    wrong = f"{compared.mismatches:,} of {compared.count:,} elements"
    return (
        f"differs in {wrong}, first at {list(first.index)}: {first.got}, expected {first.wanted}; "
        f"{end}"
    )


def outcome_json(outcome: LaunchResult, seed: int) -> dict[str, object]:
    """Return the `--json` object of a launch."""
    from pallasc.cli.output.reports import variant_facts

    variant = outcome.chosen.variant
    return {
        **variant_facts(variant),
        "digest": outcome.chosen.artifact.digest,
        "seed": seed,
        "devices": outcome.chosen.artifact.plan.device_count,
        "reference": variant.reference,
        "same": outcome.same,
        "inputs": list(map(_array_json, outcome.inputs)),
        "outputs": [
            {
                **_array_json(output),
                "sha256": output.digest,
                "compared": None if output.compared is None else output.compared.to_json(),
            }
            for output in outcome.outputs
        ],
    }


def _array_json(value: Value) -> dict[str, object]:
    array, file = value.binding, None if value.file is None else str(value.file)
    return {"path": array.path, "dtype": array.dtype, "shape": list(array.shape), "file": file}
