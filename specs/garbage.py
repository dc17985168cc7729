"""Python's garbage collector, out of the way while thousands of lasting objects are made."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_past() -> Iterator[None]:
    """Switch the cyclic garbage collector off, and exempt all objects made so far for good.

    It would walk all new objects again and again. The code inside must make no cyclic garbage.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()  # moves all objects to a generation that is never collected
    finally:
        if was_enabled:
            gc.enable()
