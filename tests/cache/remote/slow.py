"""Builds over a remote that gives its answers slowly, partly or never: what each of them loses.

Used by the tests with a few variants and by bench/remote.py with hundreds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fault_proxy import FaultProxy
from variants import download

from pallasc.cache.remote.guard import BUILD, Limits
from pallasc.cache.remote.settings import RemoteSettings
from pallasc.cache.remote.stats import RemoteStats
from pallasc.cache.store import Store

FAULTS = (
    "stall", "slow header", "slow", "stall in body", "noise 700 kB/s", "noise 3000 kB/s",
    "300 kB/s", "700 kB/s",
)  # fmt: skip
GOOD = "4000 kB/s"
"""A remote that is busy with much, and in no way broken."""
PLACES = ("all", "packs", "later packs")
_FIRST_PACKS = 2
SettingsAt = Callable[[str, str], RemoteSettings]
Upstream = tuple[str, SettingsAt]
"""`host:port` of a server, and what settings lead there or to a proxy."""


class Loss(NamedTuple):
    """What a build did with a slow remote.

    Attributes:
        found: how many variants it got.
        took_s: from its first request to its end.
        lost_s: the part of it that was lost: all of it where nothing was found.
        stats: what it says itself.
    """

    found: int
    took_s: float
    lost_s: float
    stats: RemoteStats


def lose(
    folder: Path,
    upstream: str,
    settings_at: SettingsAt,
    keys: Sequence[str],
    *,
    fault: str,
    place: str = "all",
    prefix: str = "",
    limits: Limits = BUILD,
) -> Loss:
    """Have a build look for variants through a proxy that breaks all answers of a kind.

    Args:
        folder: for the local store.
        upstream: `host:port` of the server.
        settings_at: returns settings for the server or proxy at `host:port`, with a prefix.
        keys: what the build lacks.
        fault: of the proxy.
        place: which answers, of `PLACES`; the first two packs come as they should where only
            later ones do not.
        prefix: of what lies at the server.
        limits: of the build.
    """
    packs: set[str] = set()

    def choose(method: str, path: str) -> str | None:
        if place == "all":
            return fault
        if method != "GET" or ("/packs/" not in path and "/cas/" not in path):
            return None
        packs.add(path)
        return fault if place == "packs" or len(packs) > _FIRST_PACKS else None

    with FaultProxy(upstream, choose) as proxy:
        settings = replace(settings_at(proxy.place, prefix), write=False)
        began = time.monotonic()
        found, stats = download(settings, Store(folder), keys, limits=limits)
        took_s = time.monotonic() - began
    return Loss(len(found), took_s, stats.lost_s if found else took_s, stats)
