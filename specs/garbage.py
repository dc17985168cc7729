"""Python's garbage collector, out of the way while thousands of lasting objects are made."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_EXEMPT_AT_START = gc.get_freeze_count()
"""Objects that the interpreter itself exempts: some hundred in Python 3.12."""


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Switch the cyclic garbage collector off.

    It would walk all new objects again and again. The code inside must make no cyclic garbage.
    Afterwards its objects count as old: the next collection of young ones leaves them out.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if gc.get_freeze_count() <= _EXEMPT_AT_START:
                gc.freeze()
                gc.unfreeze()  # moves them to the oldest generation
            gc.enable()


@contextlib.contextmanager
def collector_past() -> Iterator[None]:
    """Switch the cyclic garbage collector off, and exempt all objects made so far for good."""
    with collector_paused():
        yield
        gc.freeze()  # moves all objects to a generation that is never collected
