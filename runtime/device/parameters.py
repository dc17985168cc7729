"""Kernel parameters in memory: one block per plan, filled once and read at each launch.

A block serves all launches of a plan. It holds the arrays of parameter pointers that `kernelParams`
requires, the pointers passed as parameters, and the parameters passed by value, each aligned to 128
bytes, with their tensor maps encoded in place.

For the first block, tensor maps are encoded by calling the driver's function pointers on our own
memory: `CUtensorMap` must be 64-byte aligned (128 in the headers of CUDA 13), which objects of
cuda.bindings often are not. Later blocks are copies with the addresses replaced, at a third of the
cost.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

from pallasc.errors import CorruptError, DeviceError
from pallasc.runtime.device.answers import version_text
from pallasc.runtime.device.devices import Driver
from pallasc.specs.artifacts.plan import MAP_BYTES, Bytes, Im2col, Launch, Pointer, TensorMap
from pallasc.specs.artifacts.tensor_maps import (
    DTYPES,
    INTERLEAVES,
    PROMOTIONS,
    SWIZZLES,
    broken_rule,
)

_MAP_ALIGNMENT = 128

_Encode = Callable[[int, int], int]
"""Encode a tensor map: (destination, address of the array) -> the driver's result code."""

_BLOCKS_AT_A_TIME = 16


@dataclass(frozen=True, slots=True)
class _Map:
    """A tensor map: its offset in the block, the array it describes, and its encoder."""

    at: int
    buffer: int
    offset: int
    encode: _Encode
    function: str
    kernel: str
    is_aligned: bool


class _Place(NamedTuple):
    """Memory for a block.

    Attributes:
        memory: the allocation that it is part of.
        at: its offset in the allocation.
        base: its address.
        targets: the addresses of the parameters in it, in order.
    """

    memory: Any
    at: int
    base: int
    targets: tuple[int, ...]


class _Block:
    """Owner of a block's memory; the memory is free for reuse when the owner is gone."""

    __slots__ = ("_place", "_spare")

    def __init__(self, place: _Place, spare: list[_Place]) -> None:
        self._place = place
        self._spare = spare

    def __del__(self) -> None:
        # The driver copies parameters during the launch call, so no launch reads them any more.
        self._spare.append(self._place)


