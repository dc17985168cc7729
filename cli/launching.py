"""What `run` and `bench` share: variants of specs, bundles and keys, their arrays, launches."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import click

from pallasc.cli.arguments.options import count_option, together
from pallasc.cli.arguments.selection import build_variants, input_options, open_store
from pallasc.cli.output.text import echo, refusing
from pallasc.errors import (
    ArgumentError,
    DeviceError,
    SelectionError,
    SpecError,
)
from pallasc.specs.gpus import DEFAULT_MODELS, MODELS, device_names

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.checks.subject import Subject
    from pallasc.cli.arguments.options import Selection
    from pallasc.compiler.builds.options import Options
    from pallasc.runtime.adapters.device_arrays import DeviceArray
    from pallasc.runtime.calls.launch import Route
    from pallasc.runtime.device.devices import Device
    from pallasc.specs.artifacts.artifact import Artifact
    from pallasc.specs.artifacts.plan import Binding
    from pallasc.specs.artifacts.signature import Signature
    from pallasc.specs.gpus import Target
    from pallasc.specs.spec import ArgTree, Variant


@dataclass(frozen=True, slots=True)
class Request:
    """The variants of specs or bundles that are to be launched.

    Attributes:
        variants: all of them, whatever they were compiled for.
        artifacts: what was compiled, in the same order; nothing for specs.
        store: where the artifacts of specs lie; None for bundles.
    """

    variants: list[Variant]
    artifacts: list[Artifact]
    store: Store | None

    def check_inputs(self, files: Mapping[str, Path]) -> None:
        """Check that the files of inputs are there, and the inputs as far as their names are known.

        Raises:
            ArgumentError: the kernel takes no array of this name.
            SpecError: a file does not exist.
        """
        kernels = {variant.name for variant in self.variants}
        paths = self._paths() if files and len(kernels) == 1 else None
        if paths is not None:
            name = self.variants[0].id if len(self.variants) == 1 else self.variants[0].name
            check_names(files, paths, name)
        for file in files.values():
            with refusing(file, doing="read"):
                file.stat()

    def compiled(self, variants: Sequence[Variant], how: Options) -> list[tuple[Variant, Artifact]]:
        """Return some of the variants with their artifacts; those of specs are built.

        Raises:
            click.exceptions.Exit: a build failed.
            PallascError: as building does.
        """
        if self.store is None:
            made = {id(v): a for v, a in zip(self.variants, self.artifacts, strict=True)}
            return [(variant, made[id(variant)]) for variant in variants]
        report = build_variants(variants, self.store, how)
        if report.exit_code:
            raise click.exceptions.Exit(report.exit_code)
        return [(r.variant, r.artifact) for r in report.results if r.artifact is not None]

    def _paths(self) -> list[str] | None:
        """Return the names of all inputs, None where only compiling will tell."""
        if self.store is None:
            return [binding.path for artifact in self.artifacts for binding in artifact.plan.inputs]
        paths: list[str] = []
        for variant in self.variants:
            if not isinstance(variant.args, dict):
                return None
            for name, tree in variant.args.items():
                for path in _array_paths(tree, name):
                    if path is None:
                        return None
                    paths.append(path)
        return paths


def read_request(specs: Sequence[str], store_root: Path | None, selection: Selection) -> Request:
    """Return the variants of specs, or of bundles, that are to be launched.

    Args:
        specs: files and folders of specs, or bundles.
        store_root: the store; nothing for a bundle.
        selection: which variants to choose.

    Raises:
        PallascError: as reading does.
    """
    from pallasc.cli.arguments.compiled import bundle_files, read_bundled
    from pallasc.compiler.builds.collect import SpecReader

    if bundles := bundle_files(specs):
        found = read_bundled(bundles, selection)
        return Request([each.variant for each in found], [each.artifact for each in found], None)
    store = open_store(store_root)
    variants = SpecReader(store=store).select(specs, **selection._asdict()).variants
    return Request(list(variants), [], store)


def _array_paths(tree: ArgTree, path: str) -> Iterator[str | None]:
    """Yield the names of the arrays in an argument as a compiled kernel calls them.

    None stands for those of a node that a call gives, which only compiling tells.
    """
    if isinstance(tree, dict) and "$call" in tree:
        yield None
    elif isinstance(tree, dict) and "$tuple" in tree:
        yield from _array_paths(tree["$tuple"], path)
    elif isinstance(tree, dict):
        for key, item in tree.items():
            yield from _array_paths(item, f"{path}.{key}")
    elif isinstance(tree, list):
        for number, item in enumerate(tree):
            yield from _array_paths(item, f"{path}.{number}")
    elif tree is not None:
        yield path


@dataclass(frozen=True, slots=True)
class Value:
    """An array on the host.

    Attributes:
        binding: which array it is.
        data: its bytes, as they lie in device memory.
        source: the file it was read from, None where there is none.
    """

    binding: Binding
    data: bytes
    source: Path | None = None


def make_inputs(
    signature: Signature, *, seed: int, files: Mapping[str, Path], name: str, devices: int = 1
) -> list[Value]:
    """Return the inputs, in order: from files, random where none is given.

    Where there are several devices, an array has one dimension more in front, the device.

    Args:
        signature: what the kernel takes.
        seed: chooses the random numbers.
        files: path of the array: file.
        name: what the kernel is called in messages.
        devices: how many run the kernel together.

    Raises:
        SpecError: a file cannot be read.
        ArgumentError: it holds another array, or the kernel takes no array of that path.
        ToolError: a layout needs numpy, which is not installed.
    """
    from pallasc.compiler.references.arrays import bytes_in_layout, named_with_devices, read_input

    check_names(files, [array.path for array in signature.inputs], name)
    values = []
    for array, size in zip(signature.inputs, signature.sizes_bytes, strict=False):
        file, whole = files.get(array.path), of_devices(array, devices)
        if file is None:
            data = _random(array, size, seed, devices)
        else:
            what = named_with_devices(name, devices)
            data = read_input(file, array.path, array.dtype, whole.shape, what)
            if whole.layout is not None:
                data = bytes_in_layout(data, whole.shape, whole.layout)
        values.append(Value(whole, data, file))
    return values


def of_devices(binding: Binding, count: int) -> Binding:
    """Return the arrays of several devices as one, with one dimension more in front: the device."""
    if count <= 1:
        return binding  # without numpy
    from pallasc.emulator import arrays

    return arrays.of_devices(binding, count)


def _random(binding: Binding, size: int, seed: int, devices: int) -> bytes:
    """Return random bytes of an array, other ones on each device."""
    from pallasc.compiler.references.arrays import names_by_device, random_bytes

    drawn = [
        random_bytes(binding.dtype, size, seed=seed, name=name)
        for name in names_by_device(binding.path, max(devices, 1))
    ]
    if len(drawn) == 1:
        return drawn[0]
    from pallasc.emulator.arrays import join_bytes

    return join_bytes(drawn, binding)


def check_names(files: Iterable[str], paths: Collection[str], name: str) -> None:
    """Check that a kernel takes the arrays that files are given for.

    Args:
        files: the paths of those arrays.
        paths: those of all its inputs.
        name: what the kernel is called in messages.

    Raises:
        ArgumentError: it takes no array of some path.
    """
    from pallasc.specs.spelling import suggestion

    for path in files:
        if path not in paths:
            hint = suggestion(path, paths, otherwise="Its arrays")
            raise ArgumentError(f"{name} has no input {path!r}.", hint=hint)


class Operands:
    """Inputs and results of one launch in the memory of a GPU.

    Args:
        signature: what the kernel takes and gives.
        inputs: the inputs, in order.
        device: where.

    Raises:
        OutOfMemoryError: there is no room for them.
    """

    def __init__(self, signature: Signature, inputs: list[Value], device: Device) -> None:
        from pallasc.runtime.adapters.device_arrays import DeviceArray

        self._signature = signature
        self._inputs: list[DeviceArray] = []
        for value in inputs:
            array = DeviceArray(value.binding.shape, value.binding.dtype, device.ordinal)
            array.copy_from(value.data)
            self._inputs.append(array)
        self._results = [
            DeviceArray(array.shape, array.dtype, device.ordinal) for array in signature.results
        ]

    @property
    def pointers(self) -> list[int]:
        """Addresses of the inputs, then of the results."""
        return [array.pointer for array in (*self._inputs, *self._results)]

    def read_outputs(self) -> list[Value]:
        """Return what the kernel gives, in order; waits for the default stream.

        Raises:
            DriverError: it cannot be read, or an earlier launch failed.
        """
        arrays = {"input": self._inputs, "result": self._results}
        return [
            Value(binding, arrays[source][number].to_bytes())
            for binding, (source, number) in zip(
                self._signature.outputs, self._signature.sources, strict=True
            )
        ]


def model_of(device: Device, more: Iterable[Target] = ()) -> Target | None:
    """Return the model that a GPU is, by its name; None where it is not known.

    Args:
        device: the GPU.
        more: models that specs add.
    """
    for model in (*MODELS.values(), *more):
        same = (model.major, model.minor) == (device.major, device.minor)
        if same and device.name in device_names(model.description):
            return model
    return None


class DeviceRow(TypedDict):
    """A GPU, as `--json` prints it."""

    ordinal: int
    name: str
    arch: str
    driver: str


def device_json(device: Device) -> DeviceRow:
    """Return what `--json` prints of a GPU."""
    from pallasc.runtime.device.answers import version_text

    return {
        "ordinal": device.ordinal,
        "name": device.name,
        "arch": f"sm_{device.major}{device.minor}",
        "driver": version_text(device.driver_version),
    }


@dataclass(frozen=True, slots=True)
class Emulation:
    """Emulates variants.

    Attributes:
        subjects: what is emulated, by the digest of the artifact and the variant's id.
        store: that of the build, None where there is no source.
        limits: time and memory.
    """

    subjects: Mapping[tuple[str, str], Subject]
    store: Store | None
    limits: Options

    def __call__(self, chosen: Chosen, inputs: list[Value]) -> list[Value]:
        """Run a variant on inputs; what it prints goes to the standard error output.

        Raises:
            CheckError: a kernel fails: an access out of bounds, a deadlock, an assertion.
            CompileError: it has an instruction that is not known, or was stopped at a limit.
        """
        from pallasc.checks.emulation.emulate import emulate, fault_error

        subject = self.subjects[chosen.artifact.digest, chosen.variant.id]
        data = [value.data for value in inputs]
        emulated = emulate(subject, data, store=self.store, limits=self.limits)
        if emulated.printed:
            # The standard output belongs to the results, which may be JSON.
            echo(emulated.printed, err=True, nl=not emulated.printed.endswith("\n"))
        if emulated.fault is not None:
            raise fault_error(subject, emulated.fault)
        count = chosen.artifact.plan.device_count
        outputs = [of_devices(b, count) for b in chosen.route.signature.outputs]
        return [Value(b, out) for b, out in zip(outputs, emulated.outputs, strict=True)]


def collect_emulated(
    request: Request, *, every: bool, how: Options
) -> tuple[list[Chosen], Emulation]:
    """Return what is emulated, and what does it.

    Of variants that differ in their target only, the first is emulated.

    Raises:
        click.exceptions.Exit: a build failed.
        PallascError: as compiling does, or something that is needed is missing.
    """
    from pallasc.checks.emulation.emulate import check_installed, subjects_of

    check_installed()
    first = {(variant.name, variant.params): variant for variant in reversed(request.variants)}
    variants = [*reversed(first.values())]
    for points in by_kernel(variants):
        if len(points) > 1 and not every:
            raise several(points, "emulated")
    pairs = request.compiled(variants, how)
    subjects = subjects_of(pairs, store=request.store, limits=how)
    by_key = {(s.artifact.digest, s.id): s for s in subjects}
    return [_chosen(*pair) for pair in pairs], Emulation(by_key, request.store, how)


def by_kernel(variants: Iterable[Variant]) -> list[list[Variant]]:
    """Return the variants of each kernel."""
    kernels: dict[str, list[Variant]] = {}
    for variant in variants:
        kernels.setdefault(variant.name, []).append(variant)
    return [*kernels.values()]


def _chosen(variant: Variant, artifact: Artifact) -> Chosen:
    from pallasc.runtime.calls.launch import Route
    from pallasc.runtime.matching.candidates import Candidate

    return Chosen(
        variant, artifact, Route([Candidate(variant.name, dict(variant.params), artifact)])
    )


_MOST_LISTED = 20


launch_options = together(
    click.option(
        "--all",
        "every",
        is_flag=True,
        help="Launch every point of the matrix, instead of one variant of each kernel.",
    ),
    count_option("--device", "The GPU, by its number.", parameter="ordinal", least=0, default=0),
    click.option(
        "--seed",
        type=int,
        default=0,
        show_default=True,
        metavar="N",
        help="Choose the random numbers of the other inputs.",
    ),
    input_options,
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A variant that is launched.

    Attributes:
        variant: the variant.
        artifact: what it was compiled into.
        route: launches it.
    """

    variant: Variant
    artifact: Artifact
    route: Route


