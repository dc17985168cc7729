"""Encode tensor maps into memory of our own, through the driver's function pointers.

`CUtensorMap` must lie at a multiple of 64 bytes (128 in the headers of CUDA 13), which objects of
cuda.bindings often do not. Numbers are those of the enumerations `CUtensorMap…` in cuda.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from pallasc.errors import CorruptError, DeviceError
from pallasc.runtime.device.driver import Driver, version_text
from pallasc.specs.artifacts.plan import Im2col, TensorMap
from pallasc.specs.artifacts.tensor_maps import broken_rule

MAP_ALIGNMENT = 128

_DTYPES = {
    "uint8": 0, "uint16": 1, "uint32": 2, "int32": 3, "uint64": 4, "int64": 5, "float16": 6,
    "float32": 7, "float64": 8, "bfloat16": 9,
}  # fmt: skip
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}
_INTERLEAVES = {0: 0, 16: 1, 32: 2}

Encode = Callable[[int, int], int]
"""Writes a tensor map: (where, address of the array) -> the driver's code."""


def encoder_name(tensor_map: TensorMap) -> str:
    """Return the function of the driver that encodes a tensor map."""
    return "cuTensorMapEncodeTiled" if tensor_map.im2col is None else "cuTensorMapEncodeIm2col"


def make_encoder(driver: Driver, tensor_map: TensorMap, kernel: str) -> Encode:
    """Return the function that encodes a tensor map of a kernel, all but the two addresses fixed.

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


def make_replacer(driver: Driver) -> Encode:
    """Return the function that gives an encoded tensor map another address: (map, address)."""
    kind = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    return kind(_address(driver, "cuTensorMapReplaceAddress"))


def _tiled(driver: Driver, m: TensorMap) -> Encode:
    encode = _function(driver, encoder_name(m))
    dtype, rank = _int(_DTYPES[m.dtype]), _int(_rank(m, len(m.strides) + 1, len(m.box)))
    dims, strides = _longs(m.dims), _longs(m.strides)
    box, steps, modes = _ints(m.box), _ints(m.element_strides), _modes(m)

    def write(where: int, address: int) -> int:
        return encode(
            _pointer(where), dtype, rank, _pointer(address), dims, strides, box, steps, *modes
        )

    return write


def _im2col(driver: Driver, m: TensorMap, window: Im2col) -> Encode:
    encode = _function(driver, encoder_name(m))
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
    dtype = _int(_DTYPES[m.dtype])

    def write(where: int, address: int) -> int:
        return encode(_pointer(where), dtype, rank, _pointer(address), *middle)

    return write


def _rank(m: TensorMap, *others: int) -> int:
    """Return the rank; every list that the driver reads must have as many entries."""
    rank = len(m.dims)
    if not 1 <= rank <= 5 or any(other != rank for other in (*others, len(m.element_strides))):
        raise ValueError(f"dims {m.dims} with lists of other lengths")
    return rank


def _modes(m: TensorMap) -> tuple[Any, ...]:
    return tuple(
        _int(value)
        for value in (
            _INTERLEAVES[m.interleave],
            _SWIZZLES[m.swizzle],
            _PROMOTIONS[m.l2_promotion],
            int(m.nan_fill),
        )
    )


def _function(driver: Driver, name: str) -> Callable[..., int]:
    """Return the driver's function; it takes values that are ctypes objects already.

    It holds the interpreter's lock: it only fills in 128 bytes.
    """
    return ctypes.PYFUNCTYPE(ctypes.c_int)(_address(driver, name))


def _address(driver: Driver, name: str) -> int:
    what = "a tensor map cannot be encoded"
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
