"""Contents of a store, and the index of what was read before."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stored import put_blob

from pallasc.cache import files, format
from pallasc.cache.evict import Limits
from pallasc.cache.folders import Folders
from pallasc.cache.inventory import Scan, artifacts, stats, take_inventory
from pallasc.cache.manifests import About, Manifest
from pallasc.cache.prune import prune
from pallasc.cache.store import Store
from pallasc.errors import ToolError

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


def test_what_is_new_is_read_and_what_is_gone_is_forgotten(filled: Store, publish: Publish) -> None:
    before = index(filled).stat().st_mtime_ns
    assert take_inventory(filled).read == 0
    assert index(filled).stat().st_mtime_ns == before
    publish("00" * 32, used_s=7)
    filled.path("ac", KEYS[0]).unlink()
    found = take_inventory(filled)
    assert (found.read, [*found.records]) == (1, ["00" * 32, *KEYS[1:]])


def _with_facts(data: bytes, facts: object) -> bytes:
    """Return the index with other facts about a record, as anyone can write it."""
    name = format.sha256(b"pallasc index")
    body: Any = format.decode("index", name, data, dict)[0]["facts"]
    body[f" ac {KEYS[0]}"][1] = facts
    return format.encode("index", name, {"facts": body})[0]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:100] + b"x" + data[101:],
        lambda data: _with_facts(data, 7),
        lambda data: _with_facts(data, {"blobs": ["x"]}),
    ],
)
def test_a_damaged_index_is_made_again(
    filled: Store, damage: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    path = index(filled)
    path.write_bytes(damage(path.read_bytes()))
    with monkeypatch.context() as patch:
        patch.setattr(files, "temporary", refuse)
        assert [*take_inventory(filled).records] == KEYS
    found = take_inventory(filled)
    assert (found.read, [*found.records]) == (3, KEYS)
    assert take_inventory(filled).read == 0
    path.unlink()
    path.mkdir()
    assert [*take_inventory(filled).records] == KEYS


def test_a_corrupt_record_is_left_out_and_a_repair_puts_it_away(filled: Store) -> None:
    filled.path("ac", KEYS[0]).write_bytes(b"")
    found = take_inventory(filled)
    assert [*found.records] == KEYS[1:]
    assert filled.path("ac", KEYS[0]).exists()
    take_inventory(filled, repair=True)
    assert not filled.path("ac", KEYS[0]).exists()


def test_a_folder_that_cannot_be_listed_is_told_and_nothing_is_forgotten(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.scandir

    def refuse(path: Any) -> Any:
        if os.readlink(f"/proc/self/fd/{path}").endswith("/ac/ef"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refuse)
        scan = Scan(filled.folders)
        assert [name for name, _ in scan.area("ac")] == KEYS[:2]
        (fault,) = scan.messages()
        assert fault == f"{filled.folder / 'ac' / 'ef'}: cannot be listed: Permission denied"
        assert "Permission denied" in take_inventory(filled).faults[0]
    assert take_inventory(filled).read == 0


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


@pytest.mark.parametrize(
    "path", ["README", "0g/x", "000/x", "ab/notes", f"ab/{KEYS[2]}", f"ab/{KEYS[0].upper()}"]
)
def test_what_is_of_no_store_is_foreign(store: Store, path: str) -> None:
    for key in reversed(KEYS):
        store.put_manifest(key, Manifest())
    place = store.folder / "man" / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("mine")
    linked = store.path("man", "ab" * 31 + "00")
    linked.symlink_to(store.path("man", KEYS[0]))
    scan = Scan(store.folders)
    known = [(key, files.identity(os.lstat(store.path("man", key)))) for key in KEYS]
    assert list(scan.area("man")) == known
    foreign = (f"man/{path.partition('/')[0]}", f"man/{path}")
    assert [each for each in scan.foreign if each not in foreign] == [f"man/ab/{linked.name}"]
    assert (len(scan.foreign), scan.faults) == (2, [])


def test_a_folder_that_is_none_is_no_store(tmp_path: Path) -> None:
    Folders(tmp_path).check(readable=True)
    Folders(tmp_path / "missing").check(readable=True)
    (tmp_path / "file").write_text("mine")
    Folders(tmp_path / "file" / "v1").check()
    with pytest.raises(ToolError, match=r"the store .*/file/v1 cannot be read: Not a directory"):
        Folders(tmp_path / "file" / "v1").check(readable=True)


def test_a_missing_store_is_empty_and_is_not_made(store: Store) -> None:
    figures = stats(store)
    assert (figures.entries, figures.bytes, figures.oldest_use) == (0, 0, None)
    assert (take_inventory(store).records, list(Scan(store.folders).area("cas"))) == ({}, [])
    assert artifacts(store) == []
    assert not store.root.exists()


def test_the_figures_follow_from_the_files(store: Store, publish: Publish) -> None:
    publish(KEYS[0], used_s=1000)
    publish(KEYS[1], used_s=2000)
    store.put_manifest(KEYS[0], Manifest(action=KEYS[0]))
    figures = stats(store)
    places = (path for area in ("ac", "cas", "man") for path in (store.folder / area).rglob("*"))
    assert figures.bytes == sum(path.stat().st_size for path in places if path.is_file())
    assert (figures.entries, figures.blobs, figures.manifests) == (2, 2, 1)
    assert (figures.oldest_use, figures.quarantined) == (1000.0, 0)
    assert json.loads(json.dumps(figures.to_json()))["entries"] == 2
    assert [listed.key for listed in artifacts(store)] == [KEYS[1], KEYS[0]]
    (listed,) = artifacts(store, key_prefix="ab")
    assert (listed.key, listed.last_use) == (KEYS[0], 1000.0)


def test_artifacts_have_the_names_of_the_kernels_that_led_to_them(
    store: Store, publish: Publish
) -> None:
    publish(KEYS[0], used_s=1000)
    for number, name in enumerate(("matmul", "gemm", "matmul")):
        about = {"name": name, "target": "h100-sxm", "params": {"m": 1}}
        store.put_manifest(f"{number:064x}", Manifest(action=KEYS[0], about=about))  # type: ignore[arg-type]
    (listed,) = artifacts(store)
    assert [about.name for about in listed.variants] == ["gemm", "matmul"]
    assert listed.variants[0].params == {"m": 1}


def test_stores_of_other_versions_are_named_and_left_alone(store: Store, publish: Publish) -> None:
    publish(KEYS[0], used_s=1)
    for name in ("v0", "v2", "v2.old", "notes"):
        (store.root / name).mkdir()
    assert stats(store).to_json()["other_versions"] == ["v0", "v2"]
    assert prune(store, limits=Limits(max_bytes=1, grace_s=0)).records == 1
    assert {path.name for path in store.root.iterdir()} == {"v0", "v1", "v2", "v2.old", "notes"}
