"""The version of pallasc that is installed."""

from __future__ import annotations

from functools import cache


@cache
def installed_version() -> str:
    """Return the version, `0+unknown` where pallasc is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pallasc")
    except PackageNotFoundError:
        return "0+unknown"
