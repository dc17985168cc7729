"""What the stand-in driver tells, as data: calls, launches, tensor maps."""

import ctypes
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAP_BYTES = 128

_TYPES = (
    *("uint8", "uint16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64"),
    *("bfloat16", "float32_ftz", "tfloat32", "tfloat32_ftz", "16u4_align8b", "16u4_align16b"),
    "16u6_align16b",
)
_SWIZZLE_BYTES = (0, 32, 64, 128, 128, 128, 128)
_INTERLEAVE_BYTES = (0, 16, 32)
_L2_BYTES = (0, 64, 128, 256)

# `struct map` of tensor_maps.c: magic, address, strides, dimensions less one, box or channels and
# pixels, element strides, seven small numbers, corners.
_MAP = struct.Struct("<8sQ4Q5I5H5B7B6h26x")


class RawDevice(ctypes.Structure):
    """`struct device` of control.h."""

    _fields_ = (
        ("name", ctypes.c_char * 64),
        *((name, ctypes.c_int) for name in ("major", "minor", "sms", "smem_optin_bytes")),
        *((name, ctypes.c_int) for name in ("smem_sm_bytes", "max_cluster", "clock_khz")),
        *((name, ctypes.c_int) for name in ("memory_clock_khz", "bus_bits", "l2_bytes")),
        ("reserved", ctypes.c_int),
        *((name, ctypes.c_uint64) for name in ("memory_bytes", "used_bytes", "clock_ns")),
    )


class Options(ctypes.Structure):
    """`struct options` of control.h, where each field is described."""

    _fields_ = tuple(
        (name, ctypes.c_int)
        for name in (
            *("driver_version", "init_code", "log", "raw_speed", "check_pointers"),
            *("eager_loading", "kernel_ns", "strict_context", "asynchronous", "reuse_streams"),
        )
    )


class RawLaunch(ctypes.Structure):
    """`struct launch` of control.h."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("sequence", "thread", "context", "stream")),
        ("kernel", ctypes.c_char_p),
        ("offsets", ctypes.POINTER(ctypes.c_uint32)),
        ("sizes", ctypes.POINTER(ctypes.c_uint32)),
        ("bytes", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("device", ctypes.c_int),
        ("code", ctypes.c_int),
        *((name, ctypes.c_uint32 * 3) for name in ("grid", "block", "cluster")),
        *((name, ctypes.c_uint32) for name in ("smem_bytes", "parameter_count")),
        *((name, ctypes.c_uint32) for name in ("attribute_count", "byte_count", "replayed")),
        ("library", ctypes.c_void_p),
    )


class RawCall(ctypes.Structure):
    """`struct call` of control.h."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("sequence", "thread", "stream")),
        *((name, ctypes.c_int) for name in ("function", "code", "device", "value_count")),
        ("values", ctypes.c_uint64 * 6),
    )


@dataclass(frozen=True)
class Device:
    """A device to be found; 0 and "" mean: as the chip with this compute capability."""

    capability: str
    name: str = ""
    sms: int = 0
    smem_optin_bytes: int = 0
    memory_bytes: int = 0
    max_cluster: int = 0


@dataclass(frozen=True)
class Call:
    """One call as the driver saw it; `values` are the numbers among its arguments."""

    name: str
    code: int
    device: int
    stream: int
    thread: int
    values: tuple[int, ...]


@dataclass(frozen=True)
class TensorMap:
    """The arguments that a map was encoded from; fields as in a launch plan."""

    address: int
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: int
    interleave: int
    l2_promotion: int
    nan_fill: bool
    im2col: Mapping[str, Any] | None = None


