"""Match a call: inspect and check its arrays, and select a variant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pallasc.errors import ArgumentError, SelectionError
from pallasc.runtime.calls.launch import Match, Route
from pallasc.runtime.calls.padding import Prepared
from pallasc.runtime.device import process_state
from pallasc.runtime.device.devices import current_device, get_device, is_driver_open
from pallasc.runtime.matching import mismatches
from pallasc.runtime.matching.arrays import Adapter, ArrayView, Passed, check_copied, find_adapter
from pallasc.runtime.matching.candidates import ArrayType, Candidate, array_type
from pallasc.runtime.matching.padded import Padding
from pallasc.runtime.matching.selection import may_run, select
from pallasc.runtime.matching.variants import Variants
from pallasc.specs.arrays import array_text, strides_of
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.artifacts.signature import MISSING, Signature, flatten


class RoutedVariants(Variants):
    """The variants of a kernel, with a route for each set of arrays."""

    def __init__(self, name: str, candidates: Iterable[Candidate], **options: Any) -> None:
        super().__init__(name, candidates, **options)
        self._routes: dict[object, Route] = {}
        self._routes_of_types: dict[tuple[int, tuple[ArrayType, ...]], Route] = {}
        self._prepared: dict[tuple[Route, tuple[ArrayType, ...]], Prepared] = {}

    def route(
        self,
        ordinal: int | None,
        arrays: Sequence[ArrayType],
        addresses: Sequence[int] | None = None,
    ) -> Route:
        """Return the route for arrays of these types, at these addresses, on a device.

        If `ordinal` is None, the current device is used.

        Raises:
            ArgumentError: no variant takes such arrays on any GPU; checked without a driver.
            SelectionError: no variant fits, or several do.
            DeviceError: the driver cannot be used.
        """
        types = tuple(arrays)
        if ordinal is not None and (ordinal, types) in self._routes_of_types:
            return self._routes_of_types[ordinal, types]
        self.check_types(types)
        if len(self.variants) == 1:
            addresses = None  # binding them gives a clearer message
        device = get_device(current_device() if ordinal is None else ordinal)
        if self.is_tuned:
            candidate = self.selector.select(device, types, addresses)
        else:
            likely = self.types.get(types)
            candidate = select(self.variants, device, types, addresses=addresses, likely=likely)
        route = self._route_of(candidate)
        route.choose(candidate, device)
        # Cached only if types alone decide: otherwise addresses may choose another route next time.
        if route.is_only:
            self._routes_of_types[device.ordinal, types] = route
        return route

    def _route_of(self, candidate: Candidate) -> Route:
        """Return a variant's route, shared by all variants with the same inputs and outputs."""
        route = self._routes.get(candidate.kind)
        if route is None:
            with process_state.now.lock:
                alike, is_only = self._alike(candidate)
                selector = self.selector.among(alike) if self.is_tuned else None
                made = Route(alike, is_only=is_only, selector=selector)
                route = self._routes.setdefault(candidate.kind, made)
        return route

    def _alike(self, candidate: Candidate) -> tuple[list[Candidate], bool]:
        """Return the variants of a route, and True if no others take its arrays on GPUs here."""
        # Skip variants that the table never picks here, so that their artifacts are not read.
        taken = self.selector.taken_here(candidate, candidate.arrays) if self.is_tuned else None
        if taken is None:
            rivals = self.types[candidate.arrays]
            taken = [own for own in rivals if own is candidate or may_run(own)]
        # Comparing outputs first rules out most others without reading their artifacts.
        alike = [
            own for own in taken if own.types == candidate.types and own.kind == candidate.kind
        ]
        return alike, len(alike) == len(taken)

    def prepared(self, route: Route, types: tuple[ArrayType, ...], padding: Padding) -> Prepared:
        """Return how launches on a route are padded for arrays of these types.

        Raises:
            ArgumentError: an array that is updated in place would have to be padded.
        """
        key = route, types
        if key not in self._prepared:
            self._prepared[key] = Prepared(self.name, route.signature, padding)
        return self._prepared[key]


