"""The interface between the runtime and array frameworks, and detection of an array's framework.

The module of an array's type determines the adapter, so that no other adapter is imported. If the
module is not in `MODULES`, `__cuda_array_interface__` is tried, then DLPack.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from pallasc.errors import ArgumentError
from pallasc.runtime.device.devices import current_device
from pallasc.specs.arrays import DTYPES, layout_of
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.spelling import an

if TYPE_CHECKING:
    from pallasc.runtime.device.streams import Uses


# ---- DLPack's codes of element types (`DLDataTypeCode` in `dlpack.h`, version 1.1)

# Code -> letters of the short name; floats of eight bits or fewer each have their own code.
_CODES = {0: "i", 1: "u", 2: "f", 4: "bf", 5: "c"}
_BOOL = 6
_SMALL_FLOATS = {
    7: "f8e3m4", 8: "f8e4m3", 9: "f8e4m3b11fnuz", 10: "f8e4m3fn", 11: "f8e4m3fnuz", 12: "f8e5m2",
    13: "f8e5m2fnuz", 14: "f8e8m0fnu", 15: "f6e2m3fn", 16: "f6e3m2fn", 17: "f4e2m1fn",
}  # fmt: skip


def short_dtype(code: int, bits: int, lanes: int) -> str:
    """Return the short name of a type; a description of it if there is none."""
    if code == _BOOL and bits == 8 and lanes == 1:
        return "bool"
    if lanes == 1 and code in _CODES:
        return sys.intern(f"{_CODES[code]}{bits}")
    if lanes == 1 and code in _SMALL_FLOATS:
        return _SMALL_FLOATS[code]
    return f"DLPack type {code} of {bits} bits in {lanes} lanes"


def dlpack_code(dtype: str) -> int | None:
    """Return the code of a type by its short name, None if DLPack has none."""
    if dtype == "bool":
        return _BOOL
    for codes in (_SMALL_FLOATS, _CODES):
        for code, name in codes.items():
            if dtype == name or (codes is _CODES and dtype.rstrip("0123456789") == name):
                return code
    return None


# ---- adapters


FOREIGN_ERRORS = (
    *(ArithmeticError, AttributeError, BufferError, LookupError, NotImplementedError),
    *(RuntimeError, TypeError, ValueError),
)
"""Exceptions that attributes and methods of an array-like object may raise."""


class ArrayView(NamedTuple):
    """An array as the runtime sees it.

    Attributes:
        pointer: the address of its first element; 0 for a JAX array.
        dtype: short name, `bf16`; the framework's own name if it has no short name.
        shape: sizes of its dimensions.
        is_contiguous: row-major without gaps.
        device: ordinal of its GPU, None for the host.
        is_writable: True if kernels may write to it.
        stream: the stream that its producer used last, None if there is nothing to wait for.
        strides: in elements; None if it is row-major, or if they are unknown.
        uses: its earlier uses: launches wait for them, and are added to them; None if not tracked.
    """

    pointer: int
    dtype: str
    shape: tuple[int, ...]
    is_contiguous: bool
    device: int | None
    is_writable: bool = True
    stream: int | None = None
    strides: tuple[int, ...] | None = None
    uses: Uses | None = None

    @property
    def layout(self) -> tuple[int, ...] | None:
        """Its layout; None if it is row-major, or has gaps."""
        return None if self.strides is None else layout_of(self.shape, self.strides)


NewArray = tuple[tuple[int, ...], tuple[int, ...], Any]
"""Shape, strides, and the framework's own dtype."""

NewIn = Callable[[int, int, Sequence[NewArray]], Sequence[Any]]
"""(stream, ordinal, arrays to create) -> the arrays."""


class Access(Struct, frozen=True):
    """Functions with which the C extension inspects and allocates arrays of a framework.

    Attributes:
        kinds: the types of its arrays.
        describe: returns the `ArrayView` of an array for a call in a stream that the caller gives;
            used if there is no `capsule`.
        describe_in_order: the same for calls without a stream, see `Adapter.view_in_order`.
        dtypes: its dtypes by short name.
        new_here: a function that allocates on the current GPU, given shape, strides and dtype.
        new_in: a function that returns new arrays for a stream other than the current stream; if
            None, calls that allocate in such a stream go through Python.
        capsule: the `__dlpack_c_exchange_api__` of these types; None if they have none.
        mark_written: a function that marks the arrays in a tuple as written in the framework; None
            if it does not count writes.
        is_plain: a function that returns whether an array's memory has its actual values: torch
            conjugates complex tensors, and negates their imaginary parts, only when they are read.
            None if `describe` checks it, or if memory always has the actual values.
        stream: a function that returns the current stream of a device; None if the framework has
            none, or if `capsule` or `stream_address` provides it.
        stream_address: the address of a C function for the current stream of a device,
            `int (int32_t device, void **stream)`; 0 to use the function of `capsule`.
    """

    kinds: tuple[type, ...]
    describe: Callable[[Any], ArrayView]
    describe_in_order: Callable[[Any], ArrayView]
    dtypes: Mapping[str, object]
    new_here: Callable[..., Any]
    new_in: NewIn | None = None
    capsule: Any = None
    mark_written: Callable[[tuple[Any, ...]], object] | None = None
    is_plain: Callable[[Any], bool] | None = None
    stream: Callable[[int], int] | None = None
    stream_address: int = 0