class ParameterBlocks:
    """Parameter blocks for a plan's launches.

    Args:
        driver: the opened driver.
        launches: the launches of the plan.

    Attributes:
        starts: the offset in a block of each launch's `kernelParams` array.
    """

    def __init__(self, driver: Driver, launches: Sequence[Launch]) -> None:
        self._driver = driver
        self.starts: list[int] = []
        counts = [len(launch.parameters) for launch in launches]
        passed = [
            (parameter.buffer, parameter.offset)
            for launch in launches
            for parameter in launch.parameters
            if isinstance(parameter, Pointer)
        ]
        self._passed = tuple(passed)
        self._passed_whole = _getter(passed)
        words = 8 * (sum(counts) + len(passed))
        self._values_at = _align(words)
        self._targets: list[int] = []
        self._maps: list[_Map] = []
        values = bytearray()
        pointer_at = 8 * sum(counts)
        for launch in launches:
            self.starts.append(8 * len(self._targets))
            for parameter in launch.parameters:
                if isinstance(parameter, Pointer):
                    self._targets.append(pointer_at)
                    pointer_at += 8
                elif isinstance(parameter, Bytes):
                    self._targets.append(self._values_at + len(values))
                    values += self._value(parameter, self._targets[-1], launch.kernel)
        self._values = bytes(values)
        gap = self._values_at - words
        self._layout = struct.Struct(f"={words // 8}Q{gap}x{len(values)}s")
        # `_values` with encoded tensor maps, set when the first block has been encoded.
        self._encoded: bytes | None = None
        self._replace = _make_replacer(driver) if self._maps else None
        self._spare: list[_Place] = []

    @property
    def values(self) -> bytes | None:
        """All parameters passed by value, with tensor maps for the addresses of the first block.

        None until the first block has been encoded.
        """
        return self._encoded if self._maps else self._values

    def _value(self, parameter: Bytes, start: int, kernel: str) -> bytes:
        for offset, tensor_map in parameter.tensor_maps:
            self._maps.append(
                _Map(
                    start + offset,
                    tensor_map.buffer,
                    tensor_map.offset,
                    _make_encoder(self._driver, tensor_map, kernel),
                    _encoder_name(tensor_map),
                    kernel,
                    (start + offset) % _MAP_ALIGNMENT == 0,
                )
            )
        return bytes.fromhex(parameter.data).ljust(value_bytes(parameter), b"\0")

    def make(self, addresses: Sequence[int]) -> tuple[Any, int]:
        """Return a block for buffers at these addresses: its owner, and its address.

        Once nothing refers to the owner, its memory is reused for another block.

        Raises:
            DriverError: the driver refuses a tensor map.
        """
        try:
            place = self._spare.pop()
        except IndexError:
            place = self._allocate()
        block = _Block(place, self._spare)
        memory, start, base, targets = place
        encoded = self._encoded
        self._layout.pack_into(
            memory,
            start,
            *targets,
            *(
                self._passed_whole(addresses)
                if self._passed_whole is not None
                else [addresses[buffer] + offset for buffer, offset in self._passed]
            ),
            self._values if encoded is None else encoded,
        )
        if self._maps:
            self._set_maps(base, addresses, encoded is not None)
        return block, base

    def _set_maps(self, base: int, addresses: Sequence[int], are_encoded: bool) -> None:
        """Make the tensor maps of a block describe buffers at these addresses."""
        replace = self._replace
        if not are_encoded or replace is None:
            for tensor_map in self._maps:
                self._encode(
                    tensor_map,
                    base + tensor_map.at,
                    addresses[tensor_map.buffer] + tensor_map.offset,
                )
            self._encoded = ctypes.string_at(base + self._values_at, len(self._values))
            return
        for tensor_map in self._maps:
            address = addresses[tensor_map.buffer] + tensor_map.offset
            code = replace(base + tensor_map.at, address) if tensor_map.is_aligned else 1
            if code:
                self._encode(tensor_map, base + tensor_map.at, address)

    def _encode(self, tensor_map: _Map, where: int, address: int) -> None:
        if tensor_map.is_aligned:
            code = tensor_map.encode(where, address)
        else:
            scratch = ctypes.create_string_buffer(MAP_BYTES + _MAP_ALIGNMENT)
            aside = _align(ctypes.addressof(scratch))
            code = tensor_map.encode(aside, address)
            ctypes.memmove(where, aside, MAP_BYTES)
        if code:
            what = f"a tensor map of {tensor_map.kernel} cannot be encoded"
            raise self._driver.error(code, tensor_map.function, what)

    def _allocate(self) -> _Place:
        """Return memory for a block, and add memory for more blocks to the spare list."""
        step = _align(max(1, self._layout.size))
        memory = (ctypes.c_char * (step * _BLOCKS_AT_A_TIME + _MAP_ALIGNMENT))()
        start = ctypes.addressof(memory)
        gap = _align(start) - start
        made = []
        for at in range(gap, gap + step * _BLOCKS_AT_A_TIME, step):
            base = start + at
            made.append(_Place(memory, at, base, tuple(base + own for own in self._targets)))
        self._spare.extend(made[1:])
        return made[0]


def _getter(passed: Sequence[tuple[int, int]]) -> Callable[[Sequence[int]], Sequence[int]] | None:
    """Return a getter of the passed pointers; None for fewer than two, or if one has an offset."""
    if len(passed) < 2 or any(offset for _, offset in passed):
        return None
    return itemgetter(*(buffer for buffer, _ in passed))


def value_bytes(parameter: Bytes) -> int:
    """Return the space that a parameter passed by value takes in a block."""
    return _align(parameter.size)


def launch_config(driver: Driver, launch: Launch, stream: int) -> Any:
    """Return the `CUlaunchConfig` of a launch in a stream."""
    bindings = driver.bindings
    config = bindings.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
    config.sharedMemBytes = launch.dynamic_smem_bytes
    config.hStream = bindings.CUstream(stream)
    attributes = []
    if launch.cluster is not None:
        cluster = bindings.CUlaunchAttribute()
        cluster.id = bindings.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        dim = cluster.value.clusterDim
        dim.x, dim.y, dim.z = launch.cluster
        attributes.append(cluster)
    if launch.pdl:
        pdl = bindings.CUlaunchAttribute()
        pdl.id = bindings.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        pdl.value.programmaticStreamSerializationAllowed = 1
        attributes.append(pdl)
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config


