"""Functions in which no floating-point operation warns."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextvars import Context
from typing import Any

import numpy as np


class _Contexts(threading.local):
    """A context a thread whose NumPy ignores floating-point errors.

    `np.errstate` is a context variable since NumPy 2, and entering a context that has it set takes
    a tenth of the time of `with np.errstate`.
    """

    def __init__(self) -> None:
        context = Context()
        context.run(np.seterr, all="ignore")
        self.run = context.run


_CONTEXTS = _Contexts()


def quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, run where overflow, division by zero and NaN do not warn.

    A context cannot be entered twice, so a quiet function calls none.
    """

    @functools.wraps(function)
    def apply(*arrays: Any) -> Any:
        return _CONTEXTS.run(function, *arrays)

    return apply