class Adapter:
    """Base class of adapters; docs/frameworks.md explains how to write one.

    Attributes:
        name: name of the framework's arrays in messages.
        has_pool: True if the framework allocates in stream order and has a current stream; kernels
            launch in that stream and take their temporaries from the framework.
        is_copied: True if arrays are on the host; they are copied to the GPU, and results back.
        takes_calls: True if `run` handles any call that has one of the framework's arrays.
    """

    name: str
    has_pool: bool = False
    is_copied: bool = False
    takes_calls: bool = False

    def view(self, array: Any) -> ArrayView:
        """Return a view of an array for the runtime.

        Raises:
            ArgumentError: kernels cannot take the array.
        """
        raise NotImplementedError

    def view_in_order(self, array: Any) -> ArrayView:
        """Like `view`, but for calls without a stream: includes the array's producer stream."""
        return self.view(array)

    def stream(self, device: int) -> int:
        """Return the handle of the framework's current stream on a device."""
        return 0

    def empty(self, shape: tuple[int, ...], dtype: str, device: int, stream: int | None) -> Any:
        """Return a new array for use in a stream; if None, in the current stream."""
        raise NotImplementedError

    def mark_written(self, arrays: tuple[Any, ...]) -> object:
        """Mark these arrays as written by a launch, if the framework counts writes."""

    def access(self, kind: type) -> Access:
        """Return how the C extension handles arrays of a type. Does not open the driver."""
        counts_writes = type(self).mark_written is not Adapter.mark_written
        return Access(
            kinds=(kind,),
            describe=self.view,
            describe_in_order=self.view_in_order,
            dtypes={name: name for name in DTYPES},
            new_here=self._new_here,
            new_in=self._new_in,
            mark_written=self.mark_written if counts_writes else None,
            stream=self.stream if self.has_pool else None,
        )

    def _new_here(self, shape: tuple[int, ...], _strides: tuple[int, ...], dtype: str) -> Any:
        return self.empty(shape, dtype, current_device(), None)

    def _new_in(self, stream: int, device: int, arrays: Sequence[NewArray]) -> list[Any]:
        return [self.empty(shape, dtype, device, stream) for shape, _, dtype in arrays]

    def run(self, call: Any) -> Any:
        """Handle a whole call (`calls.match.Call`), and return its results."""
        raise NotImplementedError


class Passed(NamedTuple):
    """An array in a call, with its framework's adapter and its view."""

    array: Any
    adapter: Adapter
    view: ArrayView


def check_copied(name: str, bindings: Sequence[Binding], arrays: Sequence[Passed]) -> None:
    """Check that arrays on the host belong to a framework whose arrays are copied.

    Raises:
        ArgumentError: an array belongs to another framework.
    """
    for binding, array in zip(bindings, arrays, strict=True):
        if not array.adapter.is_copied:
            raise ArgumentError(
                f"{name}: {binding.path} is {array.adapter.name} on the host.",
                hint="Move it to a GPU; only arrays of numpy are copied there and back.",
            )


def no_array(value: Any) -> ArgumentError:
    """Return the error for an object of a framework that is not one of its arrays."""
    return ArgumentError(f"{an(type(value).__name__)} is not an array.")


MODULES = {
    "torch": "torch_arrays.TorchAdapter",
    "jax": "jax_arrays.JaxAdapter",
    "jaxlib": "jax_arrays.JaxAdapter",
    "numpy": "numpy_arrays.NumpyAdapter",
    "cupy": "numpy_arrays.CupyAdapter",
    "pallasc": "device_arrays.DeviceArrayAdapter",
}
"""The adapter of each framework, by the top-level module of its arrays' types."""

_PROTOCOLS = {
    "__cuda_array_interface__": "device_arrays.CudaArrayAdapter",
    "__dlpack__": "device_arrays.DlpackAdapter",
}
_by_type: dict[type, Adapter] = {}


def find_adapter(value: Any, *what: str) -> Adapter:
    """Return the adapter for an array.

    Args:
        value: the array.
        what: its name in messages, in parts: the kernel, and the position in its arguments.

    Raises:
        ArgumentError: `value` is not an array that the runtime can use.
    """
    kind = type(value)
    adapter = _by_type.get(kind)
    if adapter is None:
        adapter = _by_type[kind] = _recognise(value, ": ".join(what))
    return adapter


def _recognise(value: Any, what: str) -> Adapter:
    for kind in type(value).__mro__:
        path = MODULES.get(kind.__module__.partition(".")[0])
        if path is not None:
            return _adapter(path)
    for protocol, path in _PROTOCOLS.items():
        if hasattr(type(value), protocol):
            return _adapter(path)
    article = "None" if value is None else an(type(value).__name__)
    raise ArgumentError(
        f"{what} must be an array, not {article}.",
        hint="Supported: torch, cupy, numpy, JAX, and any object with DLPack.",
    )


@cache
def _adapter(path: str) -> Adapter:
    module, _, name = path.partition(".")
    adapter: Adapter = getattr(import_module(f"pallasc.runtime.adapters.{module}"), name)()
    return adapter


def is_row_major(shape: tuple[int, ...], strides: tuple[int, ...] | None, unit: int) -> bool:
    """Return True if strides in steps of `unit` describe a row-major array without gaps."""
    if strides is None or 0 in shape:
        return True
    expected = unit
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
