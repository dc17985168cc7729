"""A remote as builds and commands use it: what one machine compiled, another one finds."""

import asyncio
import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs
from variants import (
    NAMESPACE,
    accept_all,
    action_key,
    check,
    download,
    fill,
    put,
    request_key,
    upload,
)

from pallasc.cache.manifests import Manifest
from pallasc.cache.remote.remote import MOST_PACKS, Remote, prune, pull, push, survey, verify
from pallasc.cache.remote.session import Objects, RemoteError
from pallasc.cache.remote.settings import RemoteSettings
from pallasc.cache.remote.transfer import catalog_name, decode_catalog, pack_name
from pallasc.cache.store import Store

DAY_S = 24 * 3600.0


def test_what_one_machine_wrote_another_one_finds(
    settings: RemoteSettings, store: Store, other: Store
) -> None:
    huge = put(store, 99, size=8_000_000)
    stats = upload(settings, store, [huge])
    assert (stats.offered, stats.refusals) == (0, 1)
    assert "are too many for a remote store" in stats.refused[0]
    keys = [*fill(store, range(5)), *fill(store, range(5, 10), size=1_500_000)]
    assert download(settings, other, keys)[0] == {}
    sent = upload(settings, store, keys)
    assert (sent.offered, sent.tripped, sent.refused) == (10, "", [])
    again = upload(settings, store, keys)
    assert (again.offered, again.bytes_written) == (0, 0)
    found, stats = download(settings, other, keys)
    assert found == {request_key(n): action_key(n) for n in range(10)}
    assert (stats.hits, stats.saved_s, stats.refused) == (10, 15.0, [])
    for number in range(10):
        check(other, number, size=3000 if number < 5 else 1_500_000)
    remote = Remote(settings, other, "0" * 64, tell=lambda text: None)
    assert remote.fetch(keys, accept_all) == {}


def test_only_accepted_manifests_arrive_and_the_newest_that_fits_counts(
    settings: RemoteSettings, store: Store, other: Store
) -> None:
    def put_set(version: int) -> str:
        manifest = store.get_manifest(put(store, 7, version))
        assert manifest is not None
        return store.put_set(request_key(7), structs.replace(manifest, read=f"{version:064x}"))

    names = [put_set(version) for version in range(5)]
    for name in names:
        upload(settings, store, [name])
    remote = Remote(settings, other, NAMESPACE, tell=lambda text: None)
    seen: list[str] = []

    def accept(name: str, manifest: Manifest) -> bool:
        seen.append(manifest.fields)
        return manifest.fields in ("v1", "v2")

    found = remote.fetch([request_key(7)], accept)
    assert found in ({names[2]: action_key(7, 2)}, {names[1]: action_key(7, 1)})
    assert remote.finish().hits == 1
    assert [name for name, _ in other.sets(request_key(7))] == list(found)
    assert other.get_artifact(action_key(7, 4)) is None