def check_single(files: Mapping[str, Path], chosen: Sequence[Chosen]) -> None:
    """Check that files are given for a single variant only.

    Raises:
        SpecError: several variants are launched.
    """
    if files and len(chosen) > 1:
        raise SpecError(
            f"files of inputs are for one variant, and {len(chosen)} are launched.",
            hint=f'Choose one with -k, such as -k "{chosen[0].variant.name}".',
        )


def fitting(variants: Sequence[Variant], device: Device, *, every: bool) -> list[Variant]:
    """Return the variants that a GPU's architecture can run.

    Several may be left of a point of the matrix, for models of the same architecture.

    Args:
        variants: what was asked for.
        device: the GPU.
        every: launch all points of a kernel.

    Raises:
        SelectionError: no variant of a kernel can run there.
        SpecError: several points of a kernel can.
    """
    all_fitting = []
    for kernel in by_kernel(variants):
        fit = _fitting_of_kernel(kernel, device)
        # Reversed, so that of several models the first of the spec stays.
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
        raise SelectionError(
            f"no variant of {variants[0].name} fits {device}:{_listed(rows)}",
            location=variants[0].location,
            hint=_target_hint(device),
        )
    return fit


def _target_hint(device: Device) -> str | None:
    """Return which target to ask for: the GPU's own model, else an architecture that it runs."""
    from pallasc.runtime.matching.selection import arch_refusal

    model = model_of(device)
    own = f"sm_{device.major}{device.minor}"
    runs = [a for a in DEFAULT_MODELS if arch_refusal(a, device.major, device.minor) is None]
    # The own architecture last, which becomes first.
    runs.sort(key=lambda arch: arch.rstrip("af") == own)
    names = [*reversed(runs)] if model is None else [model.name]
    return f"Compile for it: --target {names[0]}." if names else None


