"""Reference values: what is written comes back, and what belongs to no variant is refused."""

from __future__ import annotations

import math

import pytest

from pallasc.errors import CorruptError
from pallasc.specs.bundle.tuned import Reference, Sampled, pack_reference, parse_reference
from pallasc.specs.canonical import canonical_json

VALUES = (1.5, -2, math.inf, -math.inf)


def test_values_come_back_those_without_a_number_in_json_too() -> None:
    reference = Reference(9, 0.01, 0.0, (Sampled((0, 1, 5, 7), VALUES), Sampled((), ())))
    assert parse_reference(pack_reference(reference), [(2, 4), ()]) == reference
    nan = Reference(9, 0, 0, (Sampled((0,), (math.nan,)),))
    assert math.isnan(parse_reference(pack_reference(nan), [()]).outputs[0].values[0])


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({"positions": [0], "values": []}, "1 positions for 0 values"),
        ({"positions": [1, 0], "values": [1, 2]}, "not ascending"),
        ({"positions": [8], "values": [1]}, "position 8 of 8 elements"),
        ({"positions": [-1], "values": [1]}, "position -1 of 8 elements"),
        ({"positions": [0], "values": ["many"]}, "many is not the value of an element"),
        ({"positions": [0], "values": [True]}, "True is not the value of an element"),
        ({"values": []}, "'positions' is missing"),
    ],
)
def test_other_values_are_refused(output: object, message: str) -> None:
    data = canonical_json({"schema": 1, "seed": 0, "rtol": 0, "atol": 0, "outputs": [output]})
    with pytest.raises(CorruptError, match=message):
        parse_reference(data, [(8,)])


def test_values_of_another_schema_or_number_of_outputs_are_refused() -> None:
    data = pack_reference(Reference(0, 0, 0, ()))
    with pytest.raises(CorruptError, match="of 0 outputs, not 1"):
        parse_reference(data, [(8,)])
    with pytest.raises(CorruptError, match="schema 2 instead of 1"):
        parse_reference(data.replace(b'"schema":1', b'"schema":2'), [])
