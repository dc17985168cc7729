"""One call on the slow path: look at every array, choose the variant, launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pallasc.errors import ArgumentError
from pallasc.runtime.adapters.arrays import Adapter, ArrayView, find_adapter
from pallasc.runtime.arguments import MISSING
from pallasc.runtime.devices import current_device, get_device
from pallasc.runtime.host import run_on_host
from pallasc.runtime.routes import Route
from pallasc.runtime.selection import array_text
from pallasc.runtime.signature import Signature
from pallasc.runtime.streams import stream_handle, wait_for
from pallasc.runtime.trees import flatten, unflatten
from pallasc.specs.plan import Binding

if TYPE_CHECKING:
    from pallasc.runtime.kernel import Kernel


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

    kernel: Kernel
    arrays: Sequence[Any]
    out: Any
    stream: Any
    allocates: bool

    def run(self) -> Any:
        """Launch; return the results in the structure of the compiled function.

        Raises:
            ArgumentError, SelectionError, DeviceError: as a call of the kernel does.
        """
        paths = [one.path for one in self.kernel.signature.inputs]
        whats = [f"{self.kernel.name}: {path}" for path in paths]
        adapters = [
            find_adapter(array, what) for array, what in zip(self.arrays, whats, strict=True)
        ]
        for adapter in adapters:
            take_over = getattr(adapter, "run", None)
            if take_over is not None:
                return take_over(self)
        views = [
            self._view(adapter, array, what)
            for adapter, array, what in zip(adapters, self.arrays, whats, strict=True)
        ]
        ordinal = self._device(views, paths)
        if ordinal is None:
            _check_copied(self.kernel.name, paths, adapters)
        types = [(view.dtype, view.shape) for view in views]
        route = self.kernel.route(current_device() if ordinal is None else ordinal, types)
        _check_inputs(self.kernel.name, route.signature, views)
        if ordinal is None:
            return self._on_host(route, adapters)
        return self._on_device(route, adapters, views, ordinal)

    def _view(self, adapter: Adapter, array: Any, what: str) -> ArrayView:
        view = adapter.view
        if self.stream is None:
            view = getattr(adapter, "view_in_order", view)
        try:
            return view(array)
        except ArgumentError as error:
            raise ArgumentError(f"{what}: {error.message}", hint=error.hint) from error

    def _device(self, views: Sequence[ArrayView], paths: Sequence[str]) -> int | None:
        """Return the GPU that all arrays lie on, None where all are on the host."""
        devices = {view.device: path for view, path in zip(views, paths, strict=True)}
        if len(devices) > 1:
            (one, first), (other, second) = list(devices.items())[:2]
            raise ArgumentError(
                f"{self.kernel.name}: {first} lies on {_place(one)}, and {second} on "
                f"{_place(other)}.",
                hint="Move one of them.",
            )
        return next(iter(devices), current_device() if not views else None)

    def _on_host(self, route: Route, adapters: Sequence[Adapter]) -> Any:
        results = self._results(route, adapters, current_device(), None)
        run_on_host(route, self.arrays, [array for array, _ in results])
        return self._returned(route, results)

    def _on_device(
        self, route: Route, adapters: Sequence[Adapter], views: Sequence[ArrayView], ordinal: int
    ) -> Any:
        stream = self._stream(adapters, views, ordinal)
        route.program(ordinal, stream)  # so that what cannot run is refused before anything else
        results = self._results(route, adapters, ordinal, stream)
        device = get_device(ordinal)
        for view in (*views, *(view for _, view in results)):
            if view.stream is not None and not _is_same(view.stream, stream):
                wait_for(device, stream, view.stream)
        pointers = [view.pointer for view in (*views, *(view for _, view in results))]
        workspace = self._workspace(adapters, route.workspace_bytes, ordinal, stream)
        address = None if workspace is None else adapters[0].view(workspace).pointer
        route.enqueue(stream, ordinal, pointers, address)
        written = [self.arrays[number] for number in route.signature.updated]
        _note_writes([*written, *(array for array, _ in results)], stream)
        self.kernel.install(adapters[0] if adapters else None, route)
        return self._returned(route, results)

    def _workspace(
        self, adapters: Sequence[Adapter], size_bytes: int, ordinal: int, stream: int
    ) -> Any:
        """Return memory for temporaries from the framework at hand, None where it has no pool."""
        if size_bytes and adapters and getattr(adapters[0], "has_pool", False):
            return adapters[0].empty((size_bytes,), "u8", ordinal, stream)
        return None

    def _stream(self, adapters: Sequence[Adapter], views: Sequence[ArrayView], ordinal: int) -> int:
        if self.stream is not None:
            return stream_handle(self.stream)
        own = next((view.stream for view in views if (view.stream or 0) > 1), None)
        if own is not None:
            return own
        return adapters[0].stream(ordinal) if adapters else 0

    def _results(
        self, route: Route, adapters: Sequence[Adapter], ordinal: int, stream: int | None
    ) -> list[tuple[Any, ArrayView]]:
        """Return the memory of each result with its view: new, or from `out`."""
        if not self.allocates:
            return self._given(route.signature, adapters, ordinal, stream is None)
        if not adapters and route.signature.results:
            raise ArgumentError(
                f"{self.kernel.name} takes no arrays, so nothing says which framework its results "
                "are for.",
                hint="Call into(out=...) with arrays of that framework.",
            )
        own = None if self.stream is None else stream
        arrays = [
            adapters[0].empty(one.shape, one.dtype, ordinal, own) for one in route.signature.results
        ]
        return [(array, find_adapter(array, "a result").view(array)) for array in arrays]

    def _given(
        self, signature: Signature, adapters: Sequence[Adapter], ordinal: int, is_host: bool
    ) -> list[tuple[Any, ArrayView]]:
        """Check `out` and return its arrays with their views."""
        name = self.kernel.name
        if self.out is MISSING:
            if signature.results:
                raise ArgumentError(
                    f"{name}.into was not given out.",
                    hint=f"Pass {_listed(signature.results)}, or call {name}(...) itself.",
                )
            return []
        leaves = dict(flatten(signature.output_tree, self.out, f"{name}: out"))
        found: dict[int, tuple[Any, ArrayView]] = {}
        for leaf, (source, number) in enumerate(signature.sources):
            array = leaves[leaf]
            binding = signature.outputs[leaf]
            if source == "input":
                if array is not self.arrays[number] and array is not None:
                    raise ArgumentError(
                        f"{name}: {binding.path} is {signature.inputs[number].path}, updated in "
                        "place; out must have that array there.",
                    )
                continue
            view = self._view(find_adapter(array, f"{name}: {binding.path}"), array, name)
            _check_result(name, binding, view, None if is_host else ordinal)
            found.setdefault(number, (array, view))
        return [found[number] for number in sorted(found)]

    def _returned(self, route: Route, results: Sequence[tuple[Any, ArrayView]]) -> Any:
        if not self.allocates and self.out is not MISSING:
            return self.out
        leaves = [
            self.arrays[number] if source == "input" else results[number][0]
            for source, number in route.signature.sources
        ]
        return unflatten(route.signature.output_tree, leaves)


def _is_same(stream: int, other: int) -> bool:
    """Tell whether two handles mean one stream: 0 and 1 both are the default one."""
    return (stream or 1) == (other or 1)


def _note_writes(arrays: Sequence[Any], stream: int) -> None:
    """Tell arrays that keep their stream which one writes them."""
    for array in arrays:
        note_write = getattr(find_adapter(array, "a result"), "note_write", None)
        if note_write is not None:
            note_write(array, stream)


def _check_copied(name: str, paths: Sequence[str], adapters: Sequence[Adapter]) -> None:
    """Check that arrays on the host are such that are copied."""
    for path, adapter in zip(paths, adapters, strict=True):
        if not getattr(adapter, "is_copied", False):
            raise ArgumentError(
                f"{name}: {path} is {adapter.name} on the host.",
                hint="Move it to a GPU; only arrays of numpy are copied there and back.",
            )


def _check_inputs(name: str, signature: Signature, views: Sequence[ArrayView]) -> None:
    """Check that inputs have no gaps, and may be written where the kernel updates them.

    Raises:
        ArgumentError: one has, or may not.
    """
    for number, (binding, view) in enumerate(zip(signature.inputs, views, strict=True)):
        if not view.is_contiguous:
            raise _not_contiguous(name, binding)
        if number in signature.updated and not view.is_writable:
            raise _read_only(name, binding)


def _check_result(name: str, binding: Binding, view: ArrayView, ordinal: int | None) -> None:
    """Check an array that results are written into.

    Raises:
        ArgumentError: it does not fit.
    """
    if (view.dtype, view.shape) != (binding.dtype, binding.shape):
        raise ArgumentError(
            f"{name}: {binding.path} is {array_text(view.dtype, view.shape)}, and the kernel "
            f"writes {array_text(binding.dtype, binding.shape)}."
        )
    if view.device != ordinal:
        raise ArgumentError(
            f"{name}: {binding.path} lies on {_place(view.device)}, and the inputs on "
            f"{_place(ordinal)}.",
            hint="Allocate it where they are.",
        )
    if not view.is_contiguous:
        raise _not_contiguous(name, binding)
    if not view.is_writable:
        raise _read_only(name, binding)


def _read_only(name: str, binding: Binding) -> ArgumentError:
    return ArgumentError(f"{name}: {binding.path} may not be written, it is read-only.")


def _not_contiguous(name: str, binding: Binding) -> ArgumentError:
    return ArgumentError(
        f"{name}: {binding.path} is not contiguous: its elements have gaps or another order.",
        hint="Pass a contiguous copy.",
    )


def _place(device: int | None) -> str:
    return "the host" if device is None else f"GPU {device}"


def _listed(bindings: Sequence[Binding]) -> str:
    return ", ".join(f"{one.path}: {array_text(one.dtype, one.shape)}" for one in bindings)
