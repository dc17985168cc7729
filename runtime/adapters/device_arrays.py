"""Arrays of libraries without their own adapter, and pallasc's device arrays for their results.

Structures and codes follow DLPack 1.0 (`dlpack.h`). pallasc reads a capsule without consuming it,
so the capsule's destructor frees the memory. A capsule that pallasc creates keeps its array alive
until the consumer calls the deleter, or until the capsule is destroyed unused.
"""

from __future__ import annotations

import ctypes
import math
import re
import struct
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from pallasc.errors import ArgumentError
from pallasc.runtime.device.devices import (
    Device,
    active,
    device_of,
    get_device,
    is_open,
    outside_captures,
)
from pallasc.runtime.device.streams import Uses, own_stream, wait_for_tails, work_stream
from pallasc.runtime.matching.arrays import (
    FOREIGN_ERRORS,
    Access,
    Adapter,
    ArrayView,
    dlpack_code,
    is_row_major,
    no_array,
    short_dtype,
)
from pallasc.specs.arrays import parse_dtype
from pallasc.specs.spelling import an

if TYPE_CHECKING:
    from pallasc.specs.artifacts.plan import LaunchPlan

# ---- DLPack capsules

_CPU, _CUDA, _CUDA_MANAGED = 1, 2, 13

_NAME, _VERSIONED = b"dltensor", b"dltensor_versioned"


class _Tensor(ctypes.Structure):
    """`DLTensor`, the first field of `DLManagedTensor`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """`DLManagedTensor`."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


# `DLTensor` as one struct: data, device, layout (ndim, dtype), shape, strides, offset. Reading it
# through the fields of a ctypes structure takes five times as long.
_TENSOR = struct.Struct("<Qii8sQQQ")
# Fields before the tensor in `DLManagedTensorVersioned`: version, context, deleter, flags.
_HEAD = struct.Struct("<IIQQQ")
_READ_ONLY, _IS_COPY = 1, 2


def read_capsule(capsule: Any, device: int | None, stream: int | None = None) -> ArrayView:
    """Return the array that a capsule describes.

    Args:
        capsule: the result of `__dlpack__`, with or without a version.
        device: ordinal of the GPU that the array must be on, None for the host.
        stream: the stream that waits for the producer's work, None if none was requested.

    Raises:
        ArgumentError: the capsule is not a DLPack capsule, has a later version, holds a copy, or
            its array is on another device.
    """
    functions = _functions()
    try:
        name = functions["name of object"](capsule)
        address = functions["pointer of object"](capsule, name)
    except ValueError:
        name = None
    is_writable = True
    if name == _VERSIONED:
        is_writable = _read_head(address)
        address += _HEAD.size
    elif name != _NAME:
        raise ArgumentError(f"__dlpack__ returns {capsule!r}, not an unused DLPack tensor.")
    data, kind, ordinal, layout, shape, strides, offset = _TENSOR.unpack_from(
        _bytes_at(_TENSOR.size)(address)
    )
    if (None if kind == _CPU else ordinal) != device:
        place = "the host" if device is None else f"GPU {device}"
        raise ArgumentError(
            f"its DLPack tensor is on device {ordinal} of kind {kind}, but __dlpack_device__ "
            f"reports {place}."
        )
    size = 8 * int.from_bytes(layout[:4], "little")
    read = _bytes_at(size)
    dtype, sizes, own = _capsule_layout(
        layout, read(shape).raw, read(strides).raw if strides else None
    )
    return ArrayView(data + offset, dtype, sizes, own is None, device, is_writable, stream, own)


@cache
def _bytes_at(size: int) -> Callable[[int], Any]:
    """Return a function that reads `size` bytes at an address, 3x faster than `string_at`."""
    return (ctypes.c_char * size).from_address


def _read_head(address: int) -> bool:
    """Return True if the array is writable."""
    major, minor, _, _, flags = _HEAD.unpack_from(_bytes_at(_HEAD.size)(address))
    if major > 1:
        raise ArgumentError(f"its DLPack tensor has version {major}.{minor}; pallasc reads 1.x.")
    if flags & _IS_COPY:
        raise ArgumentError("__dlpack__ returns a copy, which is freed before the kernel runs.")
    return not flags & _READ_ONLY


@lru_cache(maxsize=1024)
def _capsule_layout(
    layout: bytes, shape: bytes, strides: bytes | None
) -> tuple[str, tuple[int, ...], tuple[int, ...] | None]:
    """Decode the dtype and shape, and the strides if the array is not row-major."""
    ndim, code, bits, lanes = struct.unpack("<iBBH", layout)
    sizes = struct.unpack(f"<{ndim}q", shape)
    steps = None if strides is None else struct.unpack(f"<{ndim}q", strides)
    own = None if is_row_major(sizes, steps, 1) else steps
    return short_dtype(code, bits, lanes), sizes, own