def several(points: Sequence[Variant], how: str) -> SpecError:
    """Return the error for points between which only the user can choose.

    Args:
        points: a variant of each.
        how: what can be done with each: "emulated".
    """
    from pallasc.specs.canonical import plain

    first = dict(points[0].params)
    differing = [
        name for name in first if len({plain(dict(point.params).get(name)) for point in points}) > 1
    ]
    example = " and ".join(f"{name}={plain(first[name])}" for name in differing)
    return SpecError(
        f"{len(points)} variants of {points[0].name} can be {how}:"
        f"{_listed([point.id for point in points])}",
        location=points[0].location,
        hint=f'Choose one, such as -k "{example}", or run all with --all.',
    )


def _listed(rows: Sequence[str]) -> str:
    more = [f"… and {len(rows) - _MOST_LISTED} more"] if len(rows) > _MOST_LISTED else []
    return "".join(f"\n  {row}" for row in [*rows[:_MOST_LISTED], *more])


def collect(request: Request, device: Device, *, every: bool, how: Options) -> list[Chosen]:
    """Return what is launched on a device.

    Raises:
        click.exceptions.Exit: a build failed.
        PallascError: as compiling and choosing do.
    """
    fit = fitting(request.variants, device, every=every)
    return choose(request.compiled(fit, how), device)


def choose(variants: Iterable[tuple[Variant, Artifact]], device: Device) -> list[Chosen]:
    """Return what is launched: of each point the variant that suits the GPU best.

    Raises:
        SelectionError: no variant of a point can run there.
    """
    from pallasc.runtime.calls.launch import Route
    from pallasc.runtime.matching.candidates import Candidate
    from pallasc.runtime.matching.selection import select

    points: dict[object, dict[Candidate, Variant]] = {}
    for variant, artifact in variants:
        candidate = Candidate(variant.name, dict(variant.params), artifact)
        points.setdefault((variant.name, variant.params), {})[candidate] = variant
    chosen = []
    for candidates in points.values():
        best = select(list(candidates), device)
        chosen.append(Chosen(candidates[best], best.artifact, Route([best])))
    return chosen


@contextmanager
def naming(variant: Variant) -> Iterator[None]:
    """Add to an error of the driver or the GPU which variant it is about."""
    try:
        yield
    except DeviceError as error:
        if not error.names_variant:
            error.message = f"{variant.id}: {error.message}"
            error.names_variant = True
        raise
