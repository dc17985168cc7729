"""The standard streams of this process: closed ones are replaced, broken ones silenced."""

from __future__ import annotations

import os
import sys

_CLOSED = (("stdin", "r", os.O_RDONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY))
"""What is written to a closed standard output is lost and must fail, so its place is read-only."""


def replace_closed_streams() -> None:
    """Put something in the place of standard streams that were closed when Python started.

    Otherwise the next file that is opened would take their numbers, and with them whatever a
    library writes there.
    """
    for name, mode, access in _CLOSED:
        if getattr(sys, name) is None:
            number = os.open(os.devnull, access)
            os.set_inheritable(number, True)
            stream = os.fdopen(number, mode, encoding="utf-8", errors="replace", closefd=False)
            setattr(sys, name, stream)


def discard_output() -> None:
    """Point broken streams at nothing, so that Python's own flush at the end says nothing."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
