"""What a stranger may put into a remote: nothing is believed, no memory is taken for it."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from variants import (
    NAMESPACE,
    action_key,
    blobs,
    check,
    download,
    fill,
    put,
    request_key,
    upload,
)

from pallasc.cache.manifests import Manifest
from pallasc.cache.remote import layout
from pallasc.cache.remote.catalog import Catalog, Change, decode_catalog
from pallasc.cache.remote.held import Held
from pallasc.cache.remote.index import Index, decode_index, joined
from pallasc.cache.remote.reading import MOST_READ, MOST_READ_BYTES
from pallasc.cache.remote.settings import RemoteSettings
from pallasc.cache.remote.transfer import pull, push
from pallasc.cache.remote.writing import MOST_INDEXES
from pallasc.cache.store import Store
from pallasc.errors import CorruptError
from pallasc.specs.bundle import compress

A, B, C = "a" * 64, "b" * 64, "c" * 64


def _catalog(body: dict[str, Any]) -> bytes:
    return layout.encode(layout.CATALOG, body)


PARTS: dict[str, Any] = {"indexes": {A: [10, 5]}, "packs": {B: [20, 6]}, "costs": {}, "bad": {C: 7}}


def test_a_catalog_is_read_as_it_was_written() -> None:
    catalog = decode_catalog(_catalog(PARTS))
    assert catalog == Catalog({A: (10, 5)}, {B: (20, 6)}, {}, {C: 7})
    assert decode_catalog(catalog.encode()) == catalog


@pytest.mark.parametrize(
    "change",
    [
        {"indexes": []},
        {"indexes": {"A" * 64: [1, 2]}},
        {"indexes": {A: [1]}},
        {"indexes": {A: [1, -2]}},
        {"packs": {B: [2**60, 1]}},
        {"packs": {B: [True, 1]}},
        {"packs": {"../x": [1, 1]}},
        {"costs": {A: "1"}},
        {"bad": {A: 1.5}},
        {"more": {}},
    ],
)
def test_a_catalog_with_a_wrong_field_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CorruptError):
        decode_catalog(_catalog({**PARTS, **change}))


def test_a_record_of_another_version_or_kind_is_refused() -> None:
    data = _catalog(PARTS)
    with pytest.raises(CorruptError, match="version 2, and this pallasc reads 1"):
        decode_catalog(data.replace(b"pallasc-remote 1", b"pallasc-remote 2"))
    with pytest.raises(CorruptError, match="the index is damaged"):
        layout.decode(layout.INDEX, data)
    for at in range(0, len(data), 7):
        with pytest.raises(CorruptError):
            decode_catalog(data[:at])


def test_a_change_can_be_done_again_to_a_newer_catalog() -> None:
    change = Change(
        indexes={B: (1, 100)},
        packs={C: (2, 100)},
        bad={A: 100},
        used={B: 90},
        dropped_indexes=frozenset({A}),
    )
    catalog = decode_catalog(_catalog(PARTS)).changed(change)
    assert catalog == Catalog({B: (1, 100)}, {B: (20, 90), C: (2, 100)}, {}, {A: 100})
    assert change.is_in(catalog)
    assert not change.is_in(decode_catalog(_catalog(PARTS)))
    assert catalog.changed(Change(indexes={C: (1, 50)})).newest() == [C, B]


@pytest.fixture
def index(settings: RemoteSettings, store: Store, there: Path) -> bytes:
    """Return the index of a remote with three variants."""
    upload(settings, store, fill(store, range(3)))
    (path,) = (there / "pallasc/v1" / NAMESPACE / "index").iterdir()
    return path.read_bytes()


def _changed(data: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Return an index after a change to its body, with checksums that fit."""
    (size,) = struct.unpack_from("<Q", data)
    body = layout.decode(layout.INDEX, compress.decompress(data[8:], size))
    change(body)
    record = layout.encode(layout.INDEX, body)
    return struct.pack("<Q", len(record)) + compress.compress(record, 3)


def _first(table: dict[str, Any]) -> str:
    return next(iter(table))


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.pop("packs"),
        lambda body: body.update(frames={}),
        lambda body: body["packs"][0].append(1),
        lambda body: body["packs"].clear(),
        lambda body: body["frames"][0].__setitem__(0, -1),
        lambda body: body["frames"][0].__setitem__(1, -5),
        lambda body: body["frames"][0].__setitem__(3, 2**40),
        lambda body: body["frames"][0].__setitem__(4, "x"),
        lambda body: body["requests"].update({"x": [A, 0, B]}),
        lambda body: body["requests"].update({A: [A, 99, B]}),
        lambda body: body["requests"].update({A: [A, True, B]}),
        lambda body: body["actions"].update({A: [B, 0]}),
        lambda body: body["actions"].update({A: [B, [0] * 5000]}),
    ],
)
def test_an_index_with_a_wrong_field_is_refused(
    index: bytes, change: Callable[[dict[str, Any]], None]
) -> None:
    with pytest.raises(CorruptError, match=r"not what an index is|frame 0 has|for a content of"):
        decode_index(_changed(index, change))