def decode_map(data: bytes) -> TensorMap | None:
    """Return what the 128 bytes were encoded from, or None where they are no tensor map."""
    magic, address, *rest = _MAP.unpack_from(data)
    if magic != b"standTMA":
        return None
    strides, dims, box, steps = rest[:4], rest[4:9], rest[9:14], rest[14:19]
    kind, rank, dtype, interleave, swizzle, l2, fill = rest[19:26]
    corners = rest[26:]
    im2col = {
        "lower": tuple(corners[: rank - 2]),
        "upper": tuple(corners[3 : 3 + rank - 2]),
        "channels": box[0],
        "pixels": box[1],
    }
    return TensorMap(
        address=address,
        dtype=_TYPES[dtype],
        dims=tuple(n + 1 for n in dims[:rank]),
        strides=tuple(strides[: rank - 1]),
        box=() if kind else tuple(box[:rank]),
        element_strides=tuple(steps[:rank]),
        swizzle=_SWIZZLE_BYTES[swizzle],
        interleave=_INTERLEAVE_BYTES[interleave],
        l2_promotion=_L2_BYTES[l2],
        nan_fill=bool(fill),
        im2col=im2col if kind else None,
    )


@dataclass(frozen=True)
class Launch:
    """One launch as the driver got it; `parameters` are the exact bytes of each argument.

    `attributes` are pairs of number and 64 bytes. `code` is what the device failed with, 0 for
    nothing; `replayed` is true for launches of a graph; `library` is for `Standin.image`.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] | None
    smem_bytes: int
    attributes: tuple[tuple[int, bytes], ...]
    parameters: tuple[bytes, ...]
    device: int
    stream: int
    sequence: int
    library: int
    code: int = 0
    replayed: bool = False

    @property
    def pdl(self) -> bool:
        """Whether programmatic stream serialization (attribute 6) was asked for."""
        return any(number == 6 and value[:4] != bytes(4) for number, value in self.attributes)

    def pointer(self, index: int) -> int:
        """Return parameter `index` as an address."""
        assert len(self.parameters[index]) == 8, f"parameter {index} is no pointer"
        return int.from_bytes(self.parameters[index], "little")

    def array(self, index: int, dtype: str, shape: tuple[int, ...]) -> Any:
        """View the memory behind pointer parameter `index` as a row-major numpy array."""
        import numpy

        kind = _numpy_dtype(dtype)
        count = int(numpy.prod(shape, dtype=numpy.int64))
        if not count:
            return numpy.empty(shape, kind)
        memory = _memory(self.pointer(index), count * kind.itemsize)
        return numpy.frombuffer(memory, dtype=kind).reshape(shape)

    def maps(self, index: int) -> list[tuple[int, TensorMap]]:
        """Return the tensor maps in parameter `index`, each behind its offset."""
        data = self.parameters[index]
        found = [(at, decode_map(data[at:])) for at in range(0, len(data) - MAP_BYTES + 1, 64)]
        return [(at, map_) for at, map_ in found if map_ is not None]


def _memory(address: int, size_bytes: int) -> Any:
    return (ctypes.c_ubyte * size_bytes).from_address(address)


def _numpy_dtype(name: str) -> Any:
    import numpy

    try:
        return numpy.dtype(name)
    except TypeError:
        import ml_dtypes

        return numpy.dtype(getattr(ml_dtypes, name))


def read_launch(raw: RawLaunch) -> Launch:
    """Copy a launch out of the driver's memory."""
    sizes = raw.sizes[: raw.parameter_count]
    data = ctypes.string_at(raw.bytes, raw.byte_count)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    attributes = ctypes.string_at(raw.attributes, 72 * raw.attribute_count)
    rows = [attributes[at : at + 72] for at in range(0, len(attributes), 72)]
    return Launch(
        kernel=raw.kernel.decode(),
        grid=tuple(raw.grid),
        block=tuple(raw.block),
        cluster=tuple(raw.cluster) if raw.cluster[0] else None,
        smem_bytes=raw.smem_bytes,
        attributes=tuple((int.from_bytes(row[:4], "little"), row[8:]) for row in rows),
        parameters=tuple(data[at : at + size] for at, size in zip(starts, sizes, strict=True)),
        device=raw.device,
        stream=raw.stream,
        sequence=raw.sequence,
        library=raw.library or 0,
        code=raw.code,
        replayed=bool(raw.replayed),
    )
