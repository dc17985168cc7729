"""Numbers formatted for people. The functions take known values, never None."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB")


def number(value: float) -> str:
    """Return `12,345`, or three significant digits if the number is not whole."""
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1000 else f"{value:,.3g}"


def size(count: float) -> str:
    """Return a number of bytes: `512 B`, `9.3 KiB`, `217 KiB`."""
    for unit in _UNITS:
        if abs(count) < 1024 or unit == _UNITS[-1]:
            break
        count /= 1024
    text = f"{count:.1f}" if count < 10 and unit != "B" else f"{count:.0f}"
    return f"{text.removesuffix('.0')} {unit}"


def percent(part: float) -> str:
    """Return `42 %`."""
    return f"{100 * part:.0f} %"


def duration(seconds: float) -> str:
    """Return `0.42 s`, `14 s` or `3 min 20 s`."""
    if seconds < 9.95:
        return f"{seconds:.2g} s"
    rounded = round(seconds)
    return f"{rounded} s" if rounded < 120 else f"{rounded // 60} min {rounded % 60:02} s"


def short_time(seconds: float) -> str:
    """Return the time of a kernel: `12 µs`, `1.4 ms`."""
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        if seconds * factor < 1000:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"


def by(sizes: tuple[int, ...]) -> str:
    """Return `132 × 2`, without trailing ones."""
    length = max((at + 1 for at, each in enumerate(sizes) if each != 1), default=1)
    return " × ".join(f"{each:,}" for each in sizes[:length])


def counted(amount: int, noun: str) -> str:
    """Return `1 variant` or `153 variants`."""
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"


def status_count(status: str, amount: int) -> str:
    """Return `1 hit`, `4 hits` or `4 compiled`: of all statuses, only a hit is a noun."""
    return counted(amount, "hit") if status == "hit" else f"{amount:,} {status}"
