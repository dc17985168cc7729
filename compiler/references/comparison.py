"""Compare results with the references of specs, with sampled values, and with each other.

References are user code. `reference_worker` calls them in a separate process with JAX on the CPU.
Its requests are `Compare`, for a launch, and `Sample`, for some elements of the reference result of
a tuned point. Points that differ only in tuned parameters share a reference, which is called once.
numpy is imported only when arrays are compared.
"""

from __future__ import annotations

import math
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pallasc.compiler.references.arrays import array_of, needing_numpy, numpy_dtype
from pallasc.compiler.toolchain.setup import declared_values, settled
from pallasc.compiler.workers.messages import Reply, Request, Task
from pallasc.compiler.workers.pool import Pool
from pallasc.errors import PallascError
from pallasc.specs.artifacts.plan import Binding, LaunchPlan
from pallasc.specs.bundle.tuned import MOST_VALUES, parse_reference
from pallasc.specs.spec import Tolerance, Variant


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """An array, and the name of the file that contains its bytes as in device memory."""

    array: Binding
    name: str


@dataclass(frozen=True, slots=True)
class LaunchFiles:
    """The inputs and outputs of a launch, in files in one folder."""

    folder: Path
    inputs: tuple[ArrayFile, ...]
    outputs: tuple[ArrayFile, ...]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The index of an element, its value, and the reference's value, both as text."""

    index: tuple[int, ...]
    got: str
    wanted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The differences of an output from the reference, as `--json` prints them.

    See `compare_arrays`.

    Attributes:
        count: number of elements.
        mismatches: number of elements that differ by more than is allowed.
        rtol, atol: the allowed difference.
        max_abs, max_rel: the largest differences, None without finite numbers.
        first: the first mismatch, None without any.
    """

    count: int
    mismatches: int
    rtol: float
    atol: float
    max_abs: float | None
    max_rel: float | None
    first: Mismatch | None

    def to_json(self) -> dict[str, object]:
        """Return the fields that `--json` prints."""
        return asdict(self)


class Compared(Reply, frozen=True, kw_only=True):
    """The comparison of each output."""

    outputs: tuple[Comparison, ...]


class Compare(Request, frozen=True, kw_only=True):
    """Run the reference of a variant and compare; `env` has its declared variables."""

    reply: ClassVar[type[Reply]] = Compared
    variant: Variant
    launched: LaunchFiles
    env: Mapping[str, str | None] = {}


PROGRAM = "pallasc.compiler.references.reference_worker"


Launch = Callable[[int], LaunchFiles]
"""Launches a variant, given its number."""


def compare(
    variants: Sequence[Variant], launch: Launch
) -> Iterator[tuple[int, tuple[Comparison, ...]]]:
    """Launch and compare variants one after another; yield each one's number and comparisons.

    Args:
        variants: variants that have a reference.
        launch: see `Launch`. Its files may be removed when the comparison is yielded.

    Raises:
        PallascError: a launch or a reference fails.
    """
    tasks = [
        _task(number, variant, partial(_compare_request, number, variant, launch))
        for number, variant in enumerate(variants)
    ]
    for number, reply in _replies(tasks):
        yield number, reply.require(Compared).outputs


def _compare_request(number: int, variant: Variant, launch: Launch) -> Compare:
    return Compare(variant=variant, env=declared_values(variant.env), launched=launch(number))


def _task(number: int, variant: Variant, request: Request | Callable[[], Request]) -> Task:
    environment = ("", variant.base_dir, tuple(declared_values(variant.env).items()))
    doing = f"the process that runs the reference of {variant.id}"
    return Task(number, environment, request, doing)


def _replies(tasks: Sequence[Task], **limits: Any) -> Iterator[tuple[int, Reply]]:
    """Yield the number and the reply of each task, in the order of completion."""
    if not tasks:
        return
    with Pool(1, settled(os.environ), program=PROGRAM, tick_s=None, **limits) as pool:
        for _, task, reply in pool.run(tasks):
            if task is not None and reply is not None:
                yield task.label, reply


_SLICE = 1 << 22
"""Number of elements compared at a time, to bound the copies in double precision."""
_ULPS = 4


def settle_tolerance(tolerance: Tolerance | None, dtype: str) -> tuple[float, float]:
    """Return `rtol` and `atol` for results of a type.

    A missing field is 0. Without a tolerance, floating-point numbers may differ by four units in
    the last place, relative to their size or to 1.
    """
    if tolerance is not None:
        return tolerance.rtol or 0.0, tolerance.atol or 0.0
    limit = _ULPS * epsilon(dtype)
    return limit, limit


def epsilon(dtype: str) -> float:
    """Return the distance from 1 to the next number of a type, 0 for integer types."""
    import ml_dtypes

    if dtype == "bool" or dtype[0] in "iu":
        return 0.0
    limits: Any = ml_dtypes.finfo
    return float(limits(numpy_dtype(dtype)).eps)


def compare_arrays(actual: Any, expected: Any, *, rtol: float, atol: float) -> Comparison:
    """Return the differences between two arrays of the same shape.

    Elements match if `|actual - expected| <= atol + rtol * |expected|`, or if both are NaN or the
    same infinity. `max_abs` and `max_rel` cover finite pairs, and are None if there are none;
    `max_rel` skips zeros of the reference.
    """
    import numpy as np

    result, reference = actual.reshape(-1), expected.reshape(-1)
    mismatches, first = 0, None
    max_abs: float | None = None
    max_rel: float | None = None
    for start in range(0, result.size, _SLICE):
        raw = [array[start : start + _SLICE] for array in (result, reference)]
        a, b = map(_widened, raw)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            distance, size = np.abs(a - b), np.abs(b)
            if all(array.dtype.kind in "iu" for array in raw):
                # Adjacent 64-bit integers may be equal in double precision.
                distance[(raw[0] != raw[1]) & (distance == 0)] = 1
            finite = np.isfinite(a) & np.isfinite(b)
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            wrong = np.where(finite, distance > atol + rtol * size, ~same)
            relative = distance[finite & (size > 0)] / size[finite & (size > 0)]
        mismatches += int(np.count_nonzero(wrong))
        if wrong.any() and first is None:
            at = start + int(np.argmax(wrong))
            index = tuple(map(int, np.unravel_index(at, actual.shape)))
            first = Mismatch(index, str(result[at]), str(reference[at]))
        max_abs = _largest(max_abs, distance[finite])
        max_rel = _largest(max_rel, relative)
    return Comparison(
        count=int(result.size),
        mismatches=mismatches,
        rtol=rtol,
        atol=atol,
        max_abs=max_abs,
        max_rel=max_rel,
        first=first,
    )


def _widened(array: Any) -> Any:
    return array.astype("c16" if array.dtype.kind == "c" else "f8")


def _largest(largest: float | None, values: Any) -> float | None:
    if not values.size:
        return largest
    # The distance between two large numbers may be infinite, which JSON cannot express.
    return max(min(float(values.max()), sys.float_info.max), largest or 0.0)


def compare_samples(
    binding: Binding,
    data: bytes,
    positions: Sequence[int],
    values: Sequence[float],
    tolerance: tuple[float, float],
) -> Comparison:
    """Compare some elements of an output with their expected values.

    Args:
        binding: the output.
        data: its bytes.
        positions: indices of the elements in row-major order.
        values: the expected values.
        tolerance: `rtol` and `atol`.

    Raises:
        ToolError: numpy or ml_dtypes is not installed.
    """
    with needing_numpy("results cannot be compared"):
        import numpy as np

        actual = bound_array(binding, data).reshape(-1)[np.array(positions)]
        rtol, atol = tolerance
        compared = compare_arrays(actual, np.array(values, np.float64), rtol=rtol, atol=atol)
        if compared.first is None:
            return compared
        place = np.unravel_index(positions[compared.first.index[0]], binding.shape)
        first = replace(compared.first, index=tuple(map(int, place)))
        return replace(compared, first=first)


def compare_outputs(
    binding: Binding, data: bytes, wanted: bytes, tolerance: tuple[float, float] | None
) -> Comparison:
    """Compare an output with another output of the same type and shape.

    Args:
        binding: the output.
        data: its bytes.
        wanted: the bytes of the other output.
        tolerance: `rtol` and `atol`; None for kernels that may sum in a different order.

    Raises:
        ToolError: numpy or ml_dtypes is not installed.
    """
    with needing_numpy("results cannot be compared"):
        actual, expected = bound_array(binding, data), bound_array(binding, wanted)
        rtol, atol = tolerance or _loose_tolerance(expected, binding.dtype)
        return compare_arrays(actual, expected, rtol=rtol, atol=atol)


def bound_array(binding: Binding, data: bytes) -> Any:
    """Return the numpy array of an input or output from its bytes in device memory."""
    import numpy as np

    flat = np.frombuffer(data, np.uint8)
    return array_of(flat, binding.dtype, binding.shape, binding.layout)


def _loose_tolerance(expected: Any, dtype: str) -> tuple[float, float]:
    """Return `rtol` and `atol` for results that may be summed in another order: half the digits.

    That is the square root of the distance from 1 to the next number, relative to an element or to
    the root mean square of all elements; integers must be equal.
    """
    import numpy as np

    digits = math.sqrt(epsilon(dtype))
    if not digits:
        return 0.0, 0.0
    wide = np.abs(_widened(expected))
    finite = wide[np.isfinite(wide)]
    return digits, digits * math.sqrt(float(np.mean(finite**2))) if finite.size else 0.0


SEED = 0
"""Seed of the inputs: the default of `pallasc run`."""
LONGEST_S = 120
"""Time limit of one reference in seconds; after it, a job continues without these values."""

_MOST_BYTES = 4 << 30
"""Maximum size of the inputs of a reference; JAX on the CPU needs a multiple of it."""


class Sampled(Reply, frozen=True, kw_only=True):
    """The bytes of the reference values, as stored in a bundle."""

    data: bytes


class Sample(Request, frozen=True, kw_only=True):
    """Call the reference of a variant; `env` has its declared variables."""

    reply: ClassVar[type[Reply]] = Sampled
    variant: Variant
    inputs: tuple[Binding, ...]
    outputs: tuple[Binding, ...]
    seed: int
    env: Mapping[str, str | None] = {}


class Samples(NamedTuple):
    """Reference values of a variant as bytes, or None and the reason why there are none."""

    data: bytes | None
    why: str = ""


def positions_of(path: str, size: int, seed: int) -> list[int]:
    """Return the indices of the elements of an output to compare, ascending; all if there are few.

    Args:
        path: path of the output; outputs with different paths get different indices.
        size: number of its elements.
        seed: seed of the choice.
    """
    if size <= MOST_VALUES:
        return list(range(size))
    return sorted(random.Random(f"{seed} {path}").sample(range(size), MOST_VALUES))


def sample_references(
    points: Sequence[tuple[Variant, LaunchPlan]], *, memory_bytes: int | None = None
) -> list[Samples]:
    """Return the reference values of points, in the order of the points.

    Args:
        points: variants and their launch plans, in any order.
        memory_bytes: memory limit of the process; None for no limit.
    """
    found: dict[int, Samples] = {}
    leaders: dict[object, int] = {}
    tasks: list[Task] = []
    for number, (variant, plan) in enumerate(points):
        if leaders.setdefault(_same(variant), number) != number:
            continue
        if why := _why_none(variant, plan):
            found[number] = Samples(None, why)
        else:
            request = Sample(
                variant=variant,
                inputs=plan.inputs,
                outputs=plan.outputs,
                seed=SEED,
                env=declared_values(variant.env),
            )
            tasks.append(_task(number, variant, request))
    for number, reply in _replies(tasks, timeout_s=LONGEST_S, memory_bytes=memory_bytes):
        found[number] = _settled(reply, points[number][1])
    return [found[leaders[_same(variant)]] for variant, _ in points]


def _same(variant: Variant) -> object:
    """Return a key that is equal for variants with the same reference.

    It leaves out the target and tuned parameters.
    """
    over = variant.tuning.over if variant.tuning else ()
    params = tuple((name, value) for name, value in variant.params if name not in over)
    return variant.name, variant.base_dir, params


def _why_none(variant: Variant, plan: LaunchPlan) -> str:
    """Return why there are no reference values, "" if there may be some."""
    if variant.reference is None:
        return "the spec names no reference"
    if variant.mesh:
        return "it runs on several devices"
    if sum(plan.buffers[each.buffer].size for each in plan.inputs) > _MOST_BYTES:
        return f"its inputs take more than {_MOST_BYTES >> 30} GiB"
    return ""


def _settled(reply: Reply, plan: LaunchPlan) -> Samples:
    try:
        data = reply.require(Sampled).data
        parse_reference(data, [output.shape for output in plan.outputs])
    except PallascError as error:
        return Samples(None, error.message)
    return Samples(data)
