"""Push and pull of whole stores, figures of a remote, its verification and its garbage."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from variants import NAMESPACE, action_key, check, download, fill, put, request_key, upload

from pallasc.cache.remote import garbage, layout, transfer
from pallasc.cache.remote.failure import Failure, RemoteError
from pallasc.cache.remote.folder_objects import FolderObjects
from pallasc.cache.remote.garbage import choose, collect
from pallasc.cache.remote.guard import Guard
from pallasc.cache.remote.settings import RemoteSettings
from pallasc.cache.remote.survey import survey, verify
from pallasc.cache.remote.transfer import pull, push
from pallasc.cache.store import Store

DAY_S = 24 * 3600.0


def test_push_and_pull_move_a_whole_store(
    settings: RemoteSettings, store: Store, other: Store
) -> None:
    keys = fill(store, range(20))
    steps: list[tuple[int, int]] = []
    pushed = push(settings, store, {NAMESPACE: keys}, on_step=lambda *step: steps.append(step))
    assert (pushed.moved, pushed.present, pushed.left) == (20, 0, 0)
    assert steps[-1] == (20, 20)
    pulled = pull(settings, other)
    assert (pulled.moved, pulled.present, pulled.left) == (20, 0, 0)
    for number in range(20):
        check(other, number)
    assert verify(settings) == []


def test_a_second_push_and_pull_move_nothing(
    settings: RemoteSettings, store: Store, other: Store
) -> None:
    keys = fill(store, range(5))
    push(settings, store, {NAMESPACE: keys})
    again = push(settings, store, {NAMESPACE: keys})
    assert (again.moved, again.present, again.stats.bytes_written) == (0, 5, 0)
    pull(settings, other)
    assert pull(settings, other)[:3] == (0, 5, 0)


def test_two_stores_become_equal(settings: RemoteSettings, store: Store, other: Store) -> None:
    push(settings, store, {NAMESPACE: fill(store, range(3))})
    assert pull(settings, other).moved == 3
    assert push(settings, other, {NAMESPACE: fill(other, range(5))})[:3] == (2, 3, 0)
    assert pull(settings, store)[:3] == (2, 3, 0)
    for number in range(5):
        check(store, number)
        check(other, number)


def test_a_variant_that_lacks_a_blob_is_not_pushed(settings: RemoteSettings, store: Store) -> None:
    keys = fill(store, range(3))
    artifact = store.get_artifact(action_key(1))
    assert artifact is not None
    store.path("cas", artifact.record["blobs"]["cubin"]["digest"]).unlink()
    assert push(settings, store, {NAMESPACE: keys})[:3] == (2, 0, 1)
    assert verify(settings) == []


def test_a_push_over_a_slow_network_holds_few_packs(
    settings: RemoteSettings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Future[Any]] = []
    under_way: list[int] = []
    submit, put_slowly = Guard.submit, FolderObjects.put

    def counted(guard: Guard, function: Callable[[], Any]) -> Future[Any]:
        sent.append(submit(guard, function))
        under_way.append(sum(not future.done() for future in sent))
        return sent[-1]

    def slow(*arguments: Any, **options: Any) -> None:
        time.sleep(0.03)
        put_slowly(*arguments, **options)

    monkeypatch.setattr(Guard, "submit", counted)
    monkeypatch.setattr(FolderObjects, "put", slow)
    monkeypatch.setattr(transfer, "PACK_BYTES", 1)
    assert push(settings, store, {NAMESPACE: fill(store, range(40))}).moved == 40
    assert len(sent) > 40
    assert max(under_way) <= 17
    assert verify(settings) == []


def test_pull_keeps_what_the_local_store_has_for_a_request(
    settings: RemoteSettings, store: Store, other: Store
) -> None:
    push(settings, store, {NAMESPACE: [put(store, 1, 0)]})
    put(other, 1, 5)
    assert pull(settings, other).present == 1
    check(other, 1, 5)


def test_a_command_fails_where_the_remote_fails(
    settings: RemoteSettings, store: Store, there: Path
) -> None:
    there.write_text("a file, not a folder")
    with pytest.raises(RemoteError, match="Not a directory"):
        push(settings, store, {NAMESPACE: fill(store, range(1))})


def test_figures_of_a_namespace(settings: RemoteSettings, store: Store) -> None:
    upload(settings, store, fill(store, range(4)))
    upload(settings, store, [put(store, 0, 1)])
    (figures,) = survey(settings)
    assert figures.namespace == NAMESPACE
    assert figures[1:5] == (4, 5, 2, 2)
    assert figures.oldest_use_s > 0
    assert figures.bytes > 2000


@pytest.mark.parametrize("place", ["packs", "index", "catalog"])
def test_verify_finds_a_changed_byte(
    settings: RemoteSettings, store: Store, there: Path, place: str
) -> None:
    upload(settings, store, fill(store, range(4)))
    (path,) = (p for p in there.rglob("*") if p.is_file() and place in p.parts[-2:])
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    assert verify(settings) != []


def _age(there: Path, seconds: float) -> None:
    for path in there.rglob("*"):
        if path.is_file():
            status = path.stat()
            os.utime(path, (status.st_atime - seconds, status.st_mtime - seconds))


def test_old_packs_go_and_newer_ones_stay(
    settings: RemoteSettings, store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 2_000_000_000.0
    for age, number in ((40, 1), (5, 2)):
        monkeypatch.setattr("time.time", lambda age=age: now - age * DAY_S)
        upload(settings, store, [put(store, number)])
    monkeypatch.setattr("time.time", lambda: now)
    dry = collect(settings, max_age_s=30 * DAY_S, dry_run=True)
    assert (dry.packs, dry.kept_packs) == (1, 1)
    reading = RemoteSettings(settings.address)
    assert len(download(reading, Store(other.root.parent / "x"), [request_key(1)])[0]) == 1
    assert collect(settings, max_age_s=30 * DAY_S)[0] == 1
    found, stats = download(settings, other, [request_key(1), request_key(2)])
    assert (list(found), stats.refused) == ([request_key(2)], [])
    assert verify(settings) == []


def test_what_a_writer_used_lately_stays(
    settings: RemoteSettings, store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 2_000_000_000.0
    monkeypatch.setattr("time.time", lambda: now - 40 * DAY_S)
    keys = [put(store, 1)]
    upload(settings, store, keys)
    monkeypatch.setattr("time.time", lambda: now)
    download(settings, other, keys)
    assert collect(settings, max_age_s=30 * DAY_S).packs == 0


def test_objects_that_no_catalog_leads_to_go_after_a_day(
    settings: RemoteSettings, store: Store, there: Path
) -> None:
    upload(settings, store, fill(store, range(2)))
    stray = there / layout.pack_name("ab" * 32)
    stray.write_bytes(b"of a writer that was killed")
    assert collect(settings).unknown == 0
    _age(there, garbage.GRACE_S + 60)
    assert collect(settings).unknown == 1
    assert not stray.exists()
    assert verify(settings) == []


def test_what_a_damaged_catalog_may_lead_to_stays(
    settings: RemoteSettings, store: Store, there: Path
) -> None:
    upload(settings, store, fill(store, range(2)))
    stray = there / layout.pack_name("ab" * 32)
    stray.write_bytes(b"of a writer that was killed")
    catalog = there / layout.catalog_name(NAMESPACE)
    catalog.write_bytes(whole := catalog.read_bytes()[:-1])
    before = sorted(path for path in there.rglob("*") if path.is_file())
    _age(there, 2 * garbage.GRACE_S)
    done = collect(settings, max_bytes=0)
    assert (done.packs, done.unknown, len(done.unread)) == (0, 0, 1)
    assert f"namespace {NAMESPACE} stays as it is: the catalog is damaged" in done.unread[0]
    assert sorted(path for path in there.rglob("*") if path.is_file()) == before
    assert catalog.read_bytes() == whole


def test_a_damaged_index_is_told_when_its_place_is_taken(
    settings: RemoteSettings, store: Store, there: Path
) -> None:
    upload(settings, store, fill(store, range(2)))
    upload(settings, store, [put(store, 2)])
    for index in (there / "pallasc/v1" / NAMESPACE / "index").iterdir():
        index.write_bytes(b"damaged")
    done = collect(settings, max_bytes=1)
    assert (done.packs, len(done.unread)) == (2, 2)
    assert "its SHA-256 is" in done.unread[0]


@pytest.mark.parametrize(
    ("max_age_s", "max_bytes", "gone"),
    [
        (None, None, ""),
        (50.0, None, "a"),
        (None, 100, ""),
        (None, 99, "a"),
        (None, 60, "ab"),
        (25.0, 30, "abc"),
        (0.0, 0, "abcd"),
    ],
)
def test_choose(max_age_s: float | None, max_bytes: int | None, gone: str) -> None:
    packs = {"a": (30, 40), "b": (10, 70), "c": (50, 80), "d": (10, 90)}
    found = choose(packs, now_s=100.0, max_age_s=max_age_s, max_bytes=max_bytes)
    assert found == set(gone)


def test_a_remote_that_lists_nothing_says_so(store: Store, home: Path) -> None:
    from pallasc.cache.remote.settings import read_settings

    settings = read_settings({}, url="bazel+http://127.0.0.1:1")
    assert settings is not None
    with pytest.raises(RemoteError, match="cannot be listed") as caught:
        pull(settings, store)
    assert caught.value.failure is Failure.UNSUPPORTED
