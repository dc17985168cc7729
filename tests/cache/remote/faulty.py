"""Builds over a remote whose answers are broken by a seed: nothing wrong is served, nothing fails.

`run` is used by the tests with a few faults and by bench/remote.py with ten thousand. One trial is
a machine that writes some variants, and one that reads them, each as a build does, both through a
proxy that breaks a part of all requests; what arrives is compared byte for byte.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fault_proxy import FAULTS, FaultProxy, seeded
from variants import check, download, fill, request_key, upload

from pallasc.cache.remote.guard import Limits
from pallasc.cache.remote.settings import RemoteSettings
from pallasc.cache.remote.stats import RemoteStats
from pallasc.cache.store import Store

HURRIED = Limits(wait_s=0.3, pause_s=0.02)
"""Builds that wait less than real ones, so that ten thousand faults take minutes."""
_VARIANTS = 6
_SLACK_S = 1.0
"""A busy machine may take so much longer to notice that time is over."""


@dataclass
class Outcome:
    """What came of many trials.

    Attributes:
        injected: how often what was broken.
        wrong: variants that were served and are not byte for byte what was written.
        failed: builds that ended with an exception, and with which.
        late: builds that waited longer than they may.
        found: variants that were served right.
        trials: how many there were.
    """

    injected: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    found: int = 0
    trials: int = 0

    @property
    def faults(self) -> int:
        return sum(self.injected.values())

    def add(self, other: Outcome) -> None:
        """Add what came of other trials."""
        self.injected += other.injected
        self.wrong += other.wrong
        self.failed += other.failed
        self.late += other.late
        self.found += other.found
        self.trials += other.trials


def run(
    folder: Path,
    upstream: str,
    settings_at: Callable[[str, str], RemoteSettings],
    *,
    faults: int,
    seed: int,
    rate: float = 0.3,
    kinds: Sequence[str] = FAULTS,
    limits: Limits = HURRIED,
) -> Outcome:
    """Have trials until so many faults were injected.

    Args:
        folder: for local stores.
        upstream: `host:port` of the server.
        settings_at: returns settings for the server or proxy at `host:port`, with a prefix.
        faults: how many.
        seed: of all choices.
        rate: how many of all requests are broken.
        kinds: the faults to choose from.
        limits: of the builds.
    """
    outcome = Outcome()
    source = Store(folder / "source")
    keys = fill(source, range(_VARIANTS))
    rng = random.Random(seed)
    with FaultProxy(upstream, lambda method, path: None, seed=seed) as proxy:
        while outcome.faults < faults:
            outcome.trials += 1
            settings = settings_at(proxy.place, f"s{seed}-{outcome.trials // 20}")
            proxy.choose = seeded(rng.randrange(2**32), rate, kinds)
            some = rng.sample(keys, rng.randrange(1, _VARIANTS))
            _write(outcome, settings, source, some, limits)
            proxy.choose = seeded(rng.randrange(2**32), rate, kinds)
            _read(outcome, settings, folder / "reader", keys, limits)
            outcome.injected = proxy.injected
    return outcome


def _write(
    outcome: Outcome, settings: RemoteSettings, source: Store, keys: list[str], limits: Limits
) -> None:
    try:
        stats = upload(settings, source, keys, limits=limits)
    except Exception as error:
        outcome.failed.append(f"write: {type(error).__name__}: {error}")
        return
    _time(outcome, "write", stats, limits)


def _read(
    outcome: Outcome, settings: RemoteSettings, folder: Path, keys: list[str], limits: Limits
) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    store = Store(folder)
    try:
        found, stats = download(settings, store, keys, limits=limits)
    except Exception as error:
        outcome.failed.append(f"read: {type(error).__name__}: {error}")
        return
    _time(outcome, "read", stats, limits)
    numbers = {request_key(number): number for number in range(_VARIANTS)}
    for key in found:
        try:
            check(store, numbers[key])
            outcome.found += 1
        except AssertionError:
            outcome.wrong.append(f"trial {outcome.trials}: variant {numbers[key]}")
    for warning in store.warnings:
        outcome.wrong.append(f"trial {outcome.trials}: {warning}")


def _time(outcome: Outcome, verb: str, stats: RemoteStats, limits: Limits) -> None:
    most = (limits.wait_s or 0) + _SLACK_S
    if stats.lost_s > most:
        outcome.late.append(f"{verb} lost {stats.lost_s:.2f} s of {most:.2f}")