def make_capsule(
    owner: object, pointer: int, shape: tuple[int, ...], dtype: str, device: int
) -> Any:
    """Return a capsule for a dense array on a GPU; the capsule keeps `owner` alive.

    Raises:
        ArgumentError: DLPack has no code for the dtype.
    """
    functions = _functions()
    sizes = (ctypes.c_int64 * max(1, len(shape)))(*shape)
    managed = _Managed()
    tensor = managed.tensor
    tensor.data, tensor.device_type, tensor.device_id = pointer, _CUDA, device
    tensor.ndim, tensor.shape = len(shape), ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
    code = dlpack_code(dtype)
    if code is None:
        raise ArgumentError(f"DLPack has no code for {dtype}.")
    tensor.code, tensor.bits, tensor.lanes = code, parse_dtype(dtype).bits, 1
    managed.deleter = ctypes.cast(functions["delete"], ctypes.c_void_p)
    address = ctypes.addressof(managed)
    _exported[address] = (owner, sizes, managed)
    return functions["new"](address, _NAME, ctypes.cast(functions["destroy"], ctypes.c_void_p))


# Objects that exported capsules keep alive, by the address of the capsule's structure.
_exported: dict[int, Any] = {}


@cache
def _functions() -> dict[str, Any]:
    """Return Python's capsule functions, and the two callbacks of pallasc's capsules."""
    api, pointer, text = ctypes.pythonapi, ctypes.c_void_p, ctypes.c_char_p
    get = ctypes.PYFUNCTYPE(pointer, pointer, text)(("PyCapsule_GetPointer", api))
    is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, pointer, text)(("PyCapsule_IsValid", api))

    def delete(address: int) -> None:
        _exported.pop(address, None)

    def destroy(capsule: int) -> None:
        # If the name differs, a consumer has renamed the capsule and calls the deleter.
        if is_valid(capsule, _NAME):
            _exported.pop(get(capsule, _NAME), None)

    return {
        "name of object": ctypes.PYFUNCTYPE(text, ctypes.py_object)(("PyCapsule_GetName", api)),
        "pointer of object": ctypes.PYFUNCTYPE(pointer, ctypes.py_object, text)(
            ("PyCapsule_GetPointer", api)
        ),
        "new": ctypes.PYFUNCTYPE(ctypes.py_object, pointer, text, pointer)(("PyCapsule_New", api)),
        "delete": ctypes.CFUNCTYPE(None, pointer)(delete),
        "destroy": ctypes.PYFUNCTYPE(None, pointer)(destroy),
    }


_NO_SYNCHRONISATION, _DEFAULT_STREAM = -1, 1
_LETTER = re.compile(r"b(?=ool)|[iufc](?=\d+$)")


# ---- device arrays


