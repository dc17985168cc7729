"""Figures of a kernel's speed, from the times of its launches, its bytes and its operations."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pallasc.errors import SpecError
from pallasc.specs.templates import Scalar, parse_template

if TYPE_CHECKING:
    from pallasc.cli.launching.chip import Limits
    from pallasc.specs.artifacts.signature import Signature
    from pallasc.specs.spec import Variant

_PERCENTILE = 0.9


@dataclass(frozen=True, slots=True)
class Figures:
    """How fast a kernel is.

    Attributes:
        median_us, min_us, p90_us: of the times of single launches; nine of ten take p90 at most.
        moved_bytes: its inputs and outputs, each once.
        gb_per_s: these by the median, in 10^9 bytes a second; None where the median is 0.
        memory_share: of what the GPU's memory can do; None where that is not known, or where the
            arrays may lie in the L2 cache instead.
        flop: operations of a launch, as the user says, None where the user does not.
        tflop_per_s: these by the median.
    """

    median_us: float
    min_us: float
    p90_us: float
    moved_bytes: int
    gb_per_s: float | None
    memory_share: float | None
    flop: float | None
    tflop_per_s: float | None

    @classmethod
    def of(
        cls,
        times_us: Sequence[float],
        *,
        moved_bytes: int,
        flop: float | None,
        limits: Limits | None,
        cold: bool,
    ) -> Figures:
        """Return the figures for the times of launches, at least one.

        Args:
            times_us: of each launch.
            moved_bytes: see `moved_bytes`.
            flop: operations of a launch, if they are known.
            limits: those of the GPU's model, if it is known.
            cold: the L2 cache was emptied before each launch.
        """
        median_us = statistics.median(times_us)
        gb_per_s = moved_bytes / median_us / 1e3 if median_us else None
        share = None
        if gb_per_s is not None and limits and (cold or moved_bytes > limits.l2_bytes):
            share = gb_per_s / limits.memory_gb_per_s
        return cls(
            median_us=median_us,
            min_us=min(times_us),
            p90_us=sorted(times_us)[math.ceil(_PERCENTILE * len(times_us)) - 1],
            moved_bytes=moved_bytes,
            gb_per_s=gb_per_s,
            memory_share=share,
            flop=flop,
            tflop_per_s=flop / median_us / 1e6 if flop is not None and median_us else None,
        )


def moved_bytes(signature: Signature) -> int:
    """Return the bytes of all inputs and outputs; an input updated in place counts twice."""
    sizes = signature.sizes_bytes
    updated = {number for source, number in signature.sources if source == "input"}
    return sum(sizes) + sum(sizes[number] for number in updated)


def parse_flop(text: str, params: Mapping[str, Scalar]) -> float:
    """Return the operations of a launch: a number, or `{2 * m * n * k}` over the parameters.

    Raises:
        SpecError: it is neither.
    """
    value = parse_template(text).fill(params)
    try:
        operations = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        # Refused below, as nan compares with nothing.
        operations = math.nan
    if not 0 < operations < math.inf:
        raise SpecError(
            f"--flops must be a positive number of operations, got {text!r}, which is {value!r}.",
            hint='Write a number such as 1.4e11, or a product of parameters: "{2 * m * n * k}".',
        )
    return operations


def check_flops(text: str | None, variants: Iterable[Variant]) -> None:
    """Check that `--flops`, where it is given, is a number for each variant.

    Raises:
        SpecError: it is not.
    """
    for variant in variants if text is not None else ():
        parse_flop(str(text), dict(variant.params))