# Not frozen: creating a frozen object takes three times as long, in each slow call.
@dataclass(slots=True)
class Call:
    """A call as the caller wrote it.

    Attributes:
        variants: the kernel's variants.
        arrays: the inputs, in order.
        out: arrays for the results, or MISSING.
        stream: the stream as given.
        allocates: allocate the results, and ignore `out`.
    """

    variants: RoutedVariants
    arrays: Sequence[Any]
    out: Any
    stream: Any
    allocates: bool

    def adapters(self) -> list[Adapter]:
        """Return the adapter of each input.

        Raises:
            ArgumentError: an input is not an array.
        """
        name, inputs = self.variants.name, self.variants.signature.inputs
        return [
            find_adapter(array, name, binding.path)
            for array, binding in zip(self.arrays, inputs, strict=True)
        ]

    def match(self, adapters: Sequence[Adapter]) -> Match:
        """Inspect all arrays, and select the variants that take them.

        Args:
            adapters: the adapter of each input.

        Raises:
            ArgumentError, SelectionError, DeviceError: as for a call of the kernel.
        """
        name, signature = self.variants.name, self.variants.signature
        inputs = [
            self._pass(array, adapter, binding.path)
            for array, adapter, binding in zip(self.arrays, adapters, signature.inputs, strict=True)
        ]
        ordinal = self._device(inputs)
        if ordinal is None:
            check_copied(name, signature.inputs, inputs)
        types = tuple(self._types(inputs))
        padding = self.variants.padding(ordinal, types)
        if padding is not None:
            route = self.variants.route(ordinal, padding.types)
        elif ordinal is None:
            if not is_driver_open():
                self._check_without_driver(inputs, types)
            route = self.variants.route(None, types)  # copies have no fixed address
        else:
            route = self.variants.route(ordinal, types, [array.view.pointer for array in inputs])
        _check_inputs(name, route.signature, inputs)
        prepared = None if padding is None else self.variants.prepared(route, types, padding)
        taken = route.signature if prepared is None else prepared.signature
        results = None if self.allocates else self._results(taken, ordinal)
        out = MISSING if self.allocates else self.out
        return Match(route, inputs, results, ordinal, out, self.stream, prepared)

    def _pass(self, array: Any, adapter: Adapter, path: str) -> Passed:
        view = adapter.view_in_order if self.stream is None else adapter.view
        try:
            return Passed(array, adapter, view(array))
        except ArgumentError as error:
            what = f"{self.variants.name}: {path}"
            raise ArgumentError(f"{what}: {error.message}", hint=error.hint) from error

    def _device(self, inputs: Sequence[Passed]) -> int | None:
        """Return the GPU of the inputs, or else of `out`; None if they are on the host."""
        signature, name = self.variants.signature, self.variants.name
        if inputs:
            return _common_device(name, signature, inputs)
        if self.allocates or self.out is MISSING:
            return current_device()
        leaves = flatten(signature.output_tree, self.out, f"{name}: out")
        views = [
            self._pass(array, find_adapter(array, name, "out"), "out").view for _, array in leaves
        ]
        return views[0].device if views else current_device()

    def _types(self, inputs: Sequence[Passed]) -> list[ArrayType]:
        """Return the types of the inputs.

        Raises:
            ArgumentError: all variants take the same layout, and an array has another.
        """
        self._check_layouts(inputs)
        views = [array.view for array in inputs]
        return [
            (view.dtype, view.shape)
            if view.strides is None
            else array_type(view.dtype, view.shape, view.layout)
            for view in views
        ]

    def _check_layouts(self, inputs: Sequence[Passed]) -> None:
        """Check strides if all variants take the same arrays, while views still have them.

        Raises:
            ArgumentError: an array's strides are not those that the kernel takes.
        """
        if len(self.variants.types) > 1:
            return
        for binding, array in zip(self.variants.signature.inputs, inputs, strict=True):
            view = array.view
            same = (view.dtype, view.shape) == (binding.dtype, binding.shape)
            if same and binding.layout is not None and view.layout != binding.layout:
                strides = view.strides or strides_of(view.shape)
                raise mismatches.wrong_layout(self.variants.name, binding, strides)

    def _check_without_driver(self, inputs: Sequence[Passed], types: Sequence[ArrayType]) -> None:
        """Check everything possible without a driver, so that wrong arrays are reported first.

        Raises:
            ArgumentError: an array is wrong.
        """
        self.variants.check_types(types)
        try:
            signature = self.variants.signature_for(types)
        except SelectionError:  # the results depend on the GPU
            return
        _check_inputs(self.variants.name, signature, inputs)
        if not self.allocates:
            self._results(signature, None)

    def _results(self, signature: Signature, ordinal: int | None) -> list[Passed]:
        """Check `out` and return its arrays, one for each result."""
        name = self.variants.name
        if self.out is MISSING:
            if signature.results:
                texts = [
                    f"{result.path}: {array_text(result.dtype, result.shape)}"
                    for result in signature.results
                ]
                raise ArgumentError(
                    f"{name}.into was not given out.",
                    hint=f"Pass {', '.join(texts)}, or call {name}(...) itself.",
                )
            return []
        leaves = dict(flatten(signature.output_tree, self.out, f"{name}: out"))
        results: dict[int, Passed] = {}
        for leaf, (source, number) in enumerate(signature.sources):
            array, binding = leaves[leaf], signature.outputs[leaf]
            if source == "input":
                if array is not self.arrays[number] and array is not None:
                    raise ArgumentError(
                        f"{name}: {binding.path} is {signature.inputs[number].path}, updated in "
                        "place; out must have that array there.",
                    )
                continue
            passed = self._pass(array, find_adapter(array, name, binding.path), binding.path)
            _check_result(name, binding, passed.view, ordinal)
            if results.setdefault(number, passed).array is not array:
                first = signature.results[number].path
                raise ArgumentError(
                    f"{name}: {binding.path} is the same array as {first}; out must have one array "
                    "in both places.",
                )
        return [results[number] for number in sorted(results)]


