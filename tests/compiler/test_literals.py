"""Constants in the bytes of device memory."""

from __future__ import annotations

import numpy as np
import pytest

from pallasc.compiler.executable.allocations import literal_bytes
from pallasc.compiler.executable.xla_schema import message_type
from pallasc.errors import CompileError


def _literal(kind: int, **fields: object) -> object:
    return message_type("Literal")(shape={"element_type": kind}, **fields)


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        (1, {"preds": [True, False, True]}, b"\1\0\1"),
        (2, {"s8s": b"\x80\x7f"}, b"\x80\x7f"),
        (3, {"s16s": b"\1\2\3\4"}, b"\1\2\3\4"),
        (4, {"s32s": [-1, 2]}, np.array([-1, 2], np.int32).tobytes()),
        (5, {"s64s": [-1, 2]}, np.array([-1, 2], np.int64).tobytes()),
        (8, {"u32s": [1 << 31]}, np.array([1 << 31], np.uint32).tobytes()),
        (9, {"u64s": [1 << 63]}, np.array([1 << 63], np.uint64).tobytes()),
        (11, {"f32s": [0x7FA00001]}, b"\1\0\xa0\x7f"),
        (12, {"f64s": [0x7FF4000000000001]}, b"\1\0\0\0\0\0\xf4\x7f"),
        (15, {"c64s": [0x3F800000, 0]}, np.array([1], np.complex64).tobytes()),
        (21, {"s4s": b"\x08\x07\x0f"}, b"\x78\x0f"),
        (22, {"u4s": b"\x01\x02\x03\x04"}, b"\x21\x43"),
        (26, {"s2s": b"\x03\x01\x00\x02\x01"}, b"\x87\x01"),
        (30, {"s1s": b"\x01\x00\x01\x01\x00\x00\x00\x01\x01"}, b"\x8d\x01"),
        (32, {"f4e2m1fns": b"\x0f\x01"}, b"\x1f"),
        (33, {"f8e8m0fnus": b"\x7f"}, b"\x7f"),
    ],
)
def test_elements_lie_as_the_device_reads_them(
    kind: int, fields: dict[str, object], expected: bytes
) -> None:
    assert literal_bytes(_literal(kind, **fields)) == expected


def test_elements_are_in_the_order_of_the_layout_already() -> None:
    literal = message_type("Literal")(
        shape={"element_type": 4, "dimensions": [2, 3], "layout": {"minor_to_major": [0, 1]}},
        s32s=[0, 3, 1, 4, 2, 5],
    )
    expected = np.arange(6, dtype=np.int32).reshape(2, 3).tobytes("F")
    assert literal_bytes(literal) == expected


def test_an_element_type_that_is_not_known_is_refused() -> None:
    with pytest.raises(CompileError, match="a constant has the unknown element type 35"):
        literal_bytes(_literal(35))