def _align(size: int) -> int:
    return -(-size // _MAP_ALIGNMENT) * _MAP_ALIGNMENT


def _encoder_name(tensor_map: TensorMap) -> str:
    return "cuTensorMapEncodeTiled" if tensor_map.im2col is None else "cuTensorMapEncodeIm2col"


def _make_encoder(driver: Driver, tensor_map: TensorMap, kernel: str) -> _Encode:
    """Return a function that encodes a kernel's tensor map, with all but the two addresses fixed.

    Raises:
        CorruptError: the map breaks a rule of the driver.
        DeviceError: the driver cannot encode it.
    """
    try:
        broken = broken_rule(tensor_map)
        if broken is not None:
            raise CorruptError(f"the driver would refuse a tensor map of {kernel}: {broken}")
        if tensor_map.im2col is None:
            return _tiled(driver, tensor_map)
        return _im2col(driver, tensor_map, tensor_map.im2col)
    except (LookupError, TypeError, ValueError) as error:
        raise CorruptError(f"a tensor map of the plan is damaged: {error!r}") from error


def _make_replacer(driver: Driver) -> _Encode:
    """Return the function that replaces the address in an encoded tensor map: (map, address)."""
    kind = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    return kind(function_address(driver, "cuTensorMapReplaceAddress"))


def _tiled(driver: Driver, m: TensorMap) -> _Encode:
    encode = _function(driver, _encoder_name(m))
    dtype, rank = _int(DTYPES[m.dtype]), _int(_rank(m, len(m.strides) + 1, len(m.box)))
    dims, strides = _longs(m.dims), _longs(m.strides)
    box, steps, modes = _ints(m.box), _ints(m.element_strides), _modes(m)

    def write(where: int, address: int) -> int:
        return encode(
            _pointer(where), dtype, rank, _pointer(address), dims, strides, box, steps, *modes
        )

    return write


def _im2col(driver: Driver, m: TensorMap, window: Im2col) -> _Encode:
    encode = _function(driver, _encoder_name(m))
    rank = _int(_rank(m, len(m.strides) + 1))
    middle: tuple[Any, ...] = (
        _longs(m.dims),
        _longs(m.strides),
        _ints(tuple(window["lower"])),
        _ints(tuple(window["upper"])),
        _int(window["channels_per_pixel"]),
        _int(window["pixels_per_column"]),
        _ints(m.element_strides),
        *_modes(m),
    )
    dtype = _int(DTYPES[m.dtype])

    def write(where: int, address: int) -> int:
        return encode(_pointer(where), dtype, rank, _pointer(address), *middle)

    return write


def _rank(m: TensorMap, *others: int) -> int:
    """Return the rank; every list that the driver reads must have that many entries."""
    rank = len(m.dims)
    if not 1 <= rank <= 5 or any(other != rank for other in (*others, len(m.element_strides))):
        raise ValueError(f"dims {m.dims} with lists of other lengths")
    return rank


def _modes(m: TensorMap) -> tuple[Any, ...]:
    return tuple(
        _int(value)
        for value in (
            INTERLEAVES[m.interleave],
            SWIZZLES[m.swizzle],
            PROMOTIONS[m.l2_promotion],
            int(m.nan_fill),
        )
    )


def _function(driver: Driver, name: str) -> Callable[..., int]:
    """Return a driver function; its arguments must be ctypes objects.

    It does not release the GIL, since it only fills in 128 bytes.
    """
    return ctypes.PYFUNCTYPE(ctypes.c_int)(function_address(driver, name))


def function_address(
    driver: Driver, name: str, what: str = "a tensor map cannot be encoded"
) -> int:
    """Return the address of a driver function.

    Raises:
        DeviceError: the driver has no such function.
    """
    address, status = driver.call("cuGetProcAddress", name.encode(), 12000, 0, what=what)
    if not address or int(status):
        raise DeviceError(
            f"{what}: the driver for CUDA {version_text(driver.version)} has no {name}.",
            hint="Install a newer NVIDIA driver.",
        )
    return int(address)


_pointer, _int = ctypes.c_void_p, ctypes.c_uint32


def _longs(values: tuple[int, ...]) -> Any:
    return (ctypes.c_uint64 * max(1, len(values)))(*values)


def _ints(values: tuple[int, ...]) -> Any:
    return (ctypes.c_int32 * len(values))(*(ctypes.c_int32(value).value for value in values))
