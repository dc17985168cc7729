"""How large and how old a store may become, and how a user says so."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pallasc.errors import SpecError

DEFAULT_BYTES = 10 * 2**30
SIZE_VARIABLE, AGE_VARIABLE = "PALLASC_CACHE_SIZE", "PALLASC_CACHE_AGE"

_UNITS = {"B": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("KMGT", start=1)
    for suffix, base in (("B", 1000), ("iB", 1024))
}
_AGES_S = {"h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_NONE = {"0", "none", "unlimited"}
_AMOUNT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a store may hold; None is without limit.

    Attributes:
        max_bytes: blobs, records and manifests together.
        max_age_s: how long something may lie unused.
        grace_s: how long a blob that no record names may still be about to get one.
        quarantine_s: how long corrupt files are kept to look at.
    """

    max_bytes: int | None = DEFAULT_BYTES
    max_age_s: float | None = None
    grace_s: float = 300.0
    quarantine_s: float = 7 * 86_400.0


def limits_from_environment(environment: Mapping[str, str] | None = None) -> Limits:
    """Return the limits that `$PALLASC_CACHE_SIZE` and `$PALLASC_CACHE_AGE` set.

    Raises:
        SpecError: one of them is not a size or not an age.
    """
    values = os.environ if environment is None else environment
    size, age = values.get(SIZE_VARIABLE, ""), values.get(AGE_VARIABLE, "")
    return Limits(
        max_bytes=parse_size(size, what=SIZE_VARIABLE) if size.strip() else DEFAULT_BYTES,
        max_age_s=parse_age(age, what=AGE_VARIABLE) if age.strip() else None,
    )


def parse_size(text: str, *, what: str = "size", least_bytes: int = 1) -> int | None:
    """Return the bytes that a text such as `5GiB` or `500 MB` means; None for no limit.

    Args:
        text: a number with its unit, or `0` or `none`.
        what: the option or variable, for messages.
        least_bytes: what is less is a mistake.

    Raises:
        SpecError: it is not a size, or too small a one.
    """
    if text.strip().lower() in _NONE:
        return None
    match = _AMOUNT.fullmatch(text)
    units = {unit.lower(): value for unit, value in _UNITS.items()}
    if match is not None and not match[2]:
        sizes = [f"{match[1]}{unit}" for unit in ("GiB", "MiB")]
        large = [size for size in sizes if float(match[1]) * _UNITS[size[-3:]] >= least_bytes]
        raise SpecError(
            f"{what}: {text!r} has no unit",
            hint=f"Write {' or '.join(large or ['5GiB'])}; 0 or none: no limit.",
        )
    unit = match[2].lower() if match else ""
    if match is None or unit not in units:
        raise SpecError(
            f"{what}: {text!r} is not a size", hint=_size_hint(match[2] if match else "")
        )
    # Zero with a unit, or less than a byte, would silently mean to keep nothing.
    amount = int(float(match[1]) * units[unit])
    if amount < least_bytes:
        least = f"{least_bytes >> 20} MiB" if least_bytes > 1 else "a byte"
        more = f"Write {least.replace(' ', '')} or more; " if least_bytes > 1 else ""
        raise SpecError(
            f"{what}: {text!r} is less than {least}", hint=f"{more}0 or none: no limit."
        )
    return amount


def parse_age(text: str, *, what: str = "age") -> float | None:
    """Return the seconds that a text such as `90d`, `12h` or `2w` means; None for no limit.

    Raises:
        SpecError: it is not an age.
    """
    if text.strip().lower() in _NONE:
        return None
    match = _AMOUNT.fullmatch(text)
    if match is None or match[2].lower() not in _AGES_S or float(match[1]) == 0:
        raise SpecError(
            f"{what}: {text!r} is not an age",
            hint="Write hours, days or weeks: 12h, 90d, 2w, none.",
        )
    return float(match[1]) * _AGES_S[match[2].lower()]


def _size_hint(unit: str) -> str:
    if len(unit) == 1 and f"{unit.upper()}iB" in _UNITS:
        return f"Write {unit.upper()}iB (1024) or {unit.upper()}B (1000)."
    near = difflib.get_close_matches(unit, _UNITS, n=1)
    if near:
        return f"Did you mean the unit {near[0]}?"
    return "Write a number and a unit, such as 5GiB or 500MB; 0 or none: no limit."
