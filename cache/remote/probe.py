"""Ask whether a remote store can be read and written: what `pallasc doctor` shows."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

from pallasc.cache.remote import layout
from pallasc.cache.remote.failure import RemoteError
from pallasc.cache.remote.guard import BUILD, Guard
from pallasc.cache.remote.opening import open_guard
from pallasc.cache.remote.reading import read_catalog
from pallasc.cache.remote.settings import RemoteSettings

PROBE = f"{layout.ROOT}/probe"
"""The object that is written to see whether one can be; it stays."""


class Probe(NamedTuple):
    """What a remote store answered.

    Attributes:
        unreadable: why it cannot be read, "" if it can.
        unwritable: why it cannot be written, "" if it can or shall not be.
    """

    unreadable: str
    unwritable: str


def probe(
    settings: RemoteSettings, namespace: str, *, environ: Mapping[str, str] = os.environ
) -> Probe:
    """Read a catalog, and write a small object where writing is on; waits as a build does."""
    guard = open_guard(settings, environ, limits=BUILD, timeout_s=settings.timeout_s)
    try:
        unreadable = _why_not(guard, lambda: read_catalog(guard, namespace))
        if unreadable or not settings.write:
            return Probe(unreadable, "")
        return Probe("", _why_not(guard, lambda: guard.put(PROBE, b"pallasc\n")))
    finally:
        guard.close()


def _why_not(guard: Guard, request: Callable[[], object]) -> str:
    try:
        guard.result(guard.submit(request))
    except RemoteError as error:
        return f"{error.message}. {error.hint}" if error.hint else error.message
    return ""