class DeviceArray:
    """A dense row-major array in device memory, freed with the object.

    Args:
        shape: sizes of the dimensions.
        dtype: short name, such as `bf16`.
        device: ordinal of the GPU.

    Attributes:
        shape, dtype, device: as given.
        pointer: the device address.
        nbytes: the size in bytes.
        uses: the work enqueued by pallasc that uses the array.
        view: the view that launches use.

    Raises:
        OutOfMemoryError: the GPU has too little free memory.
    """

    def __init__(self, shape: tuple[int, ...], dtype: str, device: int = 0) -> None:
        self.shape = tuple(shape)
        self.dtype = parse_dtype(dtype).name
        self.device = device
        self.nbytes = (math.prod(shape) * parse_dtype(dtype).bits + 7) // 8
        what = f"cannot allocate {self.nbytes} bytes for {dtype}{list(shape)} on GPU {device}"
        owner = get_device(device)
        self.uses = Uses(owner)
        with active(owner) as driver, outside_captures(driver):
            self.pointer = int(driver.call("cuMemAlloc", max(1, self.nbytes), what=what))
        self.view = ArrayView(
            self.pointer, self.dtype, self.shape, True, self.device, uses=self.uses
        )
        weakref.finalize(self, _free, self.pointer, owner, self.uses)

    def __repr__(self) -> str:
        return f"<DeviceArray {self.dtype}{list(self.shape)} on GPU {self.device}>"

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The array's description for other libraries, and a stream that they must wait for.

        The stream belongs to pallasc and is never destroyed. It is None if all work on the array
        has finished.

        Raises:
            AttributeError: the interface has no name for the dtype.
        """
        match = _LETTER.match(self.dtype)
        if match is None or parse_dtype(self.dtype).bits < 8:
            raise AttributeError(f"__cuda_array_interface__ has no name for {self.dtype}")
        size = parse_dtype(self.dtype).bits // 8
        return {
            "shape": self.shape,
            "typestr": f"{'|' if size == 1 else '<'}{match[0]}{size}",
            "data": (self.pointer, False),
            "version": 3,
            "stream": self._exported_stream(),
        }

    def _exported_stream(self) -> int | None:
        unfinished = self.uses.before(None, writes=True)
        if not unfinished:
            return None
        device = get_device(self.device)
        stream = own_stream(device)
        wait_for_tails(device, stream, unfinished)
        return stream

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's device type, and the ordinal."""
        return _CUDA, self.device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
        **_: Any,
    ) -> Any:
        """Return the array as a DLPack capsule; the consumer's stream waits for the array's work.

        Raises:
            ArgumentError: DLPack has no code for the dtype.
            BufferError: a copy or another device was requested.
        """
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"{self!r} cannot be copied or moved for export")
        if stream != _NO_SYNCHRONISATION:
            used = self.uses.before(None, writes=True)
            wait_for_tails(get_device(self.device), stream or _DEFAULT_STREAM, used)
        return make_capsule(self, self.pointer, self.shape, self.dtype, self.device)

    def copy_from(self, array: Any) -> None:
        """Fill the array with the bytes of a host array that supports the buffer protocol.

        Waits for all reads and writes of this array in any stream, for the work in the default
        stream, and for the copy. Stream captures in progress are not disturbed.

        Raises:
            ArgumentError: the sizes differ, or the host array has gaps or no buffer.
        """
        data = _host_bytes(array)
        if data.nbytes != self.nbytes:
            raise ArgumentError(f"{data.nbytes} bytes cannot be copied into {self!r}.")
        if self.nbytes:
            device = get_device(self.device)
            stream = work_stream(device, self.uses, writes=True)
            what = f"{self!r} cannot be filled"
            source = bytes(data)
            with active(device) as driver, outside_captures(driver):
                arguments = (self.pointer, source, self.nbytes, stream)
                driver.call("cuMemcpyHtoDAsync", *arguments, what=what)
                driver.call("cuStreamSynchronize", stream, what=what)
            self.uses.settle(device)

    def to_bytes(self) -> bytes:
        """Return the array's bytes.

        Waits for the writes to this array and for the work in the default stream. Stream captures
        in progress are not disturbed.
        """
        data = bytearray(self.nbytes)
        if self.nbytes:
            device = get_device(self.device)
            stream = work_stream(device, self.uses, writes=False)
            what = f"{self!r} cannot be read"
            with active(device) as driver, outside_captures(driver):
                arguments = (data, self.pointer, self.nbytes, stream)
                driver.call("cuMemcpyDtoHAsync", *arguments, what=what)
                driver.call("cuStreamSynchronize", stream, what=what)
        return bytes(data)


def _host_bytes(array: Any) -> memoryview:
    try:
        view = memoryview(array)
        if view.format == "O":
            raise TypeError("it contains Python objects")
        return view.cast("B") if view.nbytes else memoryview(b"")
    except (BufferError, TypeError, ValueError) as error:
        raise ArgumentError(
            f"{an(type(array).__name__)} cannot be copied from: {error}.",
            hint='For a numpy array, pass numpy.ascontiguousarray(x).view("u1").',
        ) from error


def _free(pointer: int, device: Device, uses: Uses) -> None:
    """Wait for the uses of memory and free it, without disturbing stream captures in progress.

    cuMemFree is not documented to wait for the device. After a fork, the child process frees
    nothing.
    """
    if is_open(device):
        unfinished = uses.before(None, writes=True)
        with active(device) as driver, outside_captures(driver):
            for tail in unfinished:
                driver.bindings.cuEventSynchronize(tail.event)
            driver.bindings.cuMemFree(pointer)


def _or_device_array(view: Callable[[Any], ArrayView]) -> Callable[[Any], ArrayView]:
    def describe(array: Any) -> ArrayView:
        return array.view if type(array) is DeviceArray else view(array)

    return describe


