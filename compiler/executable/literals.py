"""The bytes of an HLO constant, as they lie in device memory.

A `LiteralProto` (`xla/xla_data.proto`) holds its elements in the order of its shape's layout, each
element type in a field of its own: numbers for 32 and 64 bits, bytes for the rest. Elements of one,
two and four bits take a byte each there; in device memory a byte holds several, the first one in
its lowest bits (`PackIntN` in `xla/util.h`).
"""

from __future__ import annotations

import struct
from typing import Any

from pallasc.errors import CompileError

# xla.PrimitiveType -> (field, struct format; None where the field holds the bytes as they are).
_FIELDS = {
    1: ("preds", "?"), 2: ("s8s", None), 3: ("s16s", None), 4: ("s32s", "i"), 5: ("s64s", "q"),
    6: ("u8s", None), 7: ("u16s", None), 8: ("u32s", "I"), 9: ("u64s", "Q"), 10: ("f16s", None),
    11: ("f32s", "I"), 12: ("f64s", "Q"), 15: ("c64s", "I"), 16: ("bf16s", None),
    18: ("c128s", "Q"), 19: ("f8e5m2s", None), 20: ("f8e4m3fns", None), 21: ("s4s", None),
    22: ("u4s", None), 23: ("f8e4m3b11fnuzs", None), 24: ("f8e5m2fnuzs", None),
    25: ("f8e4m3fnuzs", None), 26: ("s2s", None), 27: ("u2s", None), 28: ("f8e4m3s", None),
    29: ("f8e3m4s", None), 32: ("f4e2m1fns", None), 33: ("f8e8m0fnus", None),
    30: ("s1s", None), 31: ("u1s", None),
}  # fmt: skip

_PACKED_BITS = {21: 4, 22: 4, 26: 2, 27: 2, 30: 1, 31: 1, 32: 4}


def literal_bytes(literal: Any) -> bytes:
    """Return the bytes of a `LiteralProto`.

    Raises:
        CompileError: its element type has no field here.
    """
    kind = literal.shape.element_type
    if kind not in _FIELDS:
        raise CompileError(f"a constant has element type {kind}, which is not known here")
    name, code = _FIELDS[kind]
    value = getattr(literal, name)
    if code is not None:
        return struct.pack(f"<{len(value)}{code}", *value)
    bits = _PACKED_BITS.get(kind)
    return _packed(value, bits) if bits else bytes(value)


def _packed(elements: bytes, bits: int) -> bytes:
    """Return elements that take a byte each as a dense array of `bits` bits, a part of 8."""
    step, mask = 8 // bits, (1 << bits) - 1
    groups = (elements[start : start + step] for start in range(0, len(elements), step))
    return bytes(
        sum((element & mask) << (bits * place) for place, element in enumerate(group))
        for group in groups
    )
