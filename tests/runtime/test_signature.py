"""What the caller passes: order, aliases, damaged plans."""

from __future__ import annotations

import json
from typing import Any

import made
import pytest

from pallasc.errors import ArgumentError, CorruptError
from pallasc.specs.artifacts.signature import Signature


def _signature(**changes: Any) -> Signature:
    return Signature.of(made.artifact(code=b"none", **changes).plan)


def test_outputs_know_where_they_come_from() -> None:
    signature = _signature(outputs=["f32[4, 64]", "b", "i8[4]"])
    assert signature.sources == (("result", 0), ("input", 1), ("result", 1))
    assert [array.path for array in signature.results] == ["out.0", "out.2"]
    assert [array.path for array in signature.passed] == ["a", "b", "out.0", "out.2"]
    assert signature.sizes_bytes == (1024, 1024, 1024, 4)


@pytest.mark.parametrize(
    ("pointers", "message"),
    [
        ((4096, 1024, 2048), None),
        ((4096, 4096, 1024), None),
        ((1024, 0, 2048), "b has 1024 bytes, and its address is 0."),
        (
            (16, 1024, 2048),
            "a starts at 0x10, misaligned by 16 bytes: the kernel requires multiples of 256",
        ),
        (
            (4096, 1024, 2049),
            "out starts at 0x801, misaligned by 1 bytes: the kernel requires multiples of 256",
        ),
        ((1024, 4096, 1792), "the memory for out overlaps a"),
        ((8192, 2048, 1280), "the memory for out overlaps b"),
        ((2048, 4096, 2048), "the memory for out overlaps a"),
    ],
)
def test_addresses_are_checked(pointers: Any, message: str | None) -> None:
    signature = _signature()
    if message is None:
        signature.check_addresses("made", pointers)
        return
    with pytest.raises(ArgumentError) as caught:
        signature.check_addresses("made", pointers)
    assert caught.value.message.startswith(f"made: {message}")


def _damaged(**changes: Any) -> Any:
    whole = made.artifact(code=b"none").record["plan"]
    plan = json.loads(json.dumps(whole))
    for place, value in changes.items():
        where, number, field = place.split("__")
        plan[where][int(number)][field] = value
    from pallasc.specs.artifacts.plan import plan_from_json

    return plan_from_json(plan)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"buffers__0__size": 2048}, "array a has 1024 bytes, and its buffer 2048"),
        ({"buffers__2__role": "temporary"}, "array out lies in a temporary buffer"),
        ({"buffers__1__alignment": 0}, "array b is aligned to 0 bytes"),
        ({"inputs__1__buffer": 0}, "nobody provides input buffer 1"),
    ],
)
def test_a_damaged_plan_is_refused(changes: Any, message: str) -> None:
    with pytest.raises(CorruptError, match=message):
        Signature.of(_damaged(**changes))