def test_an_index_that_claims_to_be_huge_is_refused_before_it_is_unpacked(index: bytes) -> None:
    bomb = struct.pack("<Q", 200 * 2**20) + compress.compress(b"\0" * 200 * 2**20, 1)
    with pytest.raises(CorruptError, match="for a content of 209,715,200"):
        decode_index(bomb)
    for cut in (0, 8, len(index) // 2, len(index) - 1):
        with pytest.raises(CorruptError):
            decode_index(index[:cut])


def test_an_index_of_many_small_values_is_refused_before_they_take_memory() -> None:
    rng = random.Random(5)
    body = {"packs": [rng.randrange(10) for _ in range(2**20)]}
    record = layout.encode(layout.INDEX, body)
    data = struct.pack("<Q", len(record)) + compress.compress(record, 6)
    with pytest.raises(CorruptError, match=r"has 1,048,57\d values in"):
        decode_index(data)


def test_an_index_that_readers_would_refuse_is_not_written(
    settings: RemoteSettings, store: Store, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "MAX_INDEX_BYTES", 1000)
    stats = upload(settings, store, fill(store, range(4)))
    assert stats.tripped == "the index of 4 variants is too large"
    assert not (there / layout.catalog_name(NAMESPACE)).exists()
    for number in range(MOST_INDEXES + 2):
        upload(settings, store, [put(store, number, 1)])
    folder = there / "pallasc/v1" / NAMESPACE / "index"
    assert len(list(folder.iterdir())) == MOST_INDEXES + 2  # together they are too large


def test_changed_bytes_of_an_index_are_refused(index: bytes) -> None:
    rng = random.Random(3)
    for _ in range(300):
        changed = bytearray(index)
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        if bytes(changed) != index:
            with pytest.raises(CorruptError):
                decode_index(bytes(changed))


def test_indexes_are_joined_with_the_newer_row_first(
    settings: RemoteSettings, store: Store, there: Path
) -> None:
    folder = there / "pallasc/v1" / NAMESPACE / "index"
    upload(settings, store, [put(store, 1, 0)])
    old = decode_index(next(folder.iterdir()).read_bytes())
    upload(settings, store, [put(store, 1, 1)])
    new = next(i for i in map(_read, folder.iterdir()) if action_key(1, 1) in i.actions)
    both = joined([new, old])
    assert both.requests == new.requests
    assert both.actions == {**new.actions, **old.actions}
    assert both.packs == {**new.packs, **old.packs}
    assert decode_index(both.encode()) == both
    assert both.without_packs(new.packs).requests == {}
    assert both.without_packs(new.packs).actions == old.actions


def _read(path: Path) -> Index:
    return decode_index(path.read_bytes())


def _replace_index(there: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Do what a stranger can who may write: change the index and the catalog, digests and all."""
    (path,) = (there / "pallasc/v1" / NAMESPACE / "index").iterdir()
    data = _changed(path.read_bytes(), change)
    path.with_name(layout.sha256(data)).write_bytes(data)
    catalog = there / layout.catalog_name(NAMESPACE)
    body = json.loads(catalog.read_bytes().partition(b"\n")[2])
    body["indexes"] = {layout.sha256(data): [len(data), 99]}
    catalog.write_bytes(_catalog(body))


def _exchange(table: dict[str, Any], first: str, second: str) -> None:
    table[first], table[second] = table[second], table[first]


@pytest.mark.parametrize(
    "change",
    [
        lambda body: _exchange(body["requests"], request_key(0), request_key(1)),
        lambda body: body["requests"][request_key(0)].__setitem__(0, A),
        lambda body: _exchange(body["actions"], action_key(0), action_key(1)),
        lambda body: body["actions"][action_key(0)].__setitem__(0, A),
        lambda body: body["actions"][action_key(0)].__setitem__(1, []),
        lambda body: body["actions"].pop(action_key(0)),
        lambda body: body["frames"][0].__setitem__(1, 100),
        lambda body: body["frames"][0].__setitem__(4, A),
        lambda body: body["packs"][0].__setitem__(0, A),
        lambda body: body["packs"][0].__setitem__(1, 2**40),
    ],
)
def test_an_index_that_lies_costs_misses(
    settings: RemoteSettings,
    store: Store,
    other: Store,
    there: Path,
    change: Callable[[dict[str, Any]], None],
) -> None:
    keys = fill(store, range(3))
    upload(settings, store, keys)
    _replace_index(there, change)
    found, stats = download(settings, other, keys)
    assert stats.tripped == ""
    for number in range(3):
        if request_key(number) in found:
            check(other, number)
    for area in ("ac", "man"):
        assert len(other.names(area)) == len(found)


def test_a_record_that_no_accepted_manifest_names_stays_out(
    settings: RemoteSettings, store: Store, other: Store
) -> None:
    keys = fill(store, range(6))
    upload(settings, store, keys)
    assert len(download(settings, other, keys[:1])[0]) == 1
    assert other.names("ac") == [action_key(0)]
    assert other.names("man") == [keys[0]]


def test_a_manifest_that_leads_to_another_record_brings_nothing(
    settings: RemoteSettings, store: Store, other: Store
) -> None:
    """Its action is there, but the record under it is not the one that the manifest names."""
    upload(settings, store, [put(store, 1)])
    made = other.put_artifact(action_key(1), {"number": 9}, blobs(9))
    other.put_manifest(request_key(2), Manifest(action=action_key(1), record=made.digest))
    upload(settings, other, [request_key(2)])
    reader = Store(other.root.parent / "reader")
    found, _ = download(settings, reader, [request_key(1), request_key(2)])
    assert list(found) == [request_key(1)]
    check(reader, 1)


def test_what_the_local_store_has_under_the_key_stays(
    settings: RemoteSettings, store: Store, other: Store
) -> None:
    upload(settings, store, [put(store, 1)])
    other.put_artifact(action_key(1), {"number": 9}, blobs(9))
    assert download(settings, other, [request_key(1)])[0] == {}
    found = other.get_artifact(action_key(1), verify=True)
    assert found is not None
    assert found.artifact == {"number": 9}


def test_a_part_of_a_pack_is_not_read_where_it_would_take_much_memory(
    settings: RemoteSettings, store: Store, other: Store, there: Path
) -> None:
    """Frames side by side in a pack that claims to be huge are one part."""

    def change(body: dict[str, Any]) -> None:
        body["packs"][0][1] = 2**47
        first, size = len(body["frames"]), 2**26
        for number in range(4096):
            digest = layout.sha256(str(number).encode())
            body["frames"].append([0, 2**20 + number * size, size, size, digest])
        body["actions"][action_key(0)][1] = list(range(first, first + 4096))

    keys = fill(store, range(1))
    upload(settings, store, keys)
    _replace_index(there, change)
    found, stats = download(settings, other, keys)
    assert found == {}
    assert "is over the limit of 67,108,864" in " ".join(stats.refused)


def test_no_more_indexes_are_read_than_writers_leave(
    settings: RemoteSettings, store: Store, other: Store, there: Path
) -> None:
    upload(settings, store, fill(store, range(1)))
    catalog = there / layout.catalog_name(NAMESPACE)
    body = json.loads(catalog.read_bytes().partition(b"\n")[2])
    body["indexes"] |= {f"{number:064x}": [10, 2**39 - number] for number in range(5000)}
    catalog.write_bytes(_catalog(body))
    found, stats = download(settings, other, [request_key(0)])
    assert found == {}
    assert stats.requests <= 1 + MOST_READ
    large = {f"{number:064x}": [MOST_READ_BYTES // 2, 2**39 - number] for number in range(5000)}
    catalog.write_bytes(_catalog({**body, "indexes": large}))
    assert download(settings, other, [request_key(0)])[1].requests == 3


def test_packs_are_held_in_a_file_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held()
    monkeypatch.setattr("pallasc.cache.remote.held.MOST_BYTES", 10)
    held.put(A, b"12345")
    held.put(B, b"6789")
    held.put(C, b"no room")
    assert [held.get(pack) for pack in (A, B, C)] == [b"12345", b"6789", None]
    assert [held.has(pack) for pack in (A, B, C)] == [True, True, False]


@pytest.mark.parametrize("field", [{"specs": "[]"}, {"check": "{}"}, {"toolchains": [{"x": "1"}]}])
def test_a_remote_has_no_say_in_what_a_store_remembers_beside_variants(
    settings: RemoteSettings, store: Store, other: Store, field: dict[str, Any]
) -> None:
    """Specs of Python files, toolchains and results of checks lie under keys of their own."""
    key = put(store, 1)
    manifest = store.get_manifest(key)
    assert manifest is not None
    store.put_manifest(key, replace(manifest, **field))
    push(settings, store, {NAMESPACE: [key]})
    assert pull(settings, other).left == 1
    assert other.names("man") == []
    own = Manifest(**field)
    other.put_manifest(key, own)
    store.put_manifest(key, manifest)
    push(settings, store, {NAMESPACE: [key]})
    assert pull(settings, other).moved == 0
    found = other.get_manifest(key)
    assert found is not None
    assert found.to_json() == own.to_json()
