"""The interface between the runtime and array frameworks, and detection of an array's framework.

An array is recognized by the module of its type, which is already loaded; only the matching adapter
is imported. If the module is not in the table, `__cuda_array_interface__` is tried, then DLPack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from pallasc.errors import ArgumentError
from pallasc.specs.arrays import layout_of
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.spelling import an

if TYPE_CHECKING:
    from pallasc.runtime.device.uses import Uses

FOREIGN_ERRORS = (
    *(ArithmeticError, AttributeError, BufferError, LookupError, NotImplementedError),
    *(RuntimeError, TypeError, ValueError),
)
"""Exceptions that attributes and methods of an array-like object may raise."""


class ArrayView(NamedTuple):
    """An array as the runtime sees it.

    Attributes:
        pointer: the address of its first element; 0 if the array is on the host.
        dtype: short name, `bf16`; the framework's own name if it has no short name.
        shape: sizes of its dimensions.
        is_contiguous: row-major without gaps.
        device: ordinal of its GPU, None for the host.
        is_writable: it may be written.
        stream: the stream that its producer used last, None if there is nothing to wait for.
        strides: in elements, if it is not row-major and they are known.
        uses: uses that launches with the array wait for and are recorded in, None if not tracked.
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


@dataclass(frozen=True, slots=True)
class Dialect:
    """Expressions of generated code that query a framework; `{x}` is an array, `{d}` an ordinal.

    Attributes:
        kind, other_kinds: the usual type of its arrays, and other types that work the same.
        dtypes: its dtypes by short name.
        dtype, shape, device, pointer, stream, current_device: expressions.
        plain: an expression that is true if the memory of `{x}` has its actual values: torch
            conjugates complex arrays lazily, and so negates their imaginary parts, which without
            gaps have one element. Empty if memory always has the actual values.
        layout: an expression that is true if `{x}` has the shape `{shape}` without gaps;
            `{strides}` are the strides of such an array, in elements. Like all expressions on an
            array, it may raise the exceptions in `FOREIGN_ERRORS`, or an `AssertionError`.
        mark_written: an expression that marks the arrays in the tuple `{xs}` as written in the
            framework; empty if the framework does not count writes.
        strided: the same as `layout` for an array that is not row-major, with the strides
            `{strides}`; empty if such arrays have no generated functions.
        uses: an expression for the `Uses` of an array; empty if a framework has a current stream
            that orders its work.
        new: an expression for a new array of the current stream, with the shape `{shape}`, the
            row-major strides `{strides}` and the dtype `{dtype}`, on the GPU of `{x}`.
        new_in: a function that returns new arrays of a stream other than the current one. It takes
            the stream's handle, the ordinal, and shape, strides and dtype of each array. None if
            such calls have no generated functions.
        values: the values that the expressions use.
    """

    kind: type
    other_kinds: frozenset[type]
    dtypes: Mapping[str, object]
    dtype: str
    shape: str
    layout: str
    device: str
    pointer: str
    stream: str
    current_device: str
    new: str
    values: Mapping[str, object]
    new_in: NewIn | None = None
    plain: str = ""
    mark_written: str = ""
    strided: str = ""
    uses: str = ""


@dataclass(frozen=True, slots=True)
class Exchange:
    """Access of the C extension to a framework whose arrays have DLPack's C exchange API.

    Attributes:
        kinds: the types of its arrays.
        capsule: the `__dlpack_c_exchange_api__` of these types.
        dtypes: its dtypes by short name.
        new_here: a function that allocates on the current GPU, given shape, strides and dtype.
        new_in: as in `Dialect`; None if calls that allocate in a stream go through Python.
        mark_written: a function that marks the arrays in a tuple as written in the framework; None
            if it does not count writes.
        is_plain: returns whether an array's memory has its actual values, see `Dialect`; None if
            all arrays do.
        stream_address: the address of a C function for the current stream of a device,
            `int (int32_t device, void **stream)`; 0 to use the function of the API.
    """

    kinds: tuple[type, ...]
    capsule: Any
    dtypes: Mapping[str, object]
    new_here: Callable[..., Any]
    new_in: NewIn | None = None
    mark_written: Callable[[tuple[Any, ...]], object] | None = None
    is_plain: Callable[[Any], bool] | None = None
    stream_address: int = 0


class Adapter:
    """Interface of a framework's module; docs/frameworks.md explains how to write one.

    Adapters are subclasses; members that they do not override are as defined here.

    Attributes:
        name: name of its arrays in messages.
        has_pool: the framework allocates in stream order and has a current stream; kernels launch
            in that stream and take their temporaries from the framework.
        is_copied: arrays are on the host; they are copied to the GPU, and results back.
        takes_calls: `run` handles any call that has one of its arrays.
    """

    name: str
    has_pool: bool = False
    is_copied: bool = False
    takes_calls: bool = False

    def view(self, array: Any) -> ArrayView:
        """Return a view of an array for the runtime.

        Raises:
            ArgumentError: kernels cannot take it.
        """
        raise NotImplementedError

    def view_in_order(self, array: Any) -> ArrayView:
        """Like `view`, but for calls without a stream: includes the array's producer stream."""
        return self.view(array)

    def stream(self, device: int) -> int:
        """Return the handle of the framework's current stream on a device."""
        return 0

    def empty(self, shape: tuple[int, ...], dtype: str, device: int, stream: int | None) -> Any:
        """Return new memory for use in a stream, the current one if it is None."""
        raise NotImplementedError

    def mark_written(self, arrays: tuple[Any, ...]) -> object:
        """Mark these arrays as written by a launch, if the framework counts writes."""

    def dialect(self) -> Dialect | None:
        """Return expressions for generated functions; None if each call must use `view`."""
        return None

    def exchange(self) -> Exchange | None:
        """Return the extension's access to the framework, None if impossible. Opens no driver."""
        return None

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
        ArgumentError: an array does not.
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
    "torch": "torch_arrays",
    "jax": "jax_arrays",
    "jaxlib": "jax_arrays",
    "numpy": "numpy_arrays",
    "cupy": "cupy_arrays",
    "pallasc": "device_arrays",
}
"""The adapter of each framework, by the top-level module of its arrays' types."""

_PROTOCOLS = {
    "__cuda_array_interface__": "cuda_arrays",
    "__dlpack__": "dlpack",
}
_by_type: dict[type, Adapter] = {}


def find_adapter(value: Any, *what: str) -> Adapter:
    """Return the adapter for an array.

    Args:
        value: the array.
        what: its name in messages, in parts: the kernel, and the position in its arguments.

    Raises:
        ArgumentError: it is not an array that the runtime can use.
    """
    kind = type(value)
    adapter = _by_type.get(kind)
    if adapter is None:
        adapter = _by_type[kind] = _recognise(value, ": ".join(what))
    return adapter


def _recognise(value: Any, what: str) -> Adapter:
    for kind in type(value).__mro__:
        module = MODULES.get(kind.__module__.partition(".")[0])
        if module is not None:
            return _adapter(module)
    for protocol, module in _PROTOCOLS.items():
        if hasattr(type(value), protocol):
            return _adapter(module)
    article = "None" if value is None else an(type(value).__name__)
    raise ArgumentError(
        f"{what} must be an array, not {article}.",
        hint="Supported: torch, cupy, numpy, JAX, and any object with DLPack.",
    )


@cache
def _adapter(module: str) -> Adapter:
    adapter: Adapter = import_module(f"pallasc.runtime.adapters.{module}").make_adapter()
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
