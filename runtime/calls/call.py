"""One call on the slow path: look at every array, choose the variant, launch.

The stream is the one that is given; else that of the first array whose framework has a current
stream or which names its own, results among them; else the default one. Where others of the arrays
are of another stream, the launch and that stream wait for each other (`order`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pallasc.errors import ArgumentError, PallascError, SelectionError
from pallasc.runtime.calls.host import run_on_host
from pallasc.runtime.calls.launchable import Launchable
from pallasc.runtime.calls.order import Order, mark_written
from pallasc.runtime.calls.routes import Route
from pallasc.runtime.device.devices import current_device, get_device
from pallasc.runtime.device.driver import is_driver_open
from pallasc.runtime.device.streams import DEFAULT_STREAMS, stream_handle
from pallasc.runtime.matching.arguments import MISSING
from pallasc.runtime.matching.arrays import find_adapter
from pallasc.runtime.matching.candidates import array_type
from pallasc.runtime.matching.checks import (
    Passed,
    check_copied,
    check_inputs,
    check_result,
    common_device,
    listed,
    wrong_layout,
)
from pallasc.runtime.matching.signature import Signature
from pallasc.runtime.matching.trees import flatten, unflatten
from pallasc.specs.arrays import strides_of


@dataclass(frozen=True, slots=True)
class Call:
    """What a caller asks for.

    Attributes:
        kernel: what is called.
        arrays: the inputs, in order.
        out: arrays for the results, or MISSING.
        stream: as it was given.
        allocates: the results are to be allocated, and `out` does not count.
    """

    kernel: Launchable
    arrays: Sequence[Any]
    out: Any
    stream: Any
    allocates: bool

    def run(self) -> Any:
        """Launch; return the results in the structure of the compiled function.

        Raises:
            ArgumentError, SelectionError, DeviceError: as a call of the kernel does.
        """
        name, signature = self.kernel.name, self.kernel.signature
        whats = [f"{name}: {one.path}" for one in signature.inputs]
        adapters = [
            find_adapter(array, what) for array, what in zip(self.arrays, whats, strict=True)
        ]
        for adapter in adapters:
            if adapter.takes_calls:
                return adapter.run(self)
        inputs = [self._pass(array, what) for array, what in zip(self.arrays, whats, strict=True)]
        ordinal = self._device(inputs)
        if ordinal is None and not is_driver_open():
            self._check_early(inputs)
        route = self._route(inputs, ordinal)
        check_inputs(name, route.signature, inputs)
        given = None if self.allocates else self._given(route.signature, ordinal)
        if ordinal is None:
            return self._on_host(route, inputs, given)
        return self._on_device(route, inputs, given, ordinal)

    def _pass(self, array: Any, what: str) -> Passed:
        adapter = find_adapter(array, what)
        view = adapter.view_in_order if self.stream is None else adapter.view
        try:
            return Passed(array, adapter, view(array))
        except ArgumentError as error:
            raise ArgumentError(f"{what}: {error.message}", hint=error.hint) from error

    def _device(self, inputs: Sequence[Passed]) -> int | None:
        """Return the GPU of the inputs, or else of `out`; None where they are on the host."""
        signature, name = self.kernel.signature, self.kernel.name
        if inputs:
            return common_device(name, signature, inputs)
        if self.allocates or self.out is MISSING:
            return current_device()
        leaves = flatten(signature.output_tree, self.out, f"{name}: out")
        views = [self._pass(array, f"{name}: out").view for _, array in leaves]
        return views[0].device if views else current_device()

    def _route(self, inputs: Sequence[Passed], ordinal: int | None) -> Route:
        views = [one.view for one in inputs]
        self._check_layouts(inputs)
        types = [array_type(view.dtype, view.shape, view.layout) for view in views]
        if ordinal is None:  # what is copied gets to where it may lie
            check_copied(self.kernel.name, self.kernel.signature.inputs, inputs)
            return self.kernel.route(None, types)
        return self.kernel.route(ordinal, types, [view.pointer for view in views])

    def _check_early(self, inputs: Sequence[Passed]) -> None:
        """Check what can be without a driver: there may be none, and wrong arrays are said first.

        Raises:
            ArgumentError: an array does not fit.
        """
        check_copied(self.kernel.name, self.kernel.signature.inputs, inputs)
        self._check_layouts(inputs)
        types = [array_type(one.view.dtype, one.view.shape, one.view.layout) for one in inputs]
        self.kernel.check_types(types)
        try:
            signature = self.kernel.signature_for(types)
        except SelectionError:  # what it gives depends on the GPU
            return
        check_inputs(self.kernel.name, signature, inputs)
        if not self.allocates:
            self._given(signature, None)

    def _check_layouts(self, inputs: Sequence[Passed]) -> None:
        """Check strides where all variants take the same arrays, and know the strides by now.

        Raises:
            ArgumentError: one has others than the kernel takes.
        """
        if len({one.arrays for one in self.kernel.variants}) > 1:
            return
        for binding, one in zip(self.kernel.signature.inputs, inputs, strict=True):
            view = one.view
            same = (view.dtype, view.shape) == (binding.dtype, binding.shape)
            if same and binding.layout is not None and view.layout != binding.layout:
                strides = view.strides or strides_of(view.shape)
                raise wrong_layout(self.kernel.name, binding, strides)

    def _on_host(
        self, route: Route, inputs: Sequence[Passed], given: Sequence[Passed] | None
    ) -> Any:
        results = self._allocated(route, inputs, current_device(), None) if given is None else given
        check_copied(self.kernel.name, route.signature.results, results)
        stream = None if self.stream is None else stream_handle(self.stream)
        run_on_host(route, self.arrays, [one.array for one in results], stream)
        return self._returned(route, results)

    def _on_device(
        self, route: Route, inputs: Sequence[Passed], given: Sequence[Passed] | None, ordinal: int
    ) -> Any:
        stream = self._stream([*inputs, *(given or [])], ordinal)
        route.program(ordinal, stream)  # so that what cannot run is refused before anything else
        results = self._allocated(route, inputs, ordinal, stream) if given is None else given
        passed = [*inputs, *results]
        written = {*route.signature.updated, *range(len(inputs), len(passed))}
        is_given = self.stream is not None
        device = get_device(ordinal)
        order = Order(self.kernel.name, device, stream, passed, written, is_given=is_given)
        order.before()
        pointers = [one.view.pointer for one in passed]
        workspace = self._workspace(inputs, route.workspace_bytes, ordinal, stream)
        address = None if workspace is None else workspace.view.pointer
        try:
            route.enqueue(stream, ordinal, pointers, address)
        except PallascError:
            with suppress(PallascError):  # of several steps some may be in the stream
                order.after()
            mark_written(passed, written)
            raise
        order.after()
        mark_written(passed, written)
        self.kernel.install(inputs[0].adapter if inputs else None, route)
        return self._returned(route, results)

    def _stream(self, passed: Sequence[Passed], ordinal: int) -> int:
        if self.stream is not None:
            return stream_handle(self.stream)
        for one in passed:
            if (one.view.stream or 0) >= DEFAULT_STREAMS:
                return one.view.stream or 0
            if one.adapter.has_pool:
                return one.adapter.stream(ordinal)
        return 0

    def _workspace(
        self, inputs: Sequence[Passed], size_bytes: int, ordinal: int, stream: int
    ) -> Passed | None:
        """Return memory for temporaries from the framework at hand, None where it has no pool."""
        if size_bytes and inputs and inputs[0].adapter.has_pool:
            adapter = inputs[0].adapter
            made = adapter.empty((size_bytes,), "u8", ordinal, stream)
            return Passed(made, adapter, adapter.view(made))
        return None

    def _allocated(
        self, route: Route, inputs: Sequence[Passed], ordinal: int, stream: int | None
    ) -> list[Passed]:
        """Return new memory for each result, of the framework that the first array is of."""
        results = route.signature.results
        if not inputs and results:
            raise ArgumentError(
                f"{self.kernel.name} takes no arrays, so nothing says which framework its results "
                "are for.",
                hint="Call into(out=...) with arrays of that framework.",
            )
        own = None if self.stream is None else stream
        made = [inputs[0].adapter.empty(one.shape, one.dtype, ordinal, own) for one in results]
        adapters = [find_adapter(array, "a result") for array in made]
        return [
            Passed(array, one, one.view(array)) for array, one in zip(made, adapters, strict=True)
        ]

    def _given(self, signature: Signature, ordinal: int | None) -> list[Passed]:
        """Check `out` and return its arrays, one for each result."""
        name = self.kernel.name
        if self.out is MISSING:
            if signature.results:
                raise ArgumentError(
                    f"{name}.into was not given out.",
                    hint=f"Pass {listed(signature.results)}, or call {name}(...) itself.",
                )
            return []
        leaves = dict(flatten(signature.output_tree, self.out, f"{name}: out"))
        found: dict[int, Passed] = {}
        for leaf, (source, number) in enumerate(signature.sources):
            array, binding = leaves[leaf], signature.outputs[leaf]
            if source == "input":
                if array is not self.arrays[number] and array is not None:
                    raise ArgumentError(
                        f"{name}: {binding.path} is {signature.inputs[number].path}, updated in "
                        "place; out must have that array there.",
                    )
                continue
            one = self._pass(array, f"{name}: {binding.path}")
            check_result(name, binding, one.view, ordinal)
            if found.setdefault(number, one).array is not array:
                first = signature.results[number].path
                raise ArgumentError(
                    f"{name}: {binding.path} is the same array as {first}; out must have one array "
                    "in both places.",
                )
        return [found[number] for number in sorted(found)]

    def _returned(self, route: Route, results: Sequence[Passed]) -> Any:
        if not self.allocates and self.out is not MISSING:
            return self.out
        leaves = [
            self.arrays[number] if source == "input" else results[number].array
            for source, number in route.signature.sources
        ]
        return unflatten(route.signature.output_tree, leaves)
