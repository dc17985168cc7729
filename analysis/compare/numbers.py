"""Differences in resources: changed numbers, and a verdict of better or worse on each."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pallasc.specs.resources import MORE_IS_BETTER, Resources

Verdict = Literal["better", "worse"]


class Change(NamedTuple):
    """A number that differs."""

    field: str
    before: int
    after: int

    @property
    def verdict(self) -> Verdict:
        """Verdict on the second side by this number alone."""
        return "better" if (self.after > self.before) is (self.field in MORE_IS_BETTER) else "worse"


def changes(before: Resources, after: Resources) -> tuple[Change, ...]:
    """Return the numbers that differ, skipping those that one side does not know."""
    rows = zip(Resources._fields, before, after, strict=True)
    return tuple(
        Change(field, first, second)
        for field, first, second in rows
        if first != second and first is not None and second is not None
    )