def _common_device(name: str, signature: Signature, inputs: Sequence[Passed]) -> int | None:
    """Return the GPU that all inputs are on, None if all are on the host.

    Raises:
        ArgumentError: they are on different devices.
    """
    if len({array.view.device for array in inputs}) == 1:
        return inputs[0].view.device
    devices: dict[int | None, str] = {}
    for binding, array in zip(signature.inputs, inputs, strict=True):
        devices.setdefault(array.view.device, binding.path)
    (place, first), (other, second) = list(devices.items())[:2]
    where, elsewhere = mismatches.place(place), mismatches.place(other)
    raise ArgumentError(
        f"{name}: {first} is on {where}, but {second} is on {elsewhere}.", hint="Move one of them."
    )


def _check_inputs(name: str, signature: Signature, inputs: Sequence[Passed]) -> None:
    """Check that inputs have no gaps, and are writable if the kernel updates them.

    Raises:
        ArgumentError: an array has gaps, or is read-only.
    """
    for number, (binding, array) in enumerate(zip(signature.inputs, inputs, strict=True)):
        view = array.view
        if not view.is_contiguous and (view.layout is None or view.layout != binding.layout):
            raise mismatches.not_contiguous(name, binding)
        if number in signature.updated and not view.is_writable:
            raise mismatches.read_only(name, binding)


def _check_result(name: str, binding: Binding, view: ArrayView, ordinal: int | None) -> None:
    """Check an array that a result is written into.

    Raises:
        ArgumentError: it is wrong.
    """
    if (view.dtype, view.shape) != (binding.dtype, binding.shape):
        raise ArgumentError(
            f"{name}: {binding.path} is {array_text(view.dtype, view.shape)}, and the kernel "
            f"writes {array_text(binding.dtype, binding.shape)}."
        )
    if view.device != ordinal:
        raise ArgumentError(
            f"{name}: {binding.path} is on {mismatches.place(view.device)}, but the inputs are on "
            f"{mismatches.place(ordinal)}.",
            hint="Allocate it where they are.",
        )
    if not view.is_contiguous:
        raise mismatches.not_contiguous(name, binding)
    if not view.is_writable:
        raise mismatches.read_only(name, binding)
