"""Processes that push, pull and merge are killed at random moments; all stores verify afterwards.

`run` is used by the tests with a few kills and by bench/remote.py with a thousand. Each process is
forked from this one, so that it is busy with the transfer from its first moment on.
"""

import os
import random
import shutil
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from variants import NAMESPACE, check, fill

from pallasc.cache.prune import merge_packs
from pallasc.cache.remote.remote import pull, push, verify
from pallasc.cache.remote.settings import RemoteSettings, read_settings
from pallasc.cache.store import Store
from pallasc.cache.transfer import export_file, import_file
from pallasc.cache.verify import verify as verify_store

_VERBS = ("push", "pull", "merge")
_VARIANTS = 24
_SIZE = 8000
_ROUND = 10
"""Turns before what was interrupted is completed, and begun with nothing again."""


@dataclass
class Outcome:
    """What came of many kills; `wrong` says what did not verify."""

    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_VERBS, 0))
    wrong: list[str] = field(default_factory=list)


def run(folder: Path, *, kills: int, seed: int) -> Outcome:
    """Kill pushes, pulls and merges until each was killed a third as often as `kills`."""
    outcome = Outcome()
    rng = random.Random(seed)
    source = Store(folder / "source")
    keys = fill(source, range(_VARIANTS), size=_SIZE)
    longest = _time(folder, source, keys)
    turn = 0
    while min(outcome.kills.values()) < -(-kills // len(_VERBS)):
        turn += 1
        settings = _settings(folder / "remote")
        _killed(outcome, "push", rng, longest, _pushing(settings, source, keys, rng))
        outcome.wrong += verify(settings)
        _killed(outcome, "pull", rng, longest, _pulling(settings, folder / "local"))
        _check_local(outcome, Store(folder / "local"))
        _killed(outcome, "merge", rng, longest, _merging(folder / "merged", source))
        _check_local(outcome, Store(folder / "merged"))
        if not turn % _ROUND:
            _finish(outcome, settings, source, folder, keys)
    return outcome


def _settings(folder: Path) -> RemoteSettings:
    settings = read_settings({}, url=f"file://{folder}", write=True)
    assert settings is not None
    return settings


def _time(folder: Path, source: Store, keys: list[str]) -> dict[str, float]:
    """Return how long each takes here when it is not interrupted."""
    settings, times = _settings(folder / "timed"), {}
    for verb, work in (
        ("push", _pushing(settings, source, keys, random.Random(1))),
        ("pull", _pulling(settings, folder / "timed-store")),
        ("merge", _merging(folder / "timed-merge", source)),
    ):
        began = time.perf_counter()
        os.waitpid(_child(work), 0)
        times[verb] = time.perf_counter() - began
    return times


def _pushing(
    settings: RemoteSettings, source: Store, keys: list[str], rng: random.Random
) -> Callable[[], object]:
    some = rng.sample(keys, rng.randrange(8, len(keys)))
    return lambda: push(settings, source, {NAMESPACE: some})


def _pulling(settings: RemoteSettings, folder: Path) -> Callable[[], object]:
    return lambda: pull(settings, Store(folder))


def _merging(folder: Path, source: Store) -> Callable[[], object]:
    """Merge a store into another, and then the packs of that."""

    def merge() -> None:
        store = Store(folder)
        file = source.root.with_suffix(".pack")
        export_file(source, file)
        assert import_file(store, file).conflicts == []
        merge_packs(store, most=1)

    return merge


def _child(work: Callable[[], object]) -> int:
    """Start a process that does this work; return its number."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def _killed(
    outcome: Outcome,
    verb: str,
    rng: random.Random,
    longest: dict[str, float],
    work: Callable[[], object],
) -> None:
    """Kill a process at a moment of its life; `longest` learns how long such a life is."""
    pid = _child(work)
    time.sleep(rng.uniform(0, longest[verb]))
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        outcome.kills[verb] += 1
        longest[verb] *= 1.03
    else:
        longest[verb] *= 0.9
        if os.WEXITSTATUS(status):
            outcome.wrong.append(f"{verb} failed")


def _check_local(outcome: Outcome, store: Store) -> None:
    findings = verify_store(store).findings
    outcome.wrong += [f"{store.root.name}: {f.kind} {f.path}: {f.reason}" for f in findings]
    outcome.wrong += [f"{store.root.name}: {warning}" for warning in store.warnings]


def _finish(
    outcome: Outcome, settings: RemoteSettings, source: Store, folder: Path, keys: list[str]
) -> None:
    """Complete what was interrupted so often; all is there then. Begin with nothing again."""
    for work in (
        lambda: push(settings, source, {NAMESPACE: keys}),
        lambda: pull(settings, Store(folder / "local")),
    ):
        if os.waitpid(_child(work), 0)[1]:
            outcome.wrong.append("a transfer after kills failed")
        outcome.wrong += verify(settings)
    _merging(folder / "merged", source)()
    for name in ("local", "merged"):
        store = Store(folder / name)
        for number in range(_VARIANTS):
            try:
                check(store, number, size=_SIZE)
            except AssertionError:
                outcome.wrong.append(f"{name}: variant {number} is not there or wrong")
        _check_local(outcome, store)
        shutil.rmtree(folder / name)
    shutil.rmtree(folder / "remote")
