"""What the runtime asks of arrays, and which framework an array belongs to.

An array is recognised by the module of its type, which is loaded already; only its adapter is
imported. Where the table has no such module, `__cuda_array_interface__` is tried, then DLPack.
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
"""What attributes and methods of something that only looks like an array may raise."""


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


NewArray = tuple[tuple[int, ...], tuple[int, ...], Any]
"""Shape, strides, and dtype as the framework has it."""

NewIn = Callable[[int, int, Sequence[NewArray]], Sequence[Any]]
"""Stream, ordinal, and what is made -> the arrays."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How generated code asks a framework; `{x}` is an array, `{d}` an ordinal.

    Attributes:
        kind, other_kinds: the usual type of its arrays, and others that are used alike.
        dtypes: its dtypes by short name.
        dtype, shape, device, pointer, stream, current_device: expressions.
        plain: an expression that holds where `{x}` is what its memory says: torch conjugates
            complex arrays without touching them, and so negates their imaginary parts, which
            without gaps have one element. Empty where arrays are always what their memory says.
        layout: an expression that holds where `{x}` has the shape `{shape}` without gaps;
            `{strides}` are those of such an array, in elements. Like all expressions on an array,
            it may raise what `FOREIGN_ERRORS` lists, or an `AssertionError`.
        mark_written: an expression that tells the framework that the arrays of the tuple `{xs}` are
            written; empty where it does not count writes.
        strided: the same for an array that is not row-major, whose strides are `{strides}`; empty
            where such arrays have no generated functions.
        uses: an expression for the `Uses` of an array; empty where a framework has a current stream
            that orders its work.
        new: an expression for a new array of the current stream, with the shape `{shape}`, the
            row-major strides `{strides}` and the dtype `{dtype}`, on the GPU of `{x}`.
        new_in: a function that returns new arrays of a stream that is not the current one: it is
            given the stream's handle, the ordinal, and of each array shape, strides and dtype. None
            where such calls have no generated functions.
        values: what the expressions use.
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
    """How the extension of C asks a framework, whose arrays have DLPack's C exchange API.

    Attributes:
        kinds: the types of its arrays.
        capsule: what they have as `__dlpack_c_exchange_api__`.
        dtypes: its dtypes by short name.
        new_here: a function that allocates on the current GPU, given shape, strides and dtype.
        new_in: as of `Dialect`; None where calls that allocate in a stream go through Python.
        mark_written: a function that tells the framework that the arrays of a tuple are written;
            None where it does not count writes.
        is_plain: tells whether an array is what its memory says, see `Dialect`; None where all are.
        stream_address: the address of a C function for the current stream of a device,
            `int (int32_t device, void **stream)`; 0 where that of the API will do.
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
    """What a framework's module offers; docs/frameworks.md says how to write one.

    Adapters are subclasses; a member that they leave out is as defined here.

    Attributes:
        name: what its arrays are called in messages.
        has_pool: the framework allocates in the order of a stream and has a current stream; kernels
            launch in that stream and take their temporaries from it.
        is_copied: arrays lie on the host; they are copied to the GPU, and results back.
        takes_calls: `run` does all of a call that has one of its arrays.
    """

    name: str
    has_pool: bool = False
    is_copied: bool = False
    takes_calls: bool = False

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
        """Return how generated functions ask the framework; None where each call asks `view`."""
        return None

    def exchange(self) -> Exchange | None:
        """Return how the extension asks the framework; None where it cannot. Opens no driver."""
        return None

    def run(self, call: Any) -> Any:
        """Do all of a call (`calls.match.Call`), and return its results."""
        raise NotImplementedError


class Passed(NamedTuple):
    """An array of a call, the framework it is of, and what that says of it."""

    array: Any
    adapter: Adapter
    view: ArrayView


def check_copied(name: str, bindings: Sequence[Binding], arrays: Sequence[Passed]) -> None:
    """Check that arrays on the host belong to a framework whose arrays are copied.

    Raises:
        ArgumentError: one does not.
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
        what: what messages call it, in parts: the kernel, and where in its arguments it lies.

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
    """Tell whether strides in steps of `unit` describe a row-major array without gaps."""
    if strides is None or 0 in shape:
        return True
    expected = unit
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
