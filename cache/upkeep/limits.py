"""How large and how old a store may become, and how a user says so."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pallasc.errors import SpecError

DEFAULT_BYTES = 10 * 2**30

_UNITS = {"B": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("KMGT", start=1)
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


def parse_size(text: str, *, what: str = "size", least_bytes: int = 1) -> int | None:
    """Return the bytes that a text such as `5GiB` or `500 MB` means; None for no limit.

    Args:
        text: a number with its unit, or `0` or `none`.
        what: the option or variable, for messages.
        least_bytes: the smallest size that is accepted.

    Raises:
        SpecError: it is not a size, or is too small.
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
    import difflib

    near = difflib.get_close_matches(unit, _UNITS, n=1)
    if near:
        return f"Did you mean the unit {near[0]}?"
    return "Write a number and a unit, such as 5GiB or 500MB; 0 or none: no limit."


@dataclass(frozen=True, slots=True)
class Setting:
    """A limit that users can set.

    Attributes:
        name: `size` is the option `--size` of `pallasc cache prune`.
        variable: sets it for all commands.
        help: what the option does.
        set: returns limits with it; takes the text, and what the text came from, for messages.
    """

    name: str
    variable: str
    help: str
    set: Callable[[Limits, str, str], Limits]


SETTINGS = (
    Setting(
        "size",
        "PALLASC_CACHE_SIZE",
        "Keep at most this much: 5GiB, 300MB, none.",
        lambda limits, text, what: replace(limits, max_bytes=parse_size(text, what=what)),
    ),
    Setting(
        "age",
        "PALLASC_CACHE_AGE",
        "Remove what has not been used for this long: 30d, 12h, none.",
        lambda limits, text, what: replace(limits, max_age_s=parse_age(text, what=what)),
    ),
)


def read_limits(
    options: Mapping[str, str | None] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
) -> Limits:
    """Return the limits that options set, else the environment's variables, else the defaults.

    Args:
        options: texts by the names of `SETTINGS`.
        environment: the variables; those of this process by default.

    Raises:
        SpecError: a text is not what its limit takes.
    """
    variables = os.environ if environment is None else environment
    limits = Limits()
    for setting in SETTINGS:
        option, variable = (options or {}).get(setting.name), variables.get(setting.variable, "")
        if option is not None:
            limits = setting.set(limits, option, f"--{setting.name}")
        elif variable.strip():
            limits = setting.set(limits, variable, setting.variable)
    return limits
