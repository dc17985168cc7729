"""The version of pallasc that is installed."""

from __future__ import annotations

from functools import cache

UNKNOWN = "0+unknown"
"""The version where pallasc is not installed."""


@cache
def installed_version() -> str:
    """Return the version, `UNKNOWN` where pallasc is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pallasc")
    except PackageNotFoundError:
        return UNKNOWN
