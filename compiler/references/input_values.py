"""Numbers for inputs that the user does not give: the same for the same seed, on every machine.

They are random bits of which some are fixed, so that every pattern is a number that kernels can
compute with:

* floating point: either sign, magnitudes from 1/8 up to 2, neither infinity nor NaN; for types
  whose exponent has fewer than four bits or another bias, what the same bits mean there
* whole numbers of up to 8 bits: all values; wider ones, which often count or index: 0 to 15
* `bool`: either
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator

from pallasc.specs.dtypes import parse_dtype

_CHUNK_BYTES = 3 << 18
"""Holds whole elements of every size, six bits included."""
_WIDEST_OF_ANY_VALUE = 8
_SMALL = 0xF
_FREE_EXPONENT_BITS = 2
_SMALL_FLOAT = re.compile(r"f(?P<bits>\d)e(?P<exponent>\d)m(?P<mantissa>\d)\w*")
_EXPONENT_BITS = {"f16": 5, "bf16": 8, "f32": 8, "f64": 11, "c64": 8, "c128": 11}
_MANTISSA_BITS = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52, "c64": 23, "c128": 52}


def random_bytes(dtype: str, size: int, *, seed: int, name: str) -> bytes:
    """Return the bytes of an array as they lie in device memory.

    Args:
        dtype: short name of the element type.
        size: how many bytes.
        seed: chooses the numbers.
        name: of the array; arrays of different names hold different numbers.
    """
    return b"".join(_chunks(dtype, size, random.Random(f"{seed} {name} {dtype}")))


def names_by_device(name: str, count: int) -> list[str]:
    """Return what `random_bytes` is given as the name of an array on each of several devices."""
    return [name, *(f"{name} of device {device}" for device in range(1, count))]


def _chunks(dtype: str, size: int, source: random.Random) -> Iterator[bytes]:
    free, fixed = (_repeated(pattern, dtype) for pattern in bit_patterns(dtype))
    for start in range(0, size, _CHUNK_BYTES):
        bits = int.from_bytes(source.randbytes(_CHUNK_BYTES), "little")
        chunk = (bits & free | fixed).to_bytes(_CHUNK_BYTES, "little")
        yield chunk[: min(size - start, _CHUNK_BYTES)]


def _repeated(pattern: int, dtype: str) -> int:
    """Return a pattern for one element as a number that covers a whole chunk."""
    bits = _pattern_bits(dtype)
    unit_bytes = math.lcm(bits, 8) // 8
    unit = sum(pattern << at for at in range(0, 8 * unit_bytes, bits)).to_bytes(
        unit_bytes, "little"
    )
    return int.from_bytes(unit * (_CHUNK_BYTES // unit_bytes), "little")


def _pattern_bits(dtype: str) -> int:
    """Return the bits of an element, of a part of it where it is complex."""
    bits = parse_dtype(dtype).bits
    return bits // 2 if dtype.startswith("c") else bits


def bit_patterns(dtype: str) -> tuple[int, int]:
    """Return which bits of an element are random, and which are always set.

    For a complex type, this describes each part of an element.
    """
    bits = _pattern_bits(dtype)
    if dtype == "bool":
        return 1, 0
    if dtype[0] in "iu":
        return ((1 << bits) - 1 if bits <= _WIDEST_OF_ANY_VALUE else _SMALL), 0
    small = _SMALL_FLOAT.match(dtype)
    exponent = int(small["exponent"]) if small else _EXPONENT_BITS[dtype]
    mantissa = int(small["mantissa"]) if small else _MANTISSA_BITS[dtype]
    # The exponent of 1 is 0111…1: of the three below it and itself only the last two bits differ.
    first = ((1 << (exponent - 1)) - 1) >> _FREE_EXPONENT_BITS << _FREE_EXPONENT_BITS
    sign = (1 << (bits - 1)) if bits > exponent + mantissa else 0
    free = sign | (((1 << _FREE_EXPONENT_BITS) - 1) << mantissa) | ((1 << mantissa) - 1)
    return free, first << mantissa
