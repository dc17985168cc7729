"""A remote as a build uses it: what one machine compiled, another one finds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import variants
from variants import accept_all, action_key, check, download, fill, put, request_key, upload

from pallasc.cache.manifests import Manifest
from pallasc.cache.remote.remote import Remote
from pallasc.cache.remote.settings import RemoteSettings, read_settings
from pallasc.cache.remote.survey import survey, verify
from pallasc.cache.remote.writing import MOST_INDEXES, MOST_PACKS, PACK_BYTES
from pallasc.cache.store import Store


def test_what_one_machine_wrote_another_one_finds(
    settings: RemoteSettings, store: Store, other: Store
) -> None:
    keys = fill(store, range(10))
    sent = upload(settings, store, keys)
    assert (sent.offered, sent.tripped, sent.refused) == (10, "", [])
    found, stats = download(settings, other, keys)
    assert found == {request_key(n): action_key(n) for n in range(10)}
    assert (stats.hits, stats.saved_s, stats.refused) == (10, 15.0, [])
    for number in range(10):
        check(other, number)


def test_an_empty_remote_has_nothing_and_is_no_error(
    settings: RemoteSettings, other: Store
) -> None:
    found, stats = download(settings, other, [request_key(1)])
    assert (found, stats.requests, stats.tripped) == ({}, 1, "")


def test_nothing_is_written_without_the_switch(
    settings: RemoteSettings, store: Store, there: Path
) -> None:
    keys = fill(store, range(3))
    reading = RemoteSettings(settings.address, write=False)
    assert upload(reading, store, keys).offered == 0
    assert not there.exists()


def test_what_the_remote_has_is_not_written_again(settings: RemoteSettings, store: Store) -> None:
    keys = fill(store, range(5))
    upload(settings, store, keys)
    again = upload(settings, store, keys)
    assert (again.offered, again.bytes_written) == (0, 0)


def test_another_record_under_an_action_key_is_told_and_not_written(
    settings: RemoteSettings, store: Store, other: Store
) -> None:
    upload(settings, store, fill(store, range(2)))
    made = other.put_artifact(action_key(0), {"number": 0}, {"cubin": b"other bytes"})
    other.put_manifest(request_key(0), Manifest(action=action_key(0), record=made.digest))
    stats = upload(settings, other, [request_key(0)])
    assert stats.offered == 0
    assert [text.split(":")[0] for text in stats.conflicts] == [f"action key {action_key(0)}"]


def test_the_newest_manifest_that_is_true_here_counts(
    settings: RemoteSettings, store: Store, other: Store, tmp_path: Path
) -> None:
    for version in range(3):
        upload(settings, store, [put(store, 7, version)])
    seen: list[str] = []

    def accept(key: str, manifest: Manifest) -> bool:
        seen.append(manifest.fields)
        return manifest.fields == "v1"

    remote = Remote.open(settings, other, tell=lambda text: None)
    remote.prepare(variants.NAMESPACE)
    assert remote.fetch([request_key(7)], accept) == {request_key(7): action_key(7, 1)}
    assert remote.finish().hits == 1
    assert set(seen) >= {"v1"}
    check(other, 7, 1)


def test_a_manifest_that_is_not_accepted_brings_nothing(
    settings: RemoteSettings, store: Store, other: Store
) -> None:
    upload(settings, store, fill(store, range(4)))
    remote = Remote.open(settings, other, tell=lambda text: None)
    remote.prepare(variants.NAMESPACE)
    wanted = [request_key(n) for n in range(4)]
    assert set(remote.fetch(wanted, lambda key, _: key == wanted[2])) == {wanted[2]}
    remote.finish()
    assert other.get_manifest(wanted[0]) is None
    assert other.get_artifact(action_key(0)) is None
    check(other, 2)


def test_another_namespace_is_not_looked_at(
    settings: RemoteSettings, store: Store, other: Store
) -> None:
    keys = fill(store, range(2))
    upload(settings, store, keys)
    remote = Remote.open(settings, other, tell=lambda text: None)
    remote.prepare("0" * 64)
    assert remote.fetch(keys, accept_all) == {}


def test_many_variants_take_few_requests(fast_folder: Path) -> None:
    store, other = Store(fast_folder / "store"), Store(fast_folder / "other")
    settings = read_settings({}, url=f"file://{fast_folder}/there", write=True)
    assert settings is not None
    keys = fill(store, range(150), size=100_000)
    assert upload(settings, store, keys).bytes_written > 3 * PACK_BYTES
    found, stats = download(settings, other, keys)
    assert len(found) == 150
    assert stats.requests <= 12


def test_many_small_packs_become_few(
    settings: RemoteSettings, store: Store, tmp_path: Path
) -> None:
    keys = [put(store, number) for number in range(MOST_PACKS + 2)]
    for key in keys:
        upload(settings, store, [key])
    before = download(settings, Store(tmp_path / "first"), keys)[1]
    assert before.tripped == ""
    after = download(RemoteSettings(settings.address), Store(tmp_path / "second"), keys)[1]
    assert (before.hits, after.hits) == (len(keys), len(keys))
    assert before.requests > MOST_PACKS
    assert after.requests <= 1 + MOST_INDEXES + 1
    assert verify(settings) == []


def test_indexes_are_joined_before_there_are_too_many(
    settings: RemoteSettings, store: Store, other: Store
) -> None:
    keys = [put(store, number) for number in range(MOST_INDEXES + 3)]
    for key in keys:
        upload(settings, store, [key])
    (figures,) = survey(settings)
    assert figures.variants == len(keys)
    assert figures.indexes <= MOST_INDEXES
    assert len(download(settings, other, keys)[0]) == len(keys)


def test_costs_are_those_from_before_a_time(
    settings: RemoteSettings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for time_s in (1000, 2000, 3000):
        monkeypatch.setattr("time.time", lambda time_s=time_s: float(time_s))
        remote = Remote.open(settings, store, tell=lambda text: None)
        remote.prepare(variants.NAMESPACE)
        remote.offer_costs(b"costs of %d" % time_s)
        assert remote.finish().tripped == ""
    remote = Remote.open(settings, store, tell=lambda text: None)
    remote.prepare(variants.NAMESPACE)
    found = [remote.costs(before) for before in (1000.0, 1001.0, 2500.0, 9000.0)]
    assert found == [None, b"costs of 1000", b"costs of 2000", b"costs of 3000"]


def test_only_what_is_signed_counts_where_the_settings_ask_for_it(
    settings: RemoteSettings, store: Store, other: Store, home: Path
) -> None:
    upload(settings, store, fill(store, range(2)))
    signed = RemoteSettings(settings.address, signed=True)
    found, stats = download(signed, other, [request_key(0), request_key(1)])
    assert found == {}
    assert stats.refused == [
        f"manifest {request_key(n)}: no trusted key signed it" for n in range(2)
    ]
    signer = Store(store.root.parent / "signer", require_signed=True)
    upload(settings, signer, [put(signer, 0, 3)])
    assert list(download(signed, other, [request_key(0), request_key(1)])[0]) == [request_key(0)]


def test_each_machine_finds_its_set_of_sources_also_after_indexes_were_joined(
    settings: RemoteSettings, store: Store, other: Store
) -> None:
    def put_set(where: Store, version: int) -> str:
        manifest = where.get_manifest(put(where, 7, version))
        assert manifest is not None
        return where.put_set(request_key(7), replace(manifest, read=f"{version:064x}"))

    names = [put_set(store, version) for version in range(MOST_INDEXES + 3)]
    for name in names:
        upload(settings, store, [name])
    own = put_set(other, 100)
    for version in (0, MOST_INDEXES + 2):
        remote = Remote.open(settings, other, tell=lambda text: None)
        remote.prepare(variants.NAMESPACE)
        fields = f"v{version}"
        found = remote.fetch([request_key(7)], lambda _, m, fields=fields: m.fields == fields)
        assert found == {names[version]: action_key(7, version)}
        assert remote.finish().hits == 1
    assert {name for name, _ in other.sets(request_key(7))} == {own, names[0], names[-1]}
