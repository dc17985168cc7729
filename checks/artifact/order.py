"""Compares results between schedules, which run blocks and warps in different orders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pallasc.checks.arrays import is_close, name_of_element
from pallasc.checks.artifact.execute import Element
from pallasc.checks.artifact.rules import DEPENDS_ON_ORDER
from pallasc.checks.findings import Finding
from pallasc.compiler.arrays import compare_arrays, settle_tolerance
from pallasc.specs.artifacts.plan import Binding, LaunchPlan
from pallasc.specs.spec import Tolerance

_ROUNDING = (
    "Each order of additions rounds differently, so the last digits may change from run to run."
)


def differences(
    plan: LaunchPlan,
    first: Sequence[Sequence[Any]],
    later: Sequence[Sequence[Any]],
    tolerance: Tolerance | None,
    *,
    agree: bool,
) -> Iterator[tuple[Finding, Element]]:
    """Yield the difference of each output between schedules, on the first device that has one.

    Args:
        plan: the plan that ran.
        first: the results of schedule 1, for each device.
        later: the results of another schedule.
        tolerance: the variant's tolerance.
        agree: True if both agree with a reference, so that a difference is only a note.
    """
    for number, output in enumerate(plan.outputs):
        for device, (ours, theirs) in enumerate(zip(first, later, strict=True)):
            one, other = ours[number], theirs[number]
            if one.tobytes() == other.tobytes():
                continue
            allowed = agree or _may_round(output, one, other, tolerance)
            rtol, atol = (0.0, 0.0) if allowed else settle_tolerance(tolerance, output.dtype)
            found = compare_arrays(other, one, rtol=rtol, atol=atol)
            if found.first is None:
                continue
            where = f" on device {device}" if device else ""
            element = name_of_element(output, found.first.index)
            message = (
                f"{element}{where} depends on the order of {_parts(plan)}: it is "
                f"{found.first.wanted} in schedule 1 and {found.first.got} in another; "
                f"{found.mismatches:,} of {found.count:,} elements differ"
            )
            finding = Finding(
                rule=DEPENDS_ON_ORDER.name,
                message=message,
                severity="note" if allowed else "error",
                hint=_ROUNDING if allowed else "",
                subject=output.path,
            )
            yield finding, Element(device, output, found.first.index)
            break


def _may_round(output: Binding, one: Any, other: Any, tolerance: Tolerance | None) -> bool:
    """Return True if the tolerance, or another order of summation, allows a difference."""
    rtol, atol = settle_tolerance(tolerance, output.dtype)
    if not compare_arrays(other, one, rtol=rtol, atol=atol).mismatches:
        return True
    return tolerance is None and is_close(output.dtype, other, one)


def _parts(plan: LaunchPlan) -> str:
    """Return the name of the units whose order varies between schedules."""
    if any(max(launch.grid) > 1 for launch in plan.launches):
        return "blocks"
    return "warps and asynchronous operations"
