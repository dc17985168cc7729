"""Decoding and arithmetic of the element types of matrix instructions."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from pallasc.emulator.tensors.misuse import unsupported

ELEMENT_BYTES = {
    "f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1,
}  # fmt: skip
"""Element types of operands by their names in PTX, and their sizes."""

_ACCUMULATORS = {"f32": np.float32, "f16": np.float16, "f64": np.float64}

_TF32_MASK = np.uint32(0xFFFFE000)
_BYTES = np.arange(256, dtype=np.uint8)
_OF_BYTE = {
    "e4m3": _BYTES.view(ml_dtypes.float8_e4m3fn).astype(np.float64),
    "e5m2": _BYTES.view(ml_dtypes.float8_e5m2).astype(np.float64),
    "s8": _BYTES.view(np.int8).astype(np.float64),
    "u8": _BYTES.astype(np.float64),
}


def decode(raw: np.ndarray, dtype: str) -> np.ndarray:
    """Decode elements to float64, which represents all of them exactly.

    For tf32, the 13 low bits of 32 are ignored (PTX ISA 9.0, 5.2.3, leaves them undefined).

    Args:
        raw: unsigned integers of the type's size.
        dtype: f16, bf16, tf32, e4m3, e5m2, s8 or u8.

    Raises:
        UnsupportedError: any other type.
    """
    if dtype in _OF_BYTE:
        found: np.ndarray = _OF_BYTE[dtype][raw]
        return found
    if dtype == "f16":
        narrow: np.ndarray = raw.view(np.float16)
    elif dtype == "bf16":
        narrow = (raw.astype(np.uint32) << 16).view(np.float32)
    elif dtype == "tf32":
        narrow = (raw & _TF32_MASK).view(np.float32)
    else:
        raise unsupported(f"matrix elements of type {dtype}")
    return narrow.astype(np.float64)


def decode_words(words: np.ndarray, dtype: str) -> np.ndarray:
    """Decode elements packed in registers along the last dimension, lowest bits first.

    Args:
        words: uint32, or uint64 for f64.
        dtype: a type of `decode`, s4, u4 or f64.

    Raises:
        UnsupportedError: any other type.
    """
    if dtype == "f64":
        return words.view(np.float64)
    if dtype in ("s4", "u4"):
        packed = words.view(np.uint8)
        pairs = np.stack([packed & 15, packed >> 4], axis=-1).astype(np.float64)
        numbers = pairs.reshape(*packed.shape[:-1], -1)
        return np.where(numbers > 7, numbers - 16, numbers) if dtype == "s4" else numbers
    if dtype not in ELEMENT_BYTES:
        raise unsupported(f"matrix elements of type {dtype}")
    return decode(words.view(f"u{ELEMENT_BYTES[dtype]}"), dtype)


def multiply_add(
    a: np.ndarray,
    b: np.ndarray,
    accumulator: np.ndarray | None,
    dtype: str,
    *,
    saturate: bool = False,
) -> np.ndarray:
    """Return `a @ b.T + accumulator` in the type of an instruction's accumulators.

    Products are exact. The sum of all products of one instruction is computed in float64, the
    accumulator is added, and the result is rounded once, to nearest even. Tensor cores instead
    align all summands to the largest and truncate low bits, so that their last bits differ: for f32
    by about 2^-23 of the largest summand, for 8-bit floats on Hopper by about 2^-13 (CUTLASS
    promotes such sums to full precision for that reason). Integers are exact, and wrap unless they
    saturate.

    Args:
        a: float64[m, k].
        b: float64[n, k].
        accumulator: [m, n], of the type `dtype`; None for zeros.
        dtype: f32, f16, f64 or s32.
        saturate: True to clamp integers instead of wrapping.
    """
    with np.errstate(all="ignore"):
        total: np.ndarray = a @ b.T
        if dtype == "s32":
            exact: np.ndarray = total.astype(np.int64)
            if accumulator is not None:
                exact += accumulator
            if saturate:
                np.clip(exact, -(1 << 31), (1 << 31) - 1, out=exact)
            return exact.astype(np.int32)
        if accumulator is not None:
            total += accumulator
        return total.astype(_ACCUMULATORS[dtype])
