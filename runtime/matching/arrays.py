"""What the runtime asks of arrays, and which framework an array belongs to.

An array is recognised by the module of its type; nothing is imported for it that is not loaded
already. What has none of the known modules is taken by `__cuda_array_interface__`, then DLPack.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from pallasc.errors import ArgumentError
from pallasc.runtime.matching.dialect import Dialect
from pallasc.specs.arrays import layout_of
from pallasc.specs.spelling import an

if TYPE_CHECKING:
    from pallasc.runtime.device.uses import Uses

FOREIGN_ERRORS = (
    *(ArithmeticError, AttributeError, BufferError, LookupError, NotImplementedError),
    *(RuntimeError, TypeError, ValueError),
)
"""What attributes and methods of an array that is no such may raise."""


class ArrayView(NamedTuple):
    """An array as the runtime sees it.

    Attributes:
        pointer: the address of its first element; 0 where the array is on the host.
        dtype: short name, `bf16`; the framework's own where it has no short name.
        shape: sizes of its dimensions.
        is_contiguous: row-major without gaps.
        device: ordinal of its GPU, None for the host.
        is_writable: it may be written.
        stream: the stream that its producer used last, None where nothing needs to be waited for.
        strides: in elements, where it is not row-major and they are known.
        uses: what launches with it wait for and are noted in, None where it does not know them.
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
        """Its layout; None where it is row-major, or has gaps."""
        return None if self.strides is None else layout_of(self.shape, self.strides)


class Adapter:
    """What a framework's module offers; docs/frameworks.md says how to write one.

    Adapters are subclasses, so that what they leave out is as here.

    Attributes:
        name: what its arrays are called in messages.
        has_pool: the framework allocates in the order of a stream and has a current stream; kernels
            launch in that stream and take their temporaries from it.
        is_copied: arrays lie on the host; they are copied to the GPU, and results back.
        takes_calls: `run` does all of a call in which one of its arrays is.
        has_fast_path: a later call goes through a generated function.
    """

    name: str
    has_pool: bool = False
    is_copied: bool = False
    takes_calls: bool = False
    has_fast_path: bool = False

    def view(self, array: Any) -> ArrayView:
        """Return what the runtime needs to know of an array.

        Raises:
            ArgumentError: it is something that kernels cannot take.
        """
        raise NotImplementedError

    def view_in_order(self, array: Any) -> ArrayView:
        """Return the same, with the stream that work on the array is in where none is given."""
        return self.view(array)

    def stream(self, device: int) -> int:
        """Return the handle of the framework's current stream on a device."""
        return 0

    def empty(self, shape: tuple[int, ...], dtype: str, device: int, stream: int | None) -> Any:
        """Return new memory that is used in a stream, in the current one where it is None."""
        raise NotImplementedError

    def mark_written(self, arrays: tuple[Any, ...]) -> object:
        """Note that a launch writes these arrays, where the framework counts writes."""

    def dialect(self) -> Dialect | None:
        """Return how generated functions ask the framework; None where they use `view`."""
        return None

    def run(self, call: Any) -> Any:
        """Do all of a call (`calls.call.Call`), and return its results."""
        raise NotImplementedError


def no_array(value: Any) -> ArgumentError:
    """Return the error for something of a framework that is none of its arrays."""
    return ArgumentError(f"{an(type(value).__name__)} is not an array.")


_MODULES = {
    "torch": "torch_arrays",
    "jax": "jax_arrays",
    "jaxlib": "jax_arrays",
    "numpy": "numpy_arrays",
    "cupy": "cupy_arrays",
    "pallasc": "device_arrays",
}
_PROTOCOLS = {
    "__cuda_array_interface__": "cuda_arrays",
    "__dlpack__": "dlpack",
}
_by_type: dict[type, Adapter] = {}


def find_adapter(value: Any, what: str) -> Adapter:
    """Return the adapter for an array.

    Raises:
        ArgumentError: it is not an array that the runtime can use.
    """
    kind = type(value)
    found = _by_type.get(kind)
    if found is None:
        found = _recognise(value, what)
        _by_type[kind] = found
    return found


def known_adapter(value: Any) -> Adapter:
    """Return the adapter for an array of a type that was met before.

    Raises:
        KeyError: it was not.
    """
    return _by_type[type(value)]


def _recognise(value: Any, what: str) -> Adapter:
    for kind in type(value).__mro__:
        module = _MODULES.get(kind.__module__.partition(".")[0])
        if module is not None:
            return _adapter(module)
    for protocol, module in _PROTOCOLS.items():
        if hasattr(type(value), protocol):
            return _adapter(module)
    given = "None" if value is None else an(type(value).__name__)
    raise ArgumentError(
        f"{what} must be an array, not {given}.",
        hint="Arrays of torch, cupy, numpy, JAX inside jit, and whatever has DLPack are taken.",
    )


@cache
def _adapter(module: str) -> Adapter:
    adapter: Adapter = import_module(f"pallasc.runtime.adapters.{module}").make_adapter()
    return adapter


def is_row_major(shape: tuple[int, ...], strides: tuple[int, ...] | None, unit: int) -> bool:
    """Tell whether strides in steps of `unit` describe a row-major array without gaps."""
    if strides is None or 0 in shape:
        return True
    expected = unit
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
