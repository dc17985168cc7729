"""The driver's numbers for what a tensor map says in words: the enumerations `CUtensorMap…`."""

from __future__ import annotations

DTYPES = {
    "uint8": 0, "uint16": 1, "uint32": 2, "int32": 3, "uint64": 4, "int64": 5, "float16": 6,
    "float32": 7, "float64": 8, "bfloat16": 9,
}  # fmt: skip
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}
INTERLEAVES = {0: 0, 16: 1, 32: 2}
