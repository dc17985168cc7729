"""Shared code of `run` and `bench`: variants to launch, their arrays, launches, emulation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pallasc.cli.arguments.options import count_option, flag, option, packed, together
from pallasc.cli.arguments.variants import (
    Work,
    bundle_files,
    input_options,
    parse_inputs,
)
from pallasc.cli.output.outcome import grouped
from pallasc.cli.output.text import echo, refusing
from pallasc.errors import ArgumentError, DeviceError, SelectionError, SpecError
from pallasc.specs.gpus import DEFAULT_MODELS, MODELS, device_names
from pallasc.specs.spelling import listed

if TYPE_CHECKING:
    from pallasc.compiler.arrays import Comparison
    from pallasc.compiler.builds.report import VariantResult
    from pallasc.runtime.calls.launch import Route
    from pallasc.runtime.device.devices import Device
    from pallasc.specs.artifacts.artifact import Artifact
    from pallasc.specs.artifacts.plan import Binding, LaunchPlan
    from pallasc.specs.gpus import Target
    from pallasc.specs.spec import Variant


@dataclass(frozen=True, slots=True)
class Request:
    """Variants of specs or bundles to launch.

    Attributes:
        variants: all variants, for any target.
        bundled: the variants with their artifacts; empty for specs.
        work: builds the variants of specs.
    """

    variants: list[Variant]
    bundled: list[VariantResult]
    work: Work

    def compiled(self, variants: Sequence[Variant]) -> list[tuple[Variant, Artifact]]:
        """Return the given variants with their artifacts; variants from specs are built.

        Raises:
            click.exceptions.Exit: a build failed.
            PallascError: see `Work.build`.
        """
        if self.bundled:
            by_id = {id(each.variant): each for each in self.bundled}
            results = [by_id[id(variant)] for variant in variants]
        else:
            report = self.work.build(variants)
            results = list(report.results)
            if report.exit_code:
                raise click.exceptions.Exit(report.exit_code)
        return [(r.variant, r.artifact) for r in results if r.artifact is not None]


def read_request(work: Work, files: Mapping[str, Path]) -> Request:
    """Return the variants of specs or bundles to launch, and check that the input files exist.

    Args:
        work: names the specs or bundles.
        files: input files by array path.

    Raises:
        PallascError: an input file, the specs, or the bundles cannot be read, or nothing is
            selected.
    """
    for file in files.values():
        with refusing(file, doing="read"):
            file.stat()
    if bundle_files(work.specs):
        found = [each.result for each in work.bundled]
        return Request([each.variant for each in found], found, work)
    return Request(list(work.select().variants), [], work)


@dataclass(slots=True)
class Value:
    """An array on the host.

    Attributes:
        binding: dtype, shape, layout and name of the array.
        data: bytes in the layout of device memory.
        file: file that the array was read from or written to, if any.
        digest: SHA-256 of the bytes of an output.
        compared: comparison of an output with the reference, None without a reference.
    """

    binding: Binding
    data: bytes
    file: Path | None = None
    digest: str = ""
    compared: Comparison | None = None


def make_inputs(
    signature: LaunchPlan, *, seed: int, files: Mapping[str, Path], name: str, devices: int = 1
) -> list[Value]:
    """Return the inputs in order, from files or random.

    With several devices, each array has an additional leading dimension, the device.

    Args:
        signature: signature of the kernel.
        seed: seed of the random numbers.
        files: files by array path.
        name: name of the kernel in messages.
        devices: number of devices that run the kernel together.

    Raises:
        SpecError: a file cannot be read.
        ArgumentError: a file has the wrong shape or dtype, or the kernel has no such input.
        ToolError: a layout needs numpy, which is not installed.
    """
    from pallasc.compiler.arrays import bytes_in_layout, named_with_devices, read_input

    paths = [array.path for array in signature.inputs]
    if unknown := next((path for path in files if path not in paths), None):
        from pallasc.specs.spelling import suggestion

        hint = suggestion(unknown, paths, otherwise="Inputs")
        raise ArgumentError(f"{name} has no input {unknown!r}.", hint=hint)
    values = []
    for array in signature.inputs:
        file, whole = files.get(array.path), of_devices(array, devices)
        if file is None:
            data = _random(array, array.size_bytes, seed, devices)
        else:
            what = named_with_devices(name, devices)
            data = read_input(file, array.path, array.dtype, whole.shape, what)
            if whole.layout is not None:
                data = bytes_in_layout(data, whole.shape, whole.layout)
        values.append(Value(whole, data, file))
    return values


def of_devices(binding: Binding, count: int) -> Binding:
    """Return the binding of all devices' arrays, with the device as leading dimension."""
    if count <= 1:
        return binding  # avoids importing numpy
    from pallasc.emulator import program

    return program.of_devices(binding, count)


