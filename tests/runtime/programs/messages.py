"""What calls of kernels say, for programs with arrays of torch and of JAX."""

from collections.abc import Callable
from typing import Any

from pallasc.errors import PallascError


def message(work: Callable[[], Any]) -> str:
    """Return what an error of ours says, its class first."""
    try:
        work()
    except PallascError as error:
        return f"{type(error).__name__}: {error.message}"
    except Exception as error:
        return f"not ours: {type(error).__name__}: {str(error).splitlines()[0]}"
    return "nothing"


def refused(words: str, work: Callable[[], Any]) -> None:
    """Check that something raises an ArgumentError with these words."""
    said = message(work)
    assert said == f"ArgumentError: {words}", said
