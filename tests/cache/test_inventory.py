"""Contents of a store, and the index of what was read before."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stored import put_blob

from pallasc.cache import files, format
from pallasc.cache.folders import Folders
from pallasc.cache.inventory import stats, take_inventory
from pallasc.cache.manifests import About, Manifest
from pallasc.cache.store import Store

Publish = Callable[..., str]

KEYS = ["ab" * 32, "cd" * 32, "ef" * 32]


@pytest.fixture
def filled(store: Store, publish: Publish) -> Store:
    for key in KEYS:
        publish(key, used_s=5)
    assert [*take_inventory(store).records] == KEYS
    return store


def index(store: Store) -> Path:
    return store.folder / "stat" / "index"


def test_a_missing_store_is_empty_and_is_not_made(store: Store) -> None:
    assert take_inventory(store).records == {}
    assert not store.root.exists()


def test_what_the_index_knows_is_not_read_again(filled: Store) -> None:
    before = index(filled).stat().st_mtime_ns
    assert take_inventory(filled).read == 0
    assert index(filled).stat().st_mtime_ns == before


def test_what_is_new_is_read_and_what_is_gone_is_forgotten(filled: Store, publish: Publish) -> None:
    publish("00" * 32, used_s=7)
    filled.path("ac", KEYS[0]).unlink()
    found = take_inventory(filled)
    assert (found.read, [*found.records]) == (1, ["00" * 32, *KEYS[1:]])


def test_a_corrupt_record_is_left_out_and_a_repair_puts_it_away(filled: Store) -> None:
    filled.path("ac", KEYS[0]).write_bytes(b"")
    found = take_inventory(filled)
    assert [*found.records] == KEYS[1:]
    assert filled.path("ac", KEYS[0]).exists()
    take_inventory(filled, repair=True)
    assert not filled.path("ac", KEYS[0]).exists()


def test_a_folder_that_cannot_be_read_is_a_fault_and_forgets_nothing(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Folders.opened

    def refuse(folders: Folders, folder: str = "", **options: Any) -> Any:
        if folder == "ac/ab":
            raise OSError(5, "broken")
        return real(folders, folder, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Folders, "opened", refuse)
        assert "broken" in take_inventory(filled).faults[0]
    assert take_inventory(filled).read == 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[:100] + b"x" + data[101:],
        lambda data: data + b"x",
    ],
)
def test_a_damaged_index_is_made_again(filled: Store, damage: Callable[[bytes], bytes]) -> None:
    path = index(filled)
    path.write_bytes(damage(path.read_bytes()))
    found = take_inventory(filled)
    assert (found.read, [*found.records]) == (3, KEYS)
    assert take_inventory(filled).read == 0


@pytest.mark.parametrize(
    "facts",
    [7, [], None, {"blobs": [1]}, {"blobs": 1}, {"blobs": ["x"]}],
)
def test_an_index_that_anyone_wrote_stops_nothing(filled: Store, facts: object) -> None:
    name = format.sha256(b"pallasc index")
    body = format.decode("index", name, index(filled).read_bytes(), dict)[0]["facts"]
    assert isinstance(body, dict)
    body[f" ac {KEYS[0]}"][1] = facts
    index(filled).write_bytes(format.encode("index", name, {"facts": body})[0])
    found = take_inventory(filled)
    assert (found.read, [*found.records]) == (3, KEYS)
    assert take_inventory(filled).read == 0


def test_a_folder_in_the_place_of_the_index_is_done_without(filled: Store) -> None:
    index(filled).unlink()
    index(filled).mkdir()
    assert [*take_inventory(filled).records] == KEYS


def test_a_disk_that_fails_is_done_without(
    filled: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish("00" * 32, used_s=7)

    def refuse(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "temporary", refuse)
    assert len(take_inventory(filled).records) == 4


def test_the_group_may_write_what_the_umask_lets_it(store: Store, publish: Publish) -> None:
    before = os.umask(0o002)
    try:
        publish(KEYS[0], used_s=5)
        take_inventory(store)
    finally:
        os.umask(before)
    assert index(store).stat().st_mode & 0o777 == 0o664


def test_records_of_strangers_are_taken_as_they_are_and_their_manifests_checked(
    store: Store,
) -> None:
    digest = put_blob(store, b"x")
    strange = {"kernels": [{"cubin": ["x"]}, 7], "blobs": {}}
    body = {"artifact": strange, "blobs": {"x": {"digest": digest, "size": 2**40}}}
    place = store.path("ac", KEYS[0])
    place.parent.mkdir(parents=True)
    place.write_bytes(format.encode("artifact", KEYS[0], body)[0])
    os.utime(place, ns=(2**63 - 1, 2**63 - 1))
    abouts = [{"name": "\ud800"}, {"name": "a", "seconds": 1e300}, 7, {"name": "x" * 20_000}]
    for number, about in enumerate(abouts):
        name = f"{number:064x}"
        path = store.path("man", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(format.encode("manifest", name, {"action": KEYS[0], "about": about})[0])
    store.put_manifest(f"{9:064x}", Manifest(action=KEYS[0], about={"name": "a"}))
    for _ in range(2):
        found = take_inventory(store)
        assert found.variants() == {KEYS[0]: [About("a", "", {})]}
        assert stats(store).entries == 1
