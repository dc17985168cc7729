"""Contents of a store, and the index of what was read before."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from stored import put_blob

from pallasc.cache import format
from pallasc.cache.evict import Limits
from pallasc.cache.inventory import stats, take_inventory
from pallasc.cache.manifests import About, Manifest
from pallasc.cache.prune import prune
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


def test_what_is_new_is_read_and_what_is_gone_is_forgotten(filled: Store, publish: Publish) -> None:
    before = index(filled).stat().st_mtime_ns
    assert take_inventory(filled).read == 0
    assert index(filled).stat().st_mtime_ns == before
    publish("00" * 32, used_s=7)
    filled.path("ac", KEYS[0]).unlink()
    found = take_inventory(filled)
    assert (found.read, [*found.records]) == (1, ["00" * 32, *KEYS[1:]])


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


def test_stores_of_other_versions_are_left_alone(store: Store, publish: Publish) -> None:
    publish(KEYS[0], used_s=1)
    for name in ("v0", "v2", "v2.old", "notes"):
        (store.root / name).mkdir()
    assert prune(store, limits=Limits(max_bytes=1, grace_s=0)).records == 1
    assert {path.name for path in store.root.iterdir()} == {"v0", "v1", "v2", "v2.old", "notes"}
