"""A remote that breaks requests costs little, fails nothing, and nothing wrong comes from it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import faulty
import pytest
import servers
import slow
from bazel_cache import BazelCache
from fault_proxy import FAULTS, FaultProxy
from variants import NAMESPACE, check, download, fill, request_key, upload

from pallasc.cache.remote.action_result import Result, encode_result
from pallasc.cache.remote.guard import BUILD, Guard
from pallasc.cache.remote.settings import RemoteSettings, read_settings
from pallasc.cache.remote.stats import RemoteStats
from pallasc.cache.remote.survey import verify
from pallasc.cache.store import Store


def _settings(url: str) -> RemoteSettings:
    settings = read_settings({}, url=url, write=True)
    assert settings is not None
    return settings


def _bazel(place: str, prefix: str = "") -> RemoteSettings:
    return _settings(f"bazel+http://{place}/{prefix}")


def _s3(monkeypatch: pytest.MonkeyPatch, place: str, prefix: str) -> RemoteSettings:
    for name, value in servers.s3_environment(f"http://{place}").items():
        monkeypatch.setenv(name, value)
    return _settings(f"s3://kernels/{prefix}")


SLOW = ("stall", "stall in body", "slow", "slow header")
"""How far these get in a build's time depends on the machine."""
PROMPT = [fault for fault in FAULTS if fault not in SLOW]
PATIENT_BUILD = BUILD._replace(wait_s=600.0)


def _outcome(
    folder: Path, place: str, settings_at: Callable[[str, str], RemoteSettings], seed: int
) -> faulty.Outcome:
    """Return what comes of all faults; builds have time for those that are answered at once."""
    some = partial(faulty.run, upstream=place, settings_at=settings_at, seed=seed)
    slow = some(folder / "slow", faults=20, kinds=SLOW)
    assert (slow.wrong, slow.failed) == ([], [])
    patient = faulty.HURRIED._replace(wait_s=PATIENT_BUILD.wait_s)
    prompt = some(folder / "prompt", faults=100, kinds=PROMPT, limits=patient)
    assert (prompt.wrong, prompt.failed) == ([], [])
    return prompt


def test_many_faults_of_a_cache_of_bazel(fast_folder: Path, home: Path) -> None:
    with BazelCache() as cache:
        outcome = _outcome(fast_folder, cache.place, _bazel, 1)
    assert outcome.found > 10
    assert len(outcome.injected) > 15


def test_many_faults_of_s3(fast_folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with servers.s3_of_rclone(fast_folder / "server") as endpoint:
        settings_at = partial(_s3, monkeypatch)
        outcome = _outcome(fast_folder, endpoint.removeprefix("http://"), settings_at, 2)
    assert outcome.found > 10


@pytest.fixture
def filled(store: Store, home: Path) -> Iterator[BazelCache]:
    """Return a cache that has four variants."""
    with BazelCache() as cache:
        upload(_bazel(cache.place), store, fill(store, range(4)))
        yield cache


KEYS = [request_key(number) for number in range(4)]


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_costs_few_requests_and_nothing_is_wrong(
    filled: BazelCache, other: Store, fault: str
) -> None:
    limits = BUILD if fault in SLOW else PATIENT_BUILD
    with FaultProxy(filled.place, lambda method, path: fault) as proxy:
        found, stats = download(_bazel(proxy.place), other, KEYS, limits=limits)
    if fault not in ("lost", "unsaid", "half written", "flip written", "slow", "earlier"):
        assert found == {}
        assert bool(stats.tripped) != (fault in ("404", "empty", "half", "page"))
        assert stats.requests <= limits.attempts * len(KEYS)
    for number in range(4):
        if request_key(number) in found:
            check(other, number)


def test_a_dead_remote_is_told_once_with_what_to_do(filled: BazelCache, other: Store) -> None:
    from pallasc.cache.remote.remote import Remote

    told: list[str] = []
    with FaultProxy(filled.place, lambda method, path: "stall") as proxy:
        remote = Remote.open(_bazel(proxy.place), other, tell=told.append)
        remote.prepare(NAMESPACE)
        assert remote.fetch(KEYS, lambda key, manifest: True) == {}
        assert remote.fetch(KEYS, lambda key, manifest: True) == {}
        remote.offer(KEYS[0])
        stats = remote.finish()
    (text,) = told
    assert re.sub(r"\d+\.\d s", "1.8 s", text) == (
        "the remote store is left alone for the rest of this build, which goes on without it: "
        f"bazel+http://{proxy.place}: 0 bytes were moved in 1.8 s of waiting, "
        "of which 1.8 s were lost. "
        "Look at the network, or build without --remote."
    )
    assert stats.waited_s >= 1.8


@pytest.mark.parametrize(("later", "found"), [("429", 4), ("500", 4), ("reset", 4), ("403", 0)])
def test_one_broken_answer_is_asked_for_again_where_that_helps(
    filled: BazelCache, other: Store, later: str, found: int
) -> None:
    first = iter([later])
    with FaultProxy(filled.place, lambda method, path: next(first, None)) as proxy:
        answers, stats = download(_bazel(proxy.place), other, KEYS)
    assert len(answers) == found
    assert bool(stats.tripped) == (not found)


def test_what_was_damaged_on_the_way_up_is_found_and_healed(
    store: Store, other: Store, home: Path, tmp_path: Path
) -> None:
    with BazelCache() as cache:
        keys = fill(store, range(4))
        upload(_bazel(cache.place), store, keys)
        for digest, data in cache.blobs.items():
            cache.blobs[digest] = data[:-1] + bytes([data[-1] ^ 1])
        found, stats = download(_bazel(cache.place), other, keys)
        assert (found, stats.refusals) == ({}, 1)
        assert upload(_bazel(cache.place), store, keys).offered == 4
        assert len(download(_bazel(cache.place), Store(tmp_path / "new"), keys)[0]) == 4
        assert verify(_bazel(cache.place), [NAMESPACE]) == []


def test_an_entry_of_bazel_that_is_no_action_result_is_replaced(
    store: Store, other: Store, home: Path
) -> None:
    with BazelCache() as cache:
        keys = fill(store, range(2))
        upload(_bazel(cache.place), store, keys)
        cache.actions.update(dict.fromkeys(cache.actions, encode_result(Result(b"\xff" * 9, []))))
        assert download(_bazel(cache.place), other, keys)[0] == {}
        assert upload(_bazel(cache.place), store, keys).offered == 2
        assert len(download(_bazel(cache.place), other, keys)[0]) == 2


def test_a_certificate_that_nobody_vouches_for_is_refused(
    other: Store, home: Path, tmp_path: Path
) -> None:
    with servers.tls(tmp_path) as place:
        settings = _settings(f"bazel+https://{place}")
        found, stats = download(settings, other, KEYS, limits=PATIENT_BUILD)
    assert (found, stats.requests) == ({}, 1)
    assert "certificate is not valid (UnknownIssuer)" in stats.tripped


def test_nothing_listens(other: Store, home: Path) -> None:
    place = f"127.0.0.1:{servers.free_port()}"
    found, stats = download(_bazel(place), other, KEYS, limits=PATIENT_BUILD)
    assert (found, stats.requests) == ({}, 1)
    assert "the connection is refused" in stats.tripped


_MANY, _SIZE = 60, 180_000
_ALL = [request_key(number) for number in range(_MANY)]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, slow.Upstream]]:
    """Return servers with and without ranges that have some variants in three packs."""
    folder = tmp_path_factory.mktemp("packed")
    store = Store(folder / "store")
    keys = fill(store, range(_MANY), size=_SIZE)
    with BazelCache() as cache, servers.webdav_of_rclone(folder / "web") as web:
        found = {"bazel": (cache.place, _bazel), "web": (web, _web)}
        for place, settings_at in found.values():
            upload(settings_at(place, "x"), store, keys)
        yield found