def test_many_variants_take_few_requests_and_many_packs_become_few(
    settings: RemoteSettings, fast_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(fast_folder / "store")
    keys = fill(store, range(120), size=1000)
    upload(settings, store, keys)
    found, stats = download(settings, Store(fast_folder / "first"), keys)
    assert (len(found), stats.requests <= 12) == (120, True)
    few = keys[: MOST_PACKS + 3]
    prune(settings, max_bytes=0)
    for key in few:
        upload(settings, store, [key])
    before = download(settings, Store(fast_folder / "second"), few)[1]
    after = download(settings, Store(fast_folder / "third"), few)[1]
    assert (before.hits, after.hits) == (len(few), len(few))
    assert before.requests > MOST_PACKS
    assert after.requests <= 5
    assert verify(settings) == []


def test_another_artifact_under_an_action_key_is_reported_and_the_local_one_stays(
    settings: RemoteSettings, store: Store, other: Store
) -> None:
    upload(settings, store, fill(store, range(2)))
    made = other.put_artifact(action_key(0), {"number": 0}, {"cubin": b"other bytes"})
    pulled = pull(settings, other)
    assert (pulled.moved, pulled.left) == (1, 1)
    assert [text.split(":")[0] for text in pulled.stats.conflicts] == [
        f"action key {action_key(0)}"
    ]
    held = other.get_artifact(action_key(0))
    assert held is not None
    assert held.digest == made.digest


def test_only_signed_entries_count_where_the_settings_ask_for_it(
    settings: RemoteSettings, store: Store, other: Store, home: Path
) -> None:
    upload(settings, store, fill(store, range(2)))
    signed = RemoteSettings(settings.address, signed=True)
    found, stats = download(signed, other, [request_key(0), request_key(1)])
    assert found == {}
    assert sorted(stats.refused) == sorted(
        f"manifest {request_key(n)}: no trusted key signed it" for n in range(2)
    )
    own = RemoteSettings(replace(settings.address, path=f"{settings.address.path}/own"), write=True)
    signer = Store(store.root.parent / "signer", require_signed=True)
    upload(own, signer, [put(signer, 0, 3)])
    assert list(download(replace(own, signed=True), other, [request_key(0)])[0]) == [request_key(0)]


def test_push_and_pull_move_a_whole_store(
    settings: RemoteSettings, store: Store, other: Store
) -> None:
    keys = fill(store, range(20))
    artifact = store.get_artifact(action_key(1))
    assert artifact is not None
    store.path("cas", artifact.record.blobs["cubin"].digest).unlink()
    steps: list[tuple[int, int]] = []
    pushed = push(settings, store, {NAMESPACE: keys}, on_step=lambda *step: steps.append(step))
    assert (pushed.moved, pushed.present, pushed.left) == (19, 0, 1)
    assert steps[-1] == (20, 20)
    assert push(settings, store, {NAMESPACE: keys})[:3] == (0, 19, 1)
    put(other, 2, 5)
    assert pull(settings, other)[:3] == (18, 1, 0)
    check(other, 2, 5)
    check(other, 19)
    assert pull(settings, other)[:3] == (0, 19, 0)
    assert verify(settings) == []


@pytest.mark.parametrize("part", ["pallasc", f"pallasc/v4/{NAMESPACE}/packs"])
def test_a_link_in_a_remote_folder_leads_nowhere(
    settings: RemoteSettings, store: Store, there: Path, tmp_path: Path, part: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (there / part).parent.mkdir(parents=True)
    (there / part).symlink_to(outside)
    stats = upload(settings, store, fill(store, range(2)))
    assert (stats.offered, list(outside.iterdir())) == (0, [])


def test_a_pack_that_cannot_be_sent_does_not_discard_the_others(
    settings: RemoteSettings, store: Store, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pallasc.cache.remote.transfer.PACK_BYTES", 1)
    names = {NAMESPACE: fill(store, range(3))}
    push(settings, store, names)
    catalog = there / catalog_name(NAMESPACE)
    second = there / pack_name(NAMESPACE, decode_catalog(catalog.read_bytes()).rows[1].pack)
    catalog.unlink()
    second.unlink()
    os.mkfifo(second)
    with pytest.raises(RemoteError, match=f"{second.name} is not a folder or file"):
        push(settings, store, names)
    assert survey(settings)[0].packs == 2
    assert verify(settings) == []
    second.unlink()
    assert push(settings, store, names)[:2] == (1, 2)


def test_a_pack_that_another_process_removes_is_a_miss(
    settings: RemoteSettings, store: Store, other: Store, there: Path
) -> None:
    keys = fill(store, range(2))
    upload(settings, store, keys)
    for pack in there.glob("**/packs/*"):
        pack.unlink()
    found, stats = download(settings, other, keys)
    assert (found, stats.tripped, stats.refusals) == ({}, "", 1)
    assert stats.refused[0].endswith(": there is no such file")


@pytest.mark.parametrize("name", ["packs", "catalog"])
def test_verify_finds_a_changed_byte_and_the_next_writer_heals_it(
    settings: RemoteSettings, store: Store, other: Store, there: Path, name: str
) -> None:
    keys = fill(store, range(4))
    upload(settings, store, keys)
    (path,) = (p for p in there.rglob("*") if p.is_file() and name in p.parts[-2:])
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    assert verify(settings) != []
    remote = Remote(settings, other, NAMESPACE, tell=lambda text: None)
    assert remote.fetch(keys, accept_all) == {}
    for key in fill(other, range(4)):
        remote.offer(key)
    assert remote.finish().offered == 4
    assert verify(settings) == []


def test_old_packs_go_and_used_ones_stay(
    settings: RemoteSettings, store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 2_000_000_000.0
    for age, number in ((40, 1), (40, 2), (5, 3)):
        monkeypatch.setattr("time.time", lambda age=age: now - age * DAY_S)
        upload(settings, store, [put(store, number)])
    monkeypatch.setattr("time.time", lambda: now)
    download(settings, other, [request_key(2)])
    download(replace(settings, write=False), other, [request_key(1)])  # records no use
    dry = prune(settings, max_age_s=30 * DAY_S, dry_run=True)
    assert (dry.packs, dry.kept_packs) == (1, 2)
    assert survey(settings)[0].variants == 3
    assert prune(settings, max_age_s=30 * DAY_S).packs == 1
    keys = [request_key(n) for n in (1, 2, 3)]
    found, stats = download(settings, Store(other.root.parent / "x"), keys)
    assert (sorted(found), stats.refused) == (sorted(keys[1:]), [])
    assert prune(settings, max_bytes=stats.bytes_read // 2).packs == 1
    assert verify(settings) == []


def test_objects_that_no_catalog_names_go_after_a_day_unless_it_is_damaged(
    settings: RemoteSettings, store: Store, there: Path
) -> None:
    upload(settings, store, fill(store, range(2)))
    stray = there / pack_name(NAMESPACE, "ab" * 32)
    stray.write_bytes(b"of a writer that was killed")
    assert prune(settings).unknown == 0
    for path in there.rglob("*"):
        os.utime(path, (1, 1))
    catalog = there / catalog_name(NAMESPACE)
    whole = catalog.read_bytes()
    catalog.write_bytes(whole[:-1])
    done = prune(settings, max_bytes=0)
    assert (done.packs, done.unknown, len(done.unread)) == (0, 0, 1)
    assert f"namespace {NAMESPACE} stays as it is: the catalog is damaged" in done.unread[0]
    catalog.write_bytes(whole)
    assert prune(settings).unknown == 1
    assert not stray.exists()
    assert verify(settings) == []


def test_a_catalog_that_is_full_loses_its_oldest_packs(
    settings: RemoteSettings, store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pallasc.cache.remote.transfer.MAX_ROWS", 3)
    for number in range(5):
        upload(settings, store, [put(store, number)])
    found, _ = download(settings, other, [request_key(n) for n in range(5)])
    assert sorted(found) == sorted(request_key(n) for n in (2, 3, 4))


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.EROFS, "Check the address, its permissions, and the network."),
        (errno.ENOENT, "Check the address, its permissions, and the network."),
        (errno.ENOSPC, "Free space there, or remove packs with `pallasc cache prune --remote`."),
    ],
)
def test_a_folder_that_cannot_be_created_is_named_with_the_reason(
    settings: RemoteSettings, number: int, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path, **how: bool) -> None:
        raise OSError(number, os.strerror(number), str(folder))

    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(RemoteError) as caught:
        asyncio.run(Objects(settings.address, 10.0, 0).put("packs/x", b"pack"))
    assert caught.value.message == f"PUT {settings.address}/packs/x: {os.strerror(number)}"
    assert caught.value.hint == hint
