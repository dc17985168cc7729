"""`pallasc run`: launch kernels, and compare the results with their references."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pallasc.cli import launching
from pallasc.cli.arguments import options
from pallasc.cli.arguments.command import Command
from pallasc.cli.output.text import echo, print_result, refusing
from pallasc.cli.profile import TraceFile
from pallasc.errors import CheckError, DeviceError

if TYPE_CHECKING:
    from pallasc.cli.launching import Chosen
    from pallasc.compiler.arrays import Comparison
    from pallasc.compiler.builds.options import Options
    from pallasc.compiler.references import LaunchFiles
    from pallasc.runtime.device.devices import Device
    from pallasc.specs.artifacts.plan import Binding


_WITHOUT_GPU = "Without a GPU, --emulate executes the kernels on the CPU."


@click.command("run", cls=Command, short_help="Launch kernels and compare with their references.")
@options.specs_argument()
@click.option(
    "--emulate",
    "emulated",
    is_flag=True,
    help="Execute the PTX on the CPU; no GPU is needed.",
)
@launching.launch_options
@options.output_option(
    "FOLDER",
    "Write each output to this folder, as a .npy file.",
    required=False,
    file_okay=False,
)
@options.file_option("--profile", "Write the profiles of profiled kernels to FILE, for Perfetto.")
@options.selection_options
@options.build_options(options.launching_options)
@options.json_option("the results")
def command(
    specs: tuple[str, ...],
    emulated: bool,
    inputs: tuple[str, ...],
    archive: Path | None,
    seed: int,
    ordinal: int,
    output: Path | None,
    profile: Path | None,
    every: bool,
    store_root: Path | None,
    as_json: bool,
    how: Options,
    selection: options.Selection,
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
    several devices run on as many emulated GPUs: the first dimension of each array is the device,
    also in files. --device and --profile cannot be used with --emulate.

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
      emulated  true if the kernels were emulated on the CPU
      results   list, each with: id, name, params, target, digest (of the artifact), seed,
                devices (number of devices), reference (its entry, or null), same (true if equal to
                the reference, or null),
                inputs (path, dtype, shape, file or null),
                outputs (path, dtype, shape, sha256, file or null, and compared: count, mismatches,
                rtol, atol, max_abs, max_rel, first (index, got, wanted); null without a reference)
    """
    from pallasc.cli.arguments.compiled import refuse_keys
    from pallasc.cli.arguments.selection import parse_inputs

    files = parse_inputs(inputs, archive)
    for name, given, why in (
        ("--device", ordinal, "no GPU is used"),
        ("--profile", profile, "no time is measured"),
    ):
        if emulated and given:
            raise click.UsageError(f"{name} cannot be used with --emulate: {why}.")
    refuse_keys(specs, "run --emulate" if emulated else "run")
    request = launching.read_request(specs, store_root, selection, files)
    device, traces = None, None if profile is None else TraceFile(profile)
    execute: Execute
    if emulated:
        chosen, execute = launching.collect_emulated(request, every=every, how=how)
    else:
        device = _device(ordinal)
        chosen = launching.collect(request, device, every=every, how=how)
        execute = OnGpu(device, traces)
    launching.check_single(files, chosen)
    launcher = Launcher(execute, seed, files, output, many=len(chosen) > 1)
    outcomes = launch_all(chosen, launcher)
    if traces is not None:
        traces.write()
    data = {
        "device": launching.device_json(device) if device else None,
        "emulated": emulated,
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


@dataclass(slots=True)
class LaunchOutput:
    """An output of a launch.

    Attributes:
        value: the array.
        digest: SHA-256 of its bytes.
        file: file it was written to, if any.
        compared: comparison with the reference's output, None without a reference.
    """

    value: launching.Value
    digest: str
    file: Path | None = None
    compared: Comparison | None = None


@dataclass(slots=True)
class LaunchResult:
    """Result of one launch.

    Attributes:
        chosen: the launched variant.
        inputs, outputs: arrays of the launch.
    """

    chosen: Chosen
    inputs: list[launching.Value]
    outputs: list[LaunchOutput]

    @property
    def same(self) -> bool | None:
        """True if all outputs match the reference's outputs, None without a reference."""
        if self.chosen.variant.reference is None:
            return None
        return not any(output.compared and output.compared.mismatches for output in self.outputs)

    def forget_bytes(self) -> None:
        """Drop the arrays' bytes to free memory."""
        for value in (*self.inputs, *(output.value for output in self.outputs)):
            value.data = b""


Execute = Callable[["Chosen", list[launching.Value]], list[launching.Value]]
"""Runs a variant on inputs, and returns its outputs."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """Launches variants.

    Attributes:
        execute: runs a variant once.
        seed: seed of random inputs.
        files: files of the other inputs, by array path.
        folder: folder for outputs, if they are written.
        many: write each variant's outputs to a separate subfolder.
    """

    execute: Execute
    seed: int
    files: Mapping[str, Path]
    folder: Path | None
    many: bool

    def launch(self, chosen: Chosen) -> LaunchResult:
        """Launch a variant, and wait for its outputs.

        Raises:
            ArgumentError: a file does not match its input.
            SpecError: a file cannot be read or written.
            PallascError: the launch failed.
        """
        signature, name = chosen.route.signature, chosen.variant.id
        devices = chosen.artifact.plan.device_count
        inputs = launching.make_inputs(
            signature, seed=self.seed, files=self.files, name=name, devices=devices
        )
        outputs = [
            LaunchOutput(value, hashlib.sha256(value.data).hexdigest())
            for value in self.execute(chosen, inputs)
        ]
        if self.folder is not None:
            from pallasc.cli.output.artifact_text import safe_names

            own = self.folder / safe_names([name])[name] if self.many else self.folder
            for output in outputs:
                output.file = _write(own, output.value)
        return LaunchResult(chosen, inputs, outputs)


def _write(folder: Path, value: launching.Value) -> Path:
    """Write an output as a .npy file.

    Raises:
        SpecError: the file cannot be written.
    """
    from pallasc.cli.output.artifact_text import safe_names
    from pallasc.compiler.arrays import npy_bytes

    array = value.binding
    path = folder / f"{safe_names([array.path])[array.path]}.npy"
    with refusing(path, hint="Give --output another path."):
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(npy_bytes(array.dtype, array.shape, value.data))
    echo(f"wrote {path}", err=True)
    return path


def launch_all(chosen: Sequence[Chosen], launcher: Launcher) -> list[LaunchResult]:
    """Launch all variants, compare those with references, and return the results in the same order.

    Raises:
        PallascError: a launch or a reference failed.
    """
    outcomes: dict[int, LaunchResult] = {}
    referring = [n for n, own in enumerate(chosen) if own.variant.reference is not None]
    for number in sorted({*range(len(chosen))} - {*referring}):
        outcomes[number] = launcher.launch(chosen[number])
        outcomes[number].forget_bytes()
    if referring:
        from pallasc.compiler.references import compare

        with tempfile.TemporaryDirectory(prefix="pallasc-run-") as folder:

            def hand_over(index: int) -> LaunchFiles:
                outcome = outcomes[referring[index]] = launcher.launch(chosen[referring[index]])
                files = _hand_over(outcome, Path(folder))
                outcome.forget_bytes()
                return files

            variants = [chosen[number].variant for number in referring]
            for index, compared in compare(variants, hand_over):
                outputs = outcomes[referring[index]].outputs
                for output, each in zip(outputs, compared, strict=True):
                    output.compared = each
    return [outcomes[number] for number in sorted(outcomes)]


def _hand_over(outcome: LaunchResult, folder: Path) -> LaunchFiles:
    """Write the arrays for the comparing process, replacing the previous launch's files."""
    from pallasc.compiler.references import ArrayFile, LaunchFiles

    def write(kind: str, values: Iterable[launching.Value]) -> Iterator[ArrayFile]:
        for number, value in enumerate(values):
            (folder / f"{kind}{number}").write_bytes(value.data)
            yield ArrayFile(value.binding, f"{kind}{number}")

    outputs = write("output", (output.value for output in outcome.outputs))
    return LaunchFiles(folder, tuple(write("input", outcome.inputs)), tuple(outputs))


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
        (value.binding, f"random, seed {seed}" if value.source is None else str(value.source))
        for value in outcome.inputs
    ]
    for output in outcome.outputs:
        verdict = "not compared (no reference)"
        if output.compared is not None:
            verdict = difference_text(output.compared)
        rows.append((output.value.binding, f"{verdict}; sha256 {output.digest[:_SHOWN_DIGITS]}"))
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
    from pallasc.cli.output.json import variant_facts

    variant = outcome.chosen.variant
    return {
        **variant_facts(variant),
        "digest": outcome.chosen.artifact.digest,
        "seed": seed,
        "devices": outcome.chosen.artifact.plan.device_count,
        "reference": variant.reference,
        "same": outcome.same,
        "inputs": [
            {**_array_json(array.binding), "file": str(array.source) if array.source else None}
            for array in outcome.inputs
        ],
        "outputs": [
            {
                **_array_json(output.value.binding),
                "sha256": output.digest,
                "file": None if output.file is None else str(output.file),
                "compared": None if output.compared is None else output.compared.to_json(),
            }
            for output in outcome.outputs
        ],
    }


def _array_json(binding: Binding) -> dict[str, object]:
    return {"path": binding.path, "dtype": binding.dtype, "shape": list(binding.shape)}


@dataclass(frozen=True, slots=True)
class OnGpu:
    """Launches variants on a GPU.

    Attributes:
        device: the GPU.
        traces: collects the traces of profiled kernels, if requested.
    """

    device: Device
    traces: TraceFile | None = None

    def __call__(self, chosen: Chosen, inputs: list[launching.Value]) -> list[launching.Value]:
        """Launch a variant, and wait for its outputs.

        Raises:
            DeviceError: the launch failed.
        """
        with launching.naming(chosen.variant):
            operands = launching.Operands(chosen.route.signature, inputs, self.device)
            if self.traces is None:
                chosen.route.enqueue(0, self.device.ordinal, operands.pointers)
            else:
                self.traces.enqueue(chosen, self.device, operands.pointers)
            return operands.read_outputs()