def _web(place: str, prefix: str) -> RemoteSettings:
    return _settings(f"http://{servers.USER}:{servers.PASSWORD}@{place}/kernels")


@pytest.mark.parametrize(
    ("kind", "fault", "place"),
    [
        ("bazel", "slow", "packs"),
        ("bazel", "stall in body", "packs"),
        ("bazel", "noise 300 kB/s", "packs"),
        ("web", "150 kB/s", "all"),
    ],
)
def test_a_remote_that_sends_slowly_is_left_alone(
    packed: dict[str, slow.Upstream], home: Path, tmp_path: Path, kind: str, fault: str, place: str
) -> None:
    upstream, settings_at = packed[kind]
    loss = slow.lose(
        tmp_path / "store", upstream, settings_at, _ALL, fault=fault, place=place, prefix="x"
    )
    assert loss.found == 0
    assert "s were lost" in loss.stats.tripped


def test_what_has_arrived_when_time_is_over_is_used(
    packed: dict[str, slow.Upstream], home: Path, tmp_path: Path
) -> None:
    upstream, settings_at = packed["bazel"]
    limits = BUILD._replace(wait_s=4.0)
    loss = slow.lose(
        tmp_path / "store",
        upstream,
        settings_at,
        _ALL,
        fault="stall",
        place="later packs",
        prefix="x",
        limits=limits,
    )
    assert 0 < loss.found < len(_ALL)
    assert loss.stats.tripped
    store = Store(tmp_path / "store")
    found = [number for number in range(_MANY) if store.get_manifest(request_key(number))]
    assert len(found) == loss.found
    for number in found:
        check(store, number, size=_SIZE)


def test_a_remote_that_is_busy_with_much_is_not_left_alone(
    packed: dict[str, slow.Upstream], home: Path, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each MB takes 0.4 s, on a clock that nothing else moves."""
    add = RemoteStats.add

    def add_late(stats: RemoteStats, **figures: int) -> None:
        seconds = 0.4 * figures.get("bytes_read", 0) / 1e6
        stats.waited_s, stats.lost_s = stats.waited_s + seconds, stats.lost_s + seconds
        add(stats, **figures)

    monkeypatch.setattr(RemoteStats, "add", add_late)
    monkeypatch.setattr(Guard, "_note_wait", lambda guard, seconds: None)
    upstream, settings_at = packed["bazel"]
    settings = replace(settings_at(upstream, "x"), write=False)
    found, stats = download(settings, other, _ALL, limits=BUILD)
    assert (len(found), stats.tripped) == (_MANY, "")
    assert stats.waited_s > 4.0
