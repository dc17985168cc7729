"""Kernel parameters in memory, for launches through cuda-python.

Parameters by value are aligned to 128 bytes, since `CUtensorMap` must be 64-byte aligned (128 in
the headers of CUDA 13), which objects of cuda.bindings often are not. For the same reason tensor
maps are encoded by calling the driver's function pointers on our own memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from pallasc.errors import CorruptError, DeviceError
from pallasc.runtime.device.answers import version_text
from pallasc.runtime.device.devices import Driver
from pallasc.specs.artifacts.plan import (
    DTYPES,
    INTERLEAVES,
    MAP_BYTES,
    PROMOTIONS,
    SWIZZLES,
    Bytes,
    Im2col,
    Launch,
    Pointer,
    TensorMap,
    broken_rule,
)

_ALIGNMENT = 128

_Encode = Callable[[int, int], int]
"""Encode a tensor map: (destination, address of the array) -> the driver's result code."""


class Parameters:
    """The parameters of one launch of a plan.

    Args:
        driver: the opened driver.
        launch: the launch.

    Raises:
        CorruptError: a tensor map breaks a rule of the driver.
        DeviceError: the driver cannot encode tensor maps.
    """

    def __init__(self, driver: Driver, launch: Launch) -> None:
        self._driver = driver
        self._kernel = launch.kernel
        self._parameters = launch.parameters
        self._encoders = {
            id(tensor_map): _make_encoder(driver, tensor_map, launch.kernel)
            for parameter in launch.parameters
            if isinstance(parameter, Bytes)
            for _, tensor_map in parameter.tensor_maps
        }

    def for_buffers(self, addresses: Sequence[int]) -> tuple[Any, int]:
        """Return the parameters for buffers at these addresses.

        Returns:
            The memory that holds them, to keep until the launch call returns, and the address of
            the array of pointers to them: `kernelParams` of cuLaunchKernelEx.

        Raises:
            DriverError: the driver refuses a tensor map.
        """
        memory: list[Any] = []
        for parameter in self._parameters:
            if isinstance(parameter, Pointer):
                memory.append(ctypes.c_uint64(addresses[parameter.buffer] + parameter.offset))
            elif isinstance(parameter, Bytes):
                memory.append(self._value(parameter, addresses))
        places = [ctypes.addressof(own) for own in memory]
        array = (ctypes.c_void_p * max(1, len(places)))(*places)
        return (memory, array), ctypes.addressof(array)

    def _value(self, parameter: Bytes, addresses: Sequence[int]) -> Any:
        """Return a parameter passed by value, with its tensor maps encoded."""
        value = _aligned(parameter.size)
        data = bytes.fromhex(parameter.data)
        ctypes.memmove(value, data, len(data))
        for offset, tensor_map in parameter.tensor_maps:
            # A parameter may hold a map where the driver does not write one.
            encoded = _aligned(MAP_BYTES)
            address = addresses[tensor_map.buffer] + tensor_map.offset
            code = self._encoders[id(tensor_map)](ctypes.addressof(encoded), address)
            if code:
                what = f"a tensor map of {self._kernel} cannot be encoded"
                raise self._driver.error(code, _encoder_name(tensor_map), what)
            ctypes.memmove(ctypes.addressof(value) + offset, encoded, MAP_BYTES)
        return value


def _aligned(size: int) -> Any:
    """Return `size` zeros in memory at a multiple of 128."""
    memory = ctypes.create_string_buffer(size + _ALIGNMENT)
    return (ctypes.c_char * size).from_buffer(memory, -ctypes.addressof(memory) % _ALIGNMENT)


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
