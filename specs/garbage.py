"""Pause Python's garbage collector while thousands of long-lived objects are created."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_past() -> Iterator[None]:
    """Disable the cyclic garbage collector, then permanently exempt all existing objects.

    The collector would traverse the new objects again and again. The code inside must create no
    cyclic garbage.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()  # moves all objects to a generation that is never collected
    finally:
        if was_enabled:
            gc.enable()
