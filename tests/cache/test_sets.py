"""Sets of sources: the manifests that a store keeps of one request key."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache import files
from pallasc.cache.evict import Limits
from pallasc.cache.folders import Folders
from pallasc.cache.format import ARTIFACTS, MANIFESTS, sha256
from pallasc.cache.manifests import MAX_SETS, Manifest, set_name
from pallasc.cache.prune import prune
from pallasc.cache.store import Store
from pallasc.cache.transfer import export_file, import_file
from pallasc.cache.verify import verify

KEY = sha256(b"request")


def read_of(number: int) -> str:
    return sha256(f"sources {number}".encode())


def put(store: Store, number: int) -> str:
    """Store an artifact that was made from a set of sources; return the name of its manifest."""
    action = sha256(f"action {number}".encode())
    store.put_artifact(action, {"number": number}, {"cubin": f"cubin {number}".encode()})
    return store.put_set(KEY, Manifest(action=action, read=read_of(number), name=str(number)))


def held(store: Store) -> set[int]:
    return {int(manifest.name) for _, manifest in store.sets(KEY)}


def use(store: Store, number: int, time_s: float) -> None:
    path = store.path(ARTIFACTS, sha256(f"action {number}".encode()))
    os.utime(path, (time_s, time_s))


def test_each_set_of_sources_has_a_manifest_and_the_same_set_replaces_its_own(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path / "store")
    assert held(store) == set()
    assert [put(store, number) for number in (1, 2, 1)] == [
        set_name(KEY, read_of(number)) for number in (1, 2, 1)
    ]
    assert held(store) == {1, 2}
    assert verify(store).ok
    for other in (KEY[:32] + "0" * 32, "0" * 32 + KEY[32:]):
        assert list(store.sets(other)) == []
    for number, time_s in ((1, 1000.0), (2, 9000.0)):
        use(store, number, time_s)
    prune(store, limits=Limits(max_age_s=5000.0, grace_s=0.0), now_ns=round(10_000 * 1e9))
    assert held(store) == {2}
    assert len(store.names(MANIFESTS)) == 1


def test_beyond_the_limit_the_set_whose_artifact_was_used_longest_ago_goes(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    for number in range(MAX_SETS):
        put(store, number)
        use(store, number, 1000.0 + number)
    use(store, 0, 9000.0)  # by a build that found it
    for number in range(MAX_SETS, MAX_SETS + 3):
        put(store, number)
    assert held(store) == {0, *range(4, MAX_SETS + 3)}
    assert len(store.names(MANIFESTS)) == MAX_SETS


def test_a_set_that_cannot_be_read_now_does_not_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "store")
    names = [put(store, number) for number in range(MAX_SETS)]
    for number in range(MAX_SETS):
        use(store, number, 1000.0 + number)
    real = files.read

    def refuse(folders: Folders, place: str, **options: Any) -> files.Content | None:
        if place.endswith(names[0]):
            raise OSError(5, "Input/output error")
        return real(folders, place, **options)

    with monkeypatch.context() as patch:
        patch.setattr(files, "read", refuse)
        put(store, MAX_SETS)
    assert held(store) == {0, *range(2, MAX_SETS + 1)}


def test_sets_of_several_stores_add_up_in_packs_and_only_loose_ones_are_removed(
    tmp_path: Path,
) -> None:
    one, two, both = (Store(tmp_path / name) for name in ("one", "two", "both"))
    for number in range(MAX_SETS):
        put(one if number % 2 else two, number)
    for source in (one, two):
        export_file(source, tmp_path / "pack")
        import_file(both, tmp_path / "pack")
    assert held(both) == {*range(MAX_SETS)}
    for number in (MAX_SETS, MAX_SETS + 1):
        put(both, number)
        assert held(both) == held(Store(both.root)) == {*range(MAX_SETS), number}
    assert verify(both).ok