class Operands:
    """The arrays of one launch.

    Args:
        signature: the kernel's signature.
        inputs: the bytes of each input.
        device: the GPU.

    Raises:
        OutOfMemoryError: the device memory is too small.
    """

    def __init__(self, signature: LaunchPlan, inputs: Iterable[Any], device: Device) -> None:
        self._sources = signature.sources
        passed = [DeviceArray(own.shape, own.dtype, device.ordinal) for own in signature.passed]
        count = len(signature.inputs)
        self._arrays = {"input": passed[:count], "result": passed[count:]}
        for array, data in zip(self._arrays["input"], inputs, strict=True):
            array.copy_from(data)
        self.pointers = [array.pointer for array in passed]

    def outputs(self) -> Iterator[bytes]:
        """Wait for the default stream, and yield the bytes of each output.

        Raises:
            DriverError: an output cannot be read, or an earlier launch failed.
        """
        for source, number in self._sources:
            yield self._arrays[source][number].to_bytes()


class OwnMemory(Adapter):
    """Base of adapters for libraries without an allocator: results are device arrays."""

    def empty(self, shape: tuple[int, ...], dtype: str, device: int, stream: int | None) -> Any:
        """Return a new device array."""
        return DeviceArray(shape, dtype, device)

    def access(self, kind: type) -> Access:
        """Return how the C extension handles arrays of a type, also together with device arrays."""
        own = super().access(kind)
        return replace(
            own,
            kinds=(kind, DeviceArray),
            describe=_or_device_array(own.describe),
            describe_in_order=_or_device_array(own.describe_in_order),
            new_in=None,
        )


class DeviceArrayAdapter(OwnMemory):
    """pallasc's own device arrays."""

    name = "a device array"

    def access(self, kind: type) -> Access:
        """Return how the C extension handles device arrays."""
        view = attrgetter("view")
        own = super().access(kind)
        kinds = tuple({kind: None, DeviceArray: None})
        return replace(own, kinds=kinds, describe=view, describe_in_order=view)

    def view(self, array: Any) -> ArrayView:
        """Return a view of a device array for the runtime.

        Raises:
            ArgumentError: `array` is a different pallasc object.
        """
        if not isinstance(array, DeviceArray):
            raise no_array(array)
        return array.view


# ---- arrays with `__dlpack__`

# From this version on, a capsule states whether its array is writable.
_VERSION = (1, 0)


class DlpackAdapter(OwnMemory):
    """Arrays with `__dlpack__`; results are pallasc device arrays."""

    name = "an array with __dlpack__"

    def view(self, array: Any) -> ArrayView:
        """Return a view of an array through DLPack, without asking the producer to synchronize.

        Raises:
            ArgumentError: the array cannot be exported, or is in memory that kernels cannot reach.
        """
        return self._view(array, None)

    def view_in_order(self, array: Any) -> ArrayView:
        """Return a view of an array through DLPack; the default stream waits for its producer.

        Raises:
            ArgumentError: the array cannot be exported, or is in memory that kernels cannot reach.
        """
        return self._view(array, _DEFAULT_STREAM)

    def _view(self, array: Any, stream: int | None) -> ArrayView:
        try:
            kind, ordinal = array.__dlpack_device__()
            where = int(kind), int(ordinal)
        except FOREIGN_ERRORS as error:
            raise ArgumentError(f"__dlpack_device__() failed: {_text(error)}.") from error
        if where[0] not in (_CPU, _CUDA, _CUDA_MANAGED):
            raise ArgumentError(f"it is on a DLPack device of kind {where[0]}, which is not a GPU.")
        if where[0] == _CPU:
            return read_capsule(self._export(array), None)
        capsule = self._export(array, stream=stream or _NO_SYNCHRONISATION)
        return read_capsule(capsule, where[1], stream)

    def _export(self, array: Any, **options: Any) -> Any:
        """Return a capsule, a versioned one if the producer supports it."""
        try:
            try:
                return array.__dlpack__(max_version=_VERSION, **options)
            except TypeError:
                return array.__dlpack__(**options)
        except FOREIGN_ERRORS as error:
            raise ArgumentError(
                f"__dlpack__() failed: {_text(error)}.",
                hint="DLPack takes neither sparse arrays nor arrays that require gradients.",
            ) from error


