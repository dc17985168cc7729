"""Python's garbage collector, out of the way while thousands of lasting objects are made."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Do not look for cycles meanwhile.

    The collector would walk all that was made, again and again. What runs inside must make no
    garbage in cycles.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def collector_past() -> Iterator[None]:
    """Do not look for cycles meanwhile, nor ever walk what was made, which lasts."""
    with collector_paused():
        yield
        gc.freeze()
