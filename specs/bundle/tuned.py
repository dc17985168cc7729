"""Tuned kernels in a bundle: settings that their variants must agree on, and reference values.

Each row of a tuning table is stored with the variant that it selects. Settings of the kernel as a
whole must be the same in all variants; otherwise, the order of the variants would decide which
variant a call gets.

Without JAX, results of a tuned variant are compared with reference values. A bundle that is a job
for `pallasc tune run` has them in a blob of kind 5, as canonical JSON:

    reference = { "schema": 1, "seed": number, "rtol": number, "atol": number,
                  "outputs": [ { "positions": [number…], "values": [number or text…] }… ] }

`outputs` has one object for each output of the plan, in order. `positions` are ascending element
numbers in row-major order; `values` has the reference function's results at these positions for
inputs made from `seed`, as `pallasc run` makes them. Values without a JSON number are text: "nan",
"inf", "-inf". Each output has at most 4,096 values.

History:
    1  the first version.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import convert, structs, to_builtins
from msgspec.structs import replace

from pallasc.errors import CorruptError, SpecError
from pallasc.specs.bundle.manifest import Entry
from pallasc.specs.canonical import (
    Natural,
    Number,
    StrictStruct,
    canonical_json,
    canonical_text,
    parse_json,
    typed,
)
from pallasc.specs.tuning import Tuning, key_text, use_text

MOST_VALUES = 4096
"""Maximum number of values of one output."""

_SCHEMA = 1
HINT = "Build the bundles from the same specs and the same table, or leave one of them out."
_Value = int | float | Literal["nan", "inf", "-inf"]


class Agreement:
    """Settings, default, and rows of each tuned kernel, from the variants seen so far."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[str, str]] = {}

    def disagreement(self, entry: Entry) -> str | None:
        """Return how an entry contradicts earlier ones, None if it does not."""
        tuning = entry.tuning
        if tuning is None:
            return None
        params = dict(entry.params)
        use = use_text({name: params[name] for name in tuning.over})
        facts = [("tune", "`tune`", _settings(tuning))]
        if tuning.is_default:
            facts.append(("default", "the default", use))
        for row in tuning.rows:
            what = f"the row for {row.gpu} and {key_text(tuning.by, row.key)}"
            facts.append((typed((row.gpu, row.key)), what, use))
        for key, what, own in facts:
            other, elsewhere = self._seen.setdefault((entry.name, key), (own, entry.id))
            if other != own:
                return f"{elsewhere} and {entry.id} disagree on {what}"
        return None


def check_agreement(entries: Iterable[Entry]) -> None:
    """Check that the variants of each tuned kernel agree on its common settings.

    Raises:
        SpecError: two variants differ.
    """
    agreement = Agreement()
    for entry in entries:
        if fault := agreement.disagreement(entry):
            raise SpecError(f"{fault}.", hint=HINT)


def _settings(tuning: Tuning) -> str:
    """Return the settings that all variants of a kernel share, as text."""
    return canonical_text(replace(tuning, is_default=False, rows=(), rank=0).to_json())


# ---- reference values


class Sampled(StrictStruct, frozen=True):
    """Some elements of an output.

    Attributes:
        positions: their numbers in row-major order, ascending.
        values: their expected values, within the tolerances.
    """

    positions: tuple[Natural, ...]
    values: tuple[_Value, ...]


class Reference(StrictStruct, frozen=True):
    """Reference values that results are compared with.

    Attributes:
        seed: the seed of the inputs.
        rtol, atol: allowed difference of a result: `abs(a - b) <= atol + rtol * abs(b)`.
        outputs: elements of each output.
        schema: version of the format.
    """

    seed: Natural
    rtol: Number
    atol: Number
    outputs: tuple[Sampled, ...]
    schema: int = _SCHEMA


def pack_reference(reference: Reference) -> bytes:
    """Return the bytes of the blob with reference values."""
    data = to_builtins(reference)
    for own in data["outputs"]:
        # JSON has no number for these values; their text is str() of them: nan, inf, -inf.
        own["values"] = [value if math.isfinite(value) else str(value) for value in own["values"]]
    return canonical_json(data)


def parse_reference(data: bytes, shapes: Sequence[Sequence[int]]) -> Reference:
    """Parse reference values.

    Args:
        data: the blob.
        shapes: the shape of each output of the variant.

    Raises:
        CorruptError: the values are damaged, or not for such outputs.
    """
    try:
        own = convert(parse_json(data), Reference)
        if own.schema != _SCHEMA:
            raise ValueError(f"schema {own.schema} instead of {_SCHEMA}")
        if len(own.outputs) != len(shapes):
            raise ValueError(f"they are for {len(own.outputs)} outputs, not {len(shapes)}")
        outputs = tuple(map(_checked, own.outputs, map(math.prod, shapes)))
        return structs.replace(own, outputs=outputs)
    except ValueError as error:
        raise CorruptError(f"reference values are damaged: {error}") from error


def _checked(own: Sampled, size: int) -> Sampled:
    positions, count = own.positions, len(own.values)
    if len(positions) != count or count > MOST_VALUES:
        raise ValueError(f"{len(positions)} positions for {count} values")
    if list(positions) != sorted(set(positions)):
        raise ValueError("positions are not ascending")
    if positions and positions[-1] >= size:
        raise ValueError(f"position {positions[-1]} is not in an output of {size} elements")
    return Sampled(positions, tuple(float(v) if isinstance(v, str) else v for v in own.values))
