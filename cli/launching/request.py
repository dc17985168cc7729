"""What a command launches: variants, bundles, keys, and the arrays they take."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import click

from pallasc.cli.arguments.selection import is_key, whole_key
from pallasc.cli.output.text import refusing
from pallasc.errors import ArgumentError, Location, NotCachedError, SpecError

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.cli.arguments.options import SpecSelection
    from pallasc.runtime.adapters.device_arrays import DeviceArray
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


def read_request(
    specs: Sequence[str], store_root: Path | None, **selection: Unpack[SpecSelection]
) -> Request:
    """Return the variants of specs, or of bundles, that are to be launched.

    Args:
        specs: files and folders of specs, or bundles.
        store_root: the store; nothing for a bundle.
        selection: which variants to choose.

    Raises:
        PallascError: as reading does.
    """
    from pallasc.cli.arguments.selection import open_store
    from pallasc.compiler.builds.collect import SpecReader

    targets, expression = selection["targets"], selection["expression"]
    if bundles := bundle_files(specs):
        pairs = read_bundled(bundles, targets=targets, expression=expression)
        return Request([variant for variant, _ in pairs], [artifact for _, artifact in pairs], None)
    store = open_store(store_root)
    reader = SpecReader(store=store)
    chosen = reader.select(specs, targets, expression, all_points=selection["all_points"])
    return Request(list(chosen.variants), [], store)


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


def bundle_files(specs: Sequence[str]) -> list[Path]:
    """Return the paths of a command as bundles; none where they are specs.

    Raises:
        SpecError: only some of them are bundles.
    """
    from pallasc.specs.bundle.source import is_bundle

    bundles = [Path(spec) for spec in specs if is_bundle(Path(spec))]
    if bundles and len(bundles) < len(specs):
        other = next(spec for spec in specs if not is_bundle(Path(spec)))
        for path in (*bundles, Path(other)):
            if not path.exists():
                raise SpecError(f"{path}: there is no such file.")
        raise SpecError(
            f"{bundles[0]} is a bundle and {other} is not: one command takes either bundles or "
            "specs.",
            hint="Use a command for each.",
        )
    return bundles


def read_bundled(
    files: Sequence[Path], *, targets: Sequence[str], expression: str | None
) -> list[tuple[Variant, Artifact]]:
    """Return the chosen variants of bundles, and what was compiled.

    The bundles stay open: what is launched is read when it is loaded.

    Raises:
        SpecError: a file cannot be read, or nothing in it is chosen.
        CorruptError: one is damaged, or not signed as this machine demands.
        ToolError: a signature is demanded, and the cryptography package is missing.
    """
    from pallasc.cli.bundle.options import selected_entries
    from pallasc.specs.bundle.bundle import open_bundle
    from pallasc.specs.bundle.trust import read_policy
    from pallasc.specs.gpus import target_of_record

    policy = read_policy()
    pairs = []
    for file in files:
        bundle = open_bundle(file)
        policy.check(bundle)
        for entry in selected_entries(bundle, targets=targets, expression=expression):
            artifact = bundle.artifact(entry)
            target = target_of_record(artifact.target)
            variant = carried_variant(entry.name, entry.params, target, Location(str(file)))
            pairs.append((variant, artifact))
    return pairs


def carried_variant(
    name: str, params: Iterable[tuple[str, Any]], target: Target, place: Location
) -> Variant:
    """Return what a bundle or a store knows of a variant; it has neither function nor reference."""
    from pallasc.specs.spec import Budget, Variant

    return Variant(
        name=name,
        params=tuple(params),
        target=target,
        entry="",
        args={},
        static={},
        reference=None,
        tolerance=None,
        budget=Budget(),
        files=(),
        location=place,
        base_dir="",
    )


class Compiled(NamedTuple):
    """Something that is compiled already.

    Attributes:
        variant: what is known of it; it has neither function nor reference.
        artifact: the artifact.
        action_key: its action key, None in a bundle.
    """

    variant: Variant
    artifact: Artifact
    action_key: str | None = None


def read_compiled(
    specs: Sequence[str], store: Store, **selection: Unpack[SpecSelection]
) -> list[Compiled] | None:
    """Return what is compiled already, None where the arguments of a command are specs.

    Args:
        specs: bundles, or action keys and digests of artifacts, whose first digits are enough.
        store: the store that has the artifacts.
        selection: which variants to choose in bundles.

    Raises:
        SpecError: only some of the paths are bundles or keys, a bundle cannot be read, or a key has
            too few digits.
        NotCachedError: the store has nothing under a key.
        click.UsageError: keys come with options that choose variants.
    """
    targets, expression = selection["targets"], selection["expression"]
    if bundles := bundle_files(specs):
        pairs = read_bundled(bundles, targets=targets, expression=expression)
        return [Compiled(variant, artifact) for variant, artifact in pairs]
    if not any(map(is_key, specs)):
        return None
    given = {"-k": expression, "--target": targets}
    if name := next((name for name, value in given.items() if value), None):
        raise click.UsageError(
            f"{name} chooses variants of specs and bundles, and an action key is one variant "
            f"already: leave {name} out."
        )
    return [_stored(spec, store) for spec in specs]


def _stored(text: str, store: Store) -> Compiled:
    from pallasc.cache.inventory import artifacts
    from pallasc.compiler.inputs.lookup import artifact_of_action
    from pallasc.specs.gpus import target_of_record

    if not is_key(text):
        raise SpecError(
            f"{text} is not an action key, and another argument is.",
            hint="Give specs and keys one at a time.",
        )
    key = whole_key(text, store)
    artifact = artifact_of_action(store, key)
    if artifact is None:
        raise NotCachedError(
            f"the store has no artifact {key}.",
            hint="pallasc inspect SPECS --json prints the action keys of variants.",
        )
    listed = artifacts(store, key_prefix=key)
    about = next((about for each in listed for about in each.variants if about.name), None)
    name, params = (about.name, tuple(about.params.items())) if about else (key, ())
    target = target_of_record(artifact.target)
    variant = carried_variant(name, params, target, Location(key))
    return Compiled(variant, artifact, key)


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
    """
    from pallasc.compiler.references.arrays import named_with_devices, read_input

    check_names(files, [array.path for array in signature.inputs], name)
    values = []
    for array, size in zip(signature.inputs, signature.sizes_bytes, strict=False):
        file = files.get(array.path)
        whole = of_devices(array, devices)
        if file is None:
            data = _random(array, size, seed, devices)
        else:
            what = named_with_devices(name, devices)
            data = read_input(file, array.path, array.dtype, whole.shape, what)
            data = _laid_out(data, whole)
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


def _laid_out(data: bytes, binding: Binding) -> bytes:
    """Return the bytes of a row-major array in the layout that a kernel takes.

    Raises:
        ToolError: that needs numpy, which is not installed.
    """
    if binding.layout is None:
        return data
    from pallasc.compiler.references.arrays import bytes_in_layout

    return bytes_in_layout(data, binding.shape, binding.layout)


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