def _random(binding: Binding, size: int, seed: int, devices: int) -> bytes:
    """Return random bytes for an array, different on each device."""
    from pallasc.compiler.arrays import names_by_device, random_bytes

    drawn = [
        random_bytes(binding.dtype, size, seed=seed, name=name)
        for name in names_by_device(binding.path, max(devices, 1))
    ]
    if len(drawn) == 1:
        return drawn[0]
    from pallasc.emulator.program import join_bytes

    return join_bytes(drawn, binding)


def model_of(device: Device, more: Iterable[Target] = ()) -> Target | None:
    """Return the model of a GPU by its device name, None if unknown.

    Args:
        device: the GPU.
        more: models that specs add.
    """
    for model in (*MODELS.values(), *more):
        same = (model.major, model.minor) == (device.major, device.minor)
        if same and device.name in device_names(model.description):
            return model
    return None


def device_json(device: Device) -> dict[str, object]:
    """Return the `--json` object of a GPU."""
    from pallasc.runtime.device.devices import version_text

    return {
        "ordinal": device.ordinal,
        "name": device.name,
        "arch": f"sm_{device.major}{device.minor}",
        "driver": version_text(device.driver_version),
    }


def collect_emulated(request: Request, *, every: bool) -> tuple[list[Chosen], Execute]:
    """Return the variants to emulate, and the function that emulates one.

    If variants differ only in their target, the first one is emulated.

    Raises:
        click.exceptions.Exit: a build failed.
        PallascError: compiling failed, or a requirement is missing.
    """
    from pallasc.checks.run import check_installed, emulate, fault_error, subjects_of
    from pallasc.runtime.calls.launch import Route
    from pallasc.runtime.matching.candidates import Candidate

    check_installed()
    first = {(variant.name, variant.params): variant for variant in reversed(request.variants)}
    variants = [*reversed(first.values())]
    for points in grouped(variants, lambda variant: variant.name):
        if len(points) > 1 and not every:
            raise several(points, "emulated")
    pairs = request.compiled(variants)
    store, how = request.work.store, request.work.how
    subjects = subjects_of(pairs, store=store, is_bundled=bool(request.bundled), limits=how)
    by_key = {(s.artifact.digest, s.id): s for s in subjects}

    def execute(chosen: Chosen, inputs: list[Value]) -> list[Value]:
        subject = by_key[chosen.artifact.digest, chosen.variant.id]
        emulated = emulate(subject, [value.data for value in inputs], store=store, limits=how)
        if emulated.printed:
            # stdout is reserved for the results, which may be JSON.
            echo(emulated.printed, err=True, nl=not emulated.printed.endswith("\n"))
        if emulated.fault is not None:
            raise fault_error(subject, emulated.fault)
        count = chosen.artifact.plan.device_count
        outputs = [of_devices(b, count) for b in chosen.route.signature.outputs]
        return [Value(b, out) for b, out in zip(outputs, emulated.outputs, strict=True)]

    routes = [Route([Candidate(v.name, dict(v.params), artifact)]) for v, artifact in pairs]
    return [Chosen(*pair, route) for pair, route in zip(pairs, routes, strict=True)], execute


_MOST_LISTED = 20


launch_options = together(
    flag(
        "--all",
        "Launch all selected variants instead of one variant per kernel.",
        parameter="every",
    ),
    count_option("--device", "Index of the GPU.", parameter="ordinal", least=0, default=0),
    option("--seed", "N", "Seed of the random inputs.", type=int, default=0),
    input_options,
    packed("files", parse_inputs, ("inputs", "archive")),
)
"""Options of `run` and `bench`, which receive the input files as `files`."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A variant to launch.

    Attributes:
        variant: the variant.
        artifact: compiled artifact of the variant.
        route: route that launches the artifact.
    """

    variant: Variant
    artifact: Artifact
    route: Route


