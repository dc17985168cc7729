"""A store in figures."""

from __future__ import annotations

import json
from collections.abc import Callable

from pallasc.cache.evict import Limits
from pallasc.cache.inventory import artifacts, stats
from pallasc.cache.manifests import Manifest
from pallasc.cache.prune import prune
from pallasc.cache.store import Store

Publish = Callable[..., str]

KEY, OTHER = "ab" * 32, "cd" * 32


def test_a_missing_store_is_empty_and_is_not_made(store: Store) -> None:
    figures = stats(store)
    assert (figures.entries, figures.bytes, figures.oldest_use) == (0, 0, None)
    assert artifacts(store) == []
    assert not store.root.exists()


def test_the_figures_follow_from_the_files(store: Store, publish: Publish) -> None:
    publish(KEY, used_s=1000)
    publish(OTHER, used_s=2000)
    store.put_manifest(KEY, Manifest(action=KEY))
    figures = stats(store)
    wanted = sum(
        path.stat().st_size
        for area in ("ac", "cas", "man")
        for path in (store.folder / area).rglob("*")
        if path.is_file()
    )
    assert (figures.entries, figures.blobs, figures.manifests) == (2, 2, 1)
    assert figures.bytes == wanted
    assert (figures.oldest_use, figures.quarantined) == (1000.0, 0)
    assert json.loads(json.dumps(figures.to_json()))["entries"] == 2


def test_artifacts_are_listed_the_last_used_first(store: Store, publish: Publish) -> None:
    publish(KEY, used_s=1000)
    publish(OTHER, used_s=2000)
    store.put_manifest("00" * 32, Manifest(action=KEY))
    assert [listed.key for listed in artifacts(store)] == [OTHER, KEY]
    (listed,) = artifacts(store, key_prefix="ab")
    assert (listed.key, listed.last_use) == (KEY, 1000.0)


def test_artifacts_have_the_names_of_the_kernels_that_led_to_them(
    store: Store, publish: Publish
) -> None:
    publish(KEY, used_s=1000)
    for number, name in enumerate(("matmul", "gemm", "matmul")):
        about = {"name": name, "target": "h100-sxm", "params": {"m": 1}}
        store.put_manifest(f"{number:064x}", Manifest(action=KEY, about=about))  # type: ignore[arg-type]
    (listed,) = artifacts(store)
    assert [about.name for about in listed.variants] == ["gemm", "matmul"]
    assert listed.variants[0].params == {"m": 1}


def test_stores_of_other_versions_are_named_and_left_alone(store: Store, publish: Publish) -> None:
    publish(KEY, used_s=1)
    for name in ("v0", "v2", "v2.old", "notes"):
        (store.root / name).mkdir()
    assert stats(store).to_json()["other_versions"] == ["v0", "v2"]
    assert prune(store, limits=Limits(max_bytes=1, grace_s=0)).records == 1
    assert {path.name for path in store.root.iterdir()} == {"v0", "v1", "v2", "v2.old", "notes"}
