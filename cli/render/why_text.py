"""Why a variant is not in the store, in lines for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallasc.specs.plain_text import one_line

if TYPE_CHECKING:
    from pallasc.compiler.inputs.why import Difference, Explanation

_TOOLCHAIN = ("tool ", "variable ")
"""Prefixes of the labels of fields that all variants of a build share."""
_DATA = "data "
"""Prefix of the label of a data file, whose values are digests."""
_EXCERPT = 100
"""Characters that are shown of a long value."""


def difference_lines(explanation: Explanation) -> list[str]:
    """Return each difference from the nearest entry that the reason leaves out, indented."""
    reason = explanation.reason
    lines = [f"      {sentence}" for sentence in explanation.sources if sentence != reason]
    if explanation.sources:
        lines.append(
            "      a build lowers it again, and compiles only if that gives something else"
        )
    for difference in explanation.fields:
        if difference.label.startswith(_TOOLCHAIN) and explanation.toolchain:
            continue  # the reason has the names and versions
        if difference.label.startswith(_DATA):
            lines.append(f"      {_data_change(difference)}")
            continue
        stored, now = excerpts(difference.stored, difference.now)
        lines += [
            f"      {difference.label}",
            f"        stored: {stored}",
            f"        now:    {now}",
        ]
    return lines


def _data_change(difference: Difference) -> str:
    """Return what happened to a data file; its digests tell a person nothing."""
    name = one_line(difference.label.removeprefix(_DATA))
    if difference.stored is None:
        return f"{name} is new in the spec"
    return f"{name} {'is no longer in the spec' if difference.now is None else 'has changed'}"


def excerpts(stored: str | None, now: str | None) -> tuple[str, str]:
    """Return two values that differ, cut to what surrounds their first difference."""
    if stored is None or now is None:
        return _excerpt(stored, 0), _excerpt(now, 0)
    pairs = enumerate(zip(stored, now, strict=False))
    shared = next((at for at, (a, b) in pairs if a != b), min(len(stored), len(now)))
    return _excerpt(stored, shared), _excerpt(now, shared)


def _excerpt(value: str | None, around: int) -> str:
    if value is None:
        return "(absent)"
    if len(value) <= _EXCERPT:
        return value
    start = max(0, min(around - _EXCERPT // 3, len(value) - _EXCERPT))
    end = start + _EXCERPT
    return f"{'…' if start else ''}{value[start:end]}{'…' if end < len(value) else ''}"