def _text(error: Exception) -> str:
    """Return an error's class and the first line of its message."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0].rstrip('.')}"


# ---- arrays with `__cuda_array_interface__`, version 3

# https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html

_KINDS = {"b": "bool", "i": "i", "u": "u", "f": "f", "c": "c"}
_FIELDS = ("data", "typestr", "shape")


class CudaArrayAdapter(OwnMemory):
    """Arrays with `__cuda_array_interface__`; results are pallasc device arrays."""

    name = "an array with __cuda_array_interface__"

    def __init__(self) -> None:
        self._by_dlpack = DlpackAdapter()

    def view(self, array: Any) -> ArrayView:
        """Return a view of an array, read through the interface.

        Raises:
            ArgumentError: a field of the interface has a value that the runtime does not support.
        """
        interface = _interface(array)
        return self._by_dlpack.view(array) if interface is None else _view(interface)

    def view_in_order(self, array: Any) -> ArrayView:
        """Like `view`; if an array has only DLPack, the default stream waits for its producer.

        Raises:
            ArgumentError: as for `view`.
        """
        interface = _interface(array)
        return self._by_dlpack.view_in_order(array) if interface is None else _view(interface)


def _interface(array: Any) -> Mapping[str, Any] | None:
    """Return the interface's fields, None if the array has only DLPack.

    Raises:
        ArgumentError: the interface cannot be read, or the array has a mask.
    """
    try:
        interface: Mapping[str, Any] = array.__cuda_array_interface__
    except FOREIGN_ERRORS as error:
        if hasattr(array, "__dlpack__"):
            return None
        raise ArgumentError(f"__cuda_array_interface__ cannot be read: {error}.") from error
    if type(interface) is not dict and not isinstance(interface, Mapping):
        raise ArgumentError(
            f"__cuda_array_interface__ is {an(type(interface).__name__)}, not a mapping."
        )
    if interface.get("mask") is not None:
        raise ArgumentError("an array with a mask cannot be passed: pass a dense copy.")
    return interface


def _view(interface: Mapping[str, Any]) -> ArrayView:
    """Return the array that the interface's fields describe.

    Raises:
        ArgumentError: a field is missing, or has a value that the interface does not allow.
    """
    try:
        address, is_read_only = interface["data"]
        pointer = int(address or 0)
        strides = interface.get("strides")
        dtype, shape, own = _interface_layout(
            interface["typestr"],
            tuple(interface["shape"]),
            None if strides is None else tuple(strides),
        )
        stream = interface.get("stream")
        producer = None if stream is None else int(stream)
        if not 0 <= pointer < 1 << 64 or (not pointer and 0 not in shape):
            raise ValueError("an address is out of range")
        if producer is not None and producer < 1:
            raise ValueError("a stream is out of range")
    except FOREIGN_ERRORS as error:
        raise _wrong_field(interface) from error
    device = device_of(pointer)
    if device is None:
        raise ArgumentError(f"no GPU has memory at its address, {pointer:#x}.")
    return ArrayView(pointer, dtype, shape, own is None, device, not is_read_only, producer, own)


def _wrong_field(interface: Mapping[str, object]) -> ArgumentError:
    missing = next((field for field in _FIELDS if interface.get(field) is None), None)
    if missing is not None:
        return ArgumentError(f"__cuda_array_interface__ has no {missing!r}.")
    listed = ", ".join(
        f"{field}={interface.get(field)!r}" for field in (*_FIELDS, "strides", "stream")
    )
    return ArgumentError(f"__cuda_array_interface__ is invalid: {listed}.")


@lru_cache(maxsize=1024)
def _interface_layout(
    typestr: str, shape: tuple[int, ...], strides: tuple[int, ...] | None
) -> tuple[str, tuple[int, ...], tuple[int, ...] | None]:
    """Return dtype and shape, and the strides in elements if the array is not row-major.

    Raises:
        ArgumentError: the interface has no such dtype.
        TypeError, ValueError: a size is not a number, or is negative.
    """
    dtype, unit = read_typestr(typestr)
    sizes = tuple(size.__index__() for size in shape)
    if any(size < 0 for size in sizes):
        raise ValueError("a size is negative")
    if strides is None or is_row_major(sizes, strides, unit):
        return dtype, sizes, None
    return dtype, sizes, tuple(stride // unit for stride in strides)


def read_typestr(typestr: str) -> tuple[str, int]:
    """Return an element's short dtype name and size in bytes: `f32`, 4 for `<f4`.

    Raises:
        ArgumentError: the interface has no such dtype.
    """
    kind, size = _KINDS.get(typestr[1:2]), typestr[2:]
    is_known = kind is not None and size.isdecimal() and size != "0"
    if not is_known or typestr[0] == ">" or (kind == "bool" and size != "1"):
        raise ArgumentError(
            f"__cuda_array_interface__ has no dtype {typestr!r}.",
            hint="Pass bf16 and fp8 through DLPack or as arrays of torch or cupy.",
        )
    return sys.intern("bool" if kind == "bool" else f"{kind}{8 * int(size)}"), int(size)
