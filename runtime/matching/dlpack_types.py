"""DLPack's codes of element types (`DLDataTypeCode` in `dlpack.h`, version 1.1)."""

from __future__ import annotations

import sys

# Code -> letters of the short name; floats of eight bits or fewer each have their own code.
_CODES = {0: "i", 1: "u", 2: "f", 4: "bf", 5: "c"}
_BOOL = 6
_SMALL_FLOATS = {
    7: "f8e3m4", 8: "f8e4m3", 9: "f8e4m3b11fnuz", 10: "f8e4m3fn", 11: "f8e4m3fnuz", 12: "f8e5m2",
    13: "f8e5m2fnuz", 14: "f8e8m0fnu", 15: "f6e2m3fn", 16: "f6e3m2fn", 17: "f4e2m1fn",
}  # fmt: skip


def short_dtype(code: int, bits: int, lanes: int) -> str:
    """Return the short name of a type; a description of it if there is none."""
    if code == _BOOL and bits == 8 and lanes == 1:
        return "bool"
    if lanes == 1 and code in _CODES:
        return sys.intern(f"{_CODES[code]}{bits}")
    if lanes == 1 and code in _SMALL_FLOATS:
        return _SMALL_FLOATS[code]
    return f"DLPack type {code} of {bits} bits in {lanes} lanes"


def dlpack_code(dtype: str) -> int | None:
    """Return the code of a type by its short name, None if DLPack has none."""
    if dtype == "bool":
        return _BOOL
    for codes in (_SMALL_FLOATS, _CODES):
        for code, name in codes.items():
            if dtype == name or (codes is _CODES and dtype.rstrip("0123456789") == name):
                return code
    return None