Execute = Callable[[Chosen, list[Value]], list[Value]]
"""Runs a variant on inputs, and returns its outputs."""


def check_single(files: Mapping[str, Path], chosen: Sequence[Chosen]) -> None:
    """Check that input files are given for a single variant only.

    Raises:
        SpecError: several variants are launched.
    """
    if files and len(chosen) > 1:
        raise SpecError(
            f"input files can only be used with a single variant, but {len(chosen)} are launched.",
            hint=f'Choose one with -k, such as -k "{chosen[0].variant.name}".',
        )


def fitting(variants: Sequence[Variant], device: Device, *, every: bool) -> list[Variant]:
    """Return the variants that can run on a GPU's architecture.

    A point of the matrix may have several such variants, for models of one architecture.

    Args:
        variants: requested variants.
        device: the GPU.
        every: allow several points per kernel.

    Raises:
        SelectionError: no variant of a kernel can run on the GPU.
        SpecError: several points of a kernel can run on the GPU, and `every` is not set.
    """
    all_fitting = []
    for kernel in grouped(variants, lambda variant: variant.name):
        fit = _fitting_of_kernel(kernel, device)
        # Reversed, so that the first model in the spec wins.
        points = {variant.params: variant for variant in reversed(fit)}
        if len(points) > 1 and not every:
            raise several([*reversed(points.values())], f"launched on {device}")
        all_fitting += fit
    return all_fitting


def _fitting_of_kernel(variants: Sequence[Variant], device: Device) -> list[Variant]:
    from pallasc.runtime.matching.selection import arch_refusal

    reasons = [(v, arch_refusal(v.target.arch, device.major, device.minor)) for v in variants]
    fit = [variant for variant, reason in reasons if reason is None]
    if not fit:
        rows = [f"{variant.id}: {reason}" for variant, reason in reasons]
        archs = [a for a in DEFAULT_MODELS if not arch_refusal(a, device.major, device.minor)]
        model = model_of(device)
        name = model.name if model else next(reversed(archs), None)
        raise SelectionError(
            f"no variant of {variants[0].name} fits {device}:{_listed(rows)}",
            location=variants[0].location,
            hint=f"Compile for this GPU: --target {name}." if name else None,
        )
    return fit


def several(points: Sequence[Variant], how: str) -> SpecError:
    """Return the error that asks the user to choose one of several points.

    Args:
        points: one variant per point.
        how: past participle for the message, such as "emulated".
    """
    from pallasc.specs.canonical import plain

    first = dict(points[0].params)
    differing = [
        name for name in first if len({plain(dict(point.params).get(name)) for point in points}) > 1
    ]
    example = " and ".join(f"{name}={plain(first[name])}" for name in differing)
    return SpecError(
        f"{len(points)} variants of {points[0].name} can be {how}:"
        f"{_listed([point.id.rpartition('@')[0] for point in points])}",
        location=points[0].location,
        hint=f'Choose one, such as -k "{example}", or run all with --all.',
    )


def _listed(rows: Sequence[str]) -> str:
    return "".join(f"\n  {row}" for row in listed(rows, _MOST_LISTED))


def collect(request: Request, device: Device, *, every: bool) -> list[Chosen]:
    """Compile the variants; return the best one for the device at each point of the matrix.

    Raises:
        click.exceptions.Exit: a build failed.
        PallascError: compiling or choosing failed.
    """
    from pallasc.runtime.calls.launch import Route
    from pallasc.runtime.matching.candidates import Candidate
    from pallasc.runtime.matching.tuned import Selector

    points: dict[object, dict[Candidate, Variant]] = {}
    for variant, artifact in request.compiled(fitting(request.variants, device, every=every)):
        candidate = Candidate(variant.name, dict(variant.params), artifact)
        points.setdefault((variant.name, variant.params), {})[candidate] = variant
    best = [(candidates, Selector(candidates).select(device)) for candidates in points.values()]
    return [Chosen(candidates[own], own.artifact, Route([own])) for candidates, own in best]


@contextmanager
def naming(variant: Variant) -> Iterator[None]:
    """Add the variant's id to the message of a `DeviceError`."""
    try:
        yield
    except DeviceError as error:
        if not error.names_variant:
            error.message = f"{variant.id}: {error.message}"
            error.names_variant = True
        raise
