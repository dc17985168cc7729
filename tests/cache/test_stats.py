"""A store in figures."""

from __future__ import annotations

import json
from collections.abc import Callable

from pallasc.cache.about import About
from pallasc.cache.manifests import Manifest
from pallasc.cache.store import Store
from pallasc.cache.upkeep.limits import Limits
from pallasc.cache.upkeep.prune import prune
from pallasc.cache.upkeep.stats import artifacts, stats
from pallasc.cache.uses import Session

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
    figures = stats(store, limits=Limits(max_bytes=5))
    wanted = sum(
        path.stat().st_size
        for area in ("ac", "cas", "man")
        for path in (store.folder / area).rglob("*")
        if path.is_file()
    )
    assert (figures.entries, figures.blobs, figures.manifests) == (2, 2, 1)
    assert (figures.bytes, figures.cubin_bytes) == (wanted, 1600)
    assert (figures.limit_bytes, figures.oldest_use, figures.quarantined) == (5, 1000.0, 0)


def test_the_figures_can_be_written_as_json(store: Store, publish: Publish) -> None:
    with Session(store, now_s=lambda: 7.0) as session:
        session.hit(publish(KEY, used_s=1000), seconds=3.0)
    told = json.loads(json.dumps(stats(store).to_json()))
    assert (told["hits"], told["misses"], told["saved_s"], told["since"]) == (1, 0, 3.0, 7.0)
    assert "totals" not in told


def test_artifacts_are_listed_the_last_used_first(store: Store, publish: Publish) -> None:
    publish(KEY, used_s=1000)
    publish(OTHER, used_s=2000)
    store.put_manifest("00" * 32, Manifest(action=KEY))
    assert [listed.key for listed in artifacts(store)] == [OTHER, KEY]
    (listed,) = artifacts(store, key_prefix="ab")
    assert (listed.key, listed.last_use, listed.requests) == (KEY, 1000.0, ("00" * 32,))
    assert json.loads(json.dumps(listed.to_json()))["key"] == KEY


def test_artifacts_are_found_by_the_name_of_their_kernel(store: Store, publish: Publish) -> None:
    publish(KEY, used_s=1000)
    publish(OTHER, used_s=2000)
    with Session(store) as session:
        session.made(KEY, seconds=1.0, about=About("matmul", "h100-sxm", {"m": 1}))
        session.hit(KEY, about=About("gemm", "h100-sxm", {}))
    assert [listed.key for listed in artifacts(store, name="gemm")] == [KEY]
    assert [about.name for about in artifacts(store, name="matmul")[0].variants] == [
        "gemm",
        "matmul",
    ]
    assert artifacts(store, name="softmax") == []


def test_stores_of_other_versions_are_named_and_left_alone(store: Store, publish: Publish) -> None:
    publish(KEY, used_s=1)
    for name in ("v0", "v2", "v2.old", "notes"):
        (store.root / name).mkdir()
    assert stats(store).to_json()["other_versions"] == ["v0", "v2"]
    assert prune(store, limits=Limits(max_bytes=1, grace_s=0)).records == 1
    assert {path.name for path in store.root.iterdir()} == {"v0", "v1", "v2", "v2.old", "notes"}
