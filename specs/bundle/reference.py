"""Reference values: what results of a variant are compared with where there is no JAX.

A blob of kind 5 of a bundle that is a job for `pallasc tune run`, canonical JSON:

    reference = { "schema": 1, "seed": number, "rtol": number, "atol": number,
                  "outputs": [ { "positions": [number…], "values": [number or text…] }… ] }

`outputs` has one object for each output of the plan, in its order. `positions` are ascending and
count elements in row-major order; `values` has what the reference function gives there for inputs
made from `seed`, as `pallasc run` makes them. What JSON has no number for is text: "nan", "inf",
"-inf". Outputs have at most 4,096 values each.

History:
    1  the first version.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from pallasc.errors import CorruptError
from pallasc.specs.canonical import canonical_json
from pallasc.specs.tuning import as_number
from pallasc.specs.untrusted_json import as_list, as_object, as_whole, fault, parse_json

SCHEMA = 1
MOST_VALUES = 4096
"""Most values of one output."""

_NAMED = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class Sampled(NamedTuple):
    """Some elements of an output.

    Attributes:
        positions: which, counted in row-major order, ascending.
        values: what they must be, within the tolerances.
    """

    positions: tuple[int, ...]
    values: tuple[float, ...]


class Reference(NamedTuple):
    """What results are compared with.

    Attributes:
        seed: what the inputs are made from.
        rtol, atol: how far a result may be off: `abs(a - b) <= atol + rtol * abs(b)`.
        outputs: elements of each output.
    """

    seed: int
    rtol: float
    atol: float
    outputs: tuple[Sampled, ...]


def pack_reference(reference: Reference) -> bytes:
    """Return the bytes of the blob."""
    outputs = [
        {"positions": list(own.positions), "values": [_json(value) for value in own.values]}
        for own in reference.outputs
    ]
    return canonical_json({"schema": SCHEMA, **reference._asdict(), "outputs": outputs})


def parse_reference(data: bytes, shapes: Sequence[Sequence[int]]) -> Reference:
    """Return reference values from the bytes of a blob.

    Args:
        data: the blob.
        shapes: that of each output of the variant.

    Raises:
        CorruptError: they are damaged, or not for such outputs.
    """
    try:
        return _parsed(data, shapes)
    except (LookupError, TypeError, ValueError) as error:
        raise CorruptError(f"reference values are damaged: {fault(error)}") from error


def _parsed(data: bytes, shapes: Sequence[Sequence[int]]) -> Reference:
    value = as_object(parse_json(data))
    if value["schema"] != SCHEMA:
        raise ValueError(f"schema {str(value['schema'])[:20]} instead of {SCHEMA}")
    outputs = as_list(value["outputs"])
    if len(outputs) != len(shapes):
        raise ValueError(f"they are of {len(outputs)} outputs, not {len(shapes)}")
    return Reference(
        seed=as_whole(value["seed"]),
        rtol=as_number(value["rtol"]),
        atol=as_number(value["atol"]),
        outputs=tuple(
            _sampled(own, math.prod(shape)) for own, shape in zip(outputs, shapes, strict=True)
        ),
    )


def _sampled(value: object, size: int) -> Sampled:
    data = as_object(value)
    positions = tuple(map(as_whole, as_list(data["positions"])))
    values = tuple(map(_value, as_list(data["values"])))
    if len(positions) != len(values) or len(values) > MOST_VALUES:
        raise ValueError(f"{len(positions)} positions for {len(values)} values")
    if list(positions) != sorted(set(positions)):
        raise ValueError("positions are not ascending")
    if positions and not 0 <= positions[0] <= positions[-1] < size:
        raise ValueError(f"position {positions[-1]} of {size} elements")
    return Sampled(positions, values)


def _value(value: object) -> float:
    if type(value) is int or type(value) is float:
        return value
    if isinstance(value, str) and value in _NAMED:
        return _NAMED[value]
    raise TypeError(f"{str(value)[:80]} is not the value of an element")


def _json(value: float) -> float | str:
    if math.isnan(value):
        return "nan"
    return value if math.isfinite(value) else ("inf" if value > 0 else "-inf")
