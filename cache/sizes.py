"""Numbers of bytes for people."""

from __future__ import annotations

_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_BINARY_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def size(count: int, limit: int | None = None) -> str:
    """Return a number of bytes for people: `2.1 GB`.

    Args:
        count: the number.
        limit: what it is compared with. A limit of whole MiB was given as such, and both are
            told in binary units then.
    """
    binary = (count if limit is None else limit) % (1 << 20) == 0
    for unit, name in _BINARY_UNITS if binary else _UNITS:
        if count >= unit:
            return f"{count / unit:.1f}".removesuffix(".0") + f" {name}"
    return f"{count} bytes"
