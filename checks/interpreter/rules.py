"""Rules of the interpreter level."""

from __future__ import annotations

from pallasc.checks.findings import Rule
from pallasc.checks.rules import (
    BARRIER_MISUSE,
    DEADLOCK,
    NOTHING_COMPARED,
    OTHER_KIND,
    OUT_OF_BOUNDS,
    RACE,
    UNFINISHED_COPY,
    UNINITIALIZED,
    WRONG_NUMBERS,
)

RULES: tuple[Rule, ...] = (
    WRONG_NUMBERS,
    NOTHING_COMPARED,
    OTHER_KIND,
    UNINITIALIZED,
    OUT_OF_BOUNDS,
    RACE,
    DEADLOCK,
    BARRIER_MISUSE,
    UNFINISHED_COPY,
)
