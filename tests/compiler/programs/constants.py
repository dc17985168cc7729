"""One constant array of each dtype."""

from typing import Any

import ml_dtypes
import numpy as np

CONSTANTS: dict[str, Any] = {
    "bool": np.arange(5) % 2 == 0,
    "i8": np.array([-128, 127, 3], np.int8),
    "u8": np.array([0, 255, 3], np.uint8),
    "i16": np.array([-32768, 3], np.int16),
    "u16": np.array([65535, 3], np.uint16),
    "i32": np.array([-(2**31), 3], np.int32),
    "u32": np.array([2**32 - 1, 3], np.uint32),
    "i64": np.array([-(2**63), 3], np.int64),
    "u64": np.array([2**64 - 1, 3], np.uint64),
    "f16": np.array([1.5, -2, np.inf], np.float16),
    "bf16": np.array([1.5, -2, 3e38], ml_dtypes.bfloat16),
    "f32": np.array([0x7FA00001, 0x80000000, 0x7F800000], np.uint32).view(np.float32),
    "f64": np.array([1e300, -0.0], np.float64),
    "c64": np.array([1 + 2j, -3j], np.complex64),
    "c128": np.array([1 + 2j, -3j], np.complex128),
    "i4": np.array([-8, 7, 1, 2, -3], ml_dtypes.int4),
    "u4": np.array([15, 1, 2], ml_dtypes.uint4),
    "i2": np.array([-2, 1, 0, -1, 1], ml_dtypes.int2),
    "u2": np.array([3, 1, 2, 0, 1], ml_dtypes.uint2),
    "f8e4m3fn": np.array([1.5, -448], ml_dtypes.float8_e4m3fn),
    "f8e5m2": np.array([1.5, 57344], ml_dtypes.float8_e5m2),
    "f8e4m3": np.array([1.5, -240], ml_dtypes.float8_e4m3),
    "f8e3m4": np.array([1.5, -15.5], ml_dtypes.float8_e3m4),
    "f8e4m3fnuz": np.array([1.5, -240], ml_dtypes.float8_e4m3fnuz),
    "f8e5m2fnuz": np.array([1.5, -57344], ml_dtypes.float8_e5m2fnuz),
    "f8e4m3b11fnuz": np.array([1.5, -30], ml_dtypes.float8_e4m3b11fnuz),
    "f8e8m0fnu": np.array([1.0, 4.0], ml_dtypes.float8_e8m0fnu),
    "f4e2m1fn": np.array([1.5, -6, 0.5], ml_dtypes.float4_e2m1fn),
}

PACKED_BITS = {"i4": 4, "u4": 4, "i2": 2, "u2": 2, "f4e2m1fn": 4}


def dense_bytes(name: str) -> bytes:
    """Return a constant as it lies in device memory: several small elements a byte, low first."""
    values = CONSTANTS[name]
    if name not in PACKED_BITS:
        return bytes(values.tobytes())
    bits = [
        (int(e) >> place) & 1 for e in values.view(np.uint8) for place in range(PACKED_BITS[name])
    ]
    return np.packbits(bits, bitorder="little").tobytes()
