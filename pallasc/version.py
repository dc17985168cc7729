"""The installed version of pallasc."""

from __future__ import annotations

from functools import cache

UNKNOWN = "0+unknown"
"""The version reported if pallasc is not installed."""


@cache
def installed_version() -> str:
    """Return the installed version, or `UNKNOWN`."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pallasc")
    except PackageNotFoundError:
        return UNKNOWN
