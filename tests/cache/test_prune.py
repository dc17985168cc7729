"""Pruning: what really goes."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stored import files_in, put_blob

from pallasc.cache import files
from pallasc.cache import prune as prune_module
from pallasc.cache.evict import Limits
from pallasc.cache.folders import Folders
from pallasc.cache.manifests import Manifest
from pallasc.cache.prune import TIDY_EVERY_S, prune, tidy
from pallasc.cache.store import Store
from pallasc.cache.uses import Session

Publish = Callable[..., str]

OLD, MID, NEW = "11" * 32, "22" * 32, "33" * 32
NOTHING = Limits(max_bytes=1, grace_s=0)
ALL = Limits(max_bytes=None, grace_s=0, quarantine_s=0)


@pytest.fixture
def filled(store: Store, publish: Publish) -> Store:
    for number, key in enumerate((OLD, MID, NEW)):
        publish(key, used_s=1000 + number)
    return store


def here(store: Store) -> list[str]:
    return [k for k in (OLD, MID, NEW) if store.get_artifact(k, verify=True) is not None]


def everything(store: Store) -> dict[Path, bytes]:
    """Return all files but those that only count."""
    paths = (path for path in store.folder.rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in paths if path.parent.name != "stat"}


def test_a_dry_run_tells_the_same_and_touches_nothing(filled: Store) -> None:
    filled.put_manifest("aa" * 32, Manifest(action=OLD, about={"name": "matmul"}))
    filled.put_manifest("bb" * 32, Manifest(action=NEW))
    filled.path("ac", MID).write_bytes(b"")
    before = everything(filled)
    told = prune(filled, limits=NOTHING, dry_run=True, now_ns=time.time_ns() + 1)
    assert everything(filled) == before
    assert told.to_json()["dry_run"] is True
    assert (told.records, told.blobs) == (2, 3)
    done = prune(filled, limits=NOTHING)
    assert (done.records, done.blobs) == (2, 3)
    assert done.plan == told.plan
    assert done.names == told.names == {OLD: ["matmul"]}
    assert filled.get_manifest("aa" * 32) is filled.get_manifest("bb" * 32) is None


def test_what_is_used_or_named_after_the_decision_stays(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = prune_module.decide
    data = OLD[:8].encode() * 100

    def decide_then_use(*arguments: Any, **options: Any) -> Any:
        plan = real(*arguments, **options)
        os.utime(filled.path("ac", MID))
        assert Store(filled.root).put_artifact("44" * 32, {}, {"same": data}).stored
        return plan

    monkeypatch.setattr(prune_module, "decide", decide_then_use)
    pruned = prune(filled, limits=NOTHING)
    assert here(filled) == [MID]
    assert (len(pruned.plan.evictions), pruned.records, pruned.blobs) == (3, 2, 1)
    assert filled.get_artifact("44" * 32, verify=True) is not None


def test_nothing_goes_where_a_record_or_what_is_held_cannot_be_read(
    filled: Store, unreadable: Any
) -> None:
    with unreadable(MID):
        pruned = prune(filled, limits=NOTHING)
    assert (pruned.records, pruned.blobs) == (0, 0)
    assert "Input/output error" in pruned.warnings[0]
    with Session(filled) as session:
        session.hit(NEW)
        with unreadable("leases/"):
            pruned = prune(filled, limits=NOTHING)
    (warning,) = pruned.warnings
    assert "/leases" in warning
    assert warning.endswith(": cannot be read: Input/output error")
    assert (pruned.records, pruned.plan.complete) == (0, False)
    assert here(filled) == [OLD, MID, NEW]


def test_a_fresh_variant_stays_whole_and_older_ones_go_first(
    filled: Store, publish: Publish
) -> None:
    fresh, now_s = "44" * 32, time.time()
    publish(fresh, used_s=now_s)
    publish("55" * 32, used_s=now_s, blobs={"cubin": OLD[:8].encode() * 100})  # shared with OLD
    before = files_in(filled, "ac")
    size = sum(path.stat().st_size for path in filled.folder.glob("[ac]*/*/*"))
    pruned = prune(filled, limits=Limits(max_bytes=size - 1))
    assert [eviction.unit.name for eviction in pruned.evictions] == [MID]
    assert (pruned.records, pruned.blobs, pruned.excess_bytes) == (1, 1, 0)
    pruned = prune(filled, limits=Limits(max_bytes=1))
    left = [name for name in before if name not in (MID, NEW)]
    assert files_in(filled, "ac") == left == [OLD, fresh, "55" * 32]
    assert all(filled.get_artifact(name, verify=True) for name in left)
    assert pruned.plan.held == 3
    assert pruned.plan.bytes_after == pruned.excess_bytes + 1
    later_ns = time.time_ns() + 301 * 10**9
    assert prune(filled, limits=Limits(max_bytes=1), now_ns=later_ns).records == 3


def test_what_dead_processes_left_goes_and_what_living_ones_use_stays(filled: Store) -> None:
    dead, alive = f"{files.host()}-1-1-00", f"{files.process_token()}-00"
    for folder in ("tmp", "leases"):
        (filled.folder / folder).mkdir(exist_ok=True)
        for name in (dead, alive):
            (filled.folder / folder / name).write_text("")
    (filled.folder / "locks").mkdir(exist_ok=True)
    (filled.folder / "locks" / OLD).write_text("")
    with filled.single_flight(MID):
        told = prune(filled, limits=ALL, dry_run=True).leftovers
        assert (told.temporaries, told.leases, told.locks) == (1, 1, 1)
        assert prune(filled, limits=ALL).leftovers == told
        assert files_in(filled, "locks") == [MID]
    assert files_in(filled, "tmp") == files_in(filled, "leases") == [alive]


def test_corrupt_files_are_kept_for_a_week(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    filled.path("ac", MID).write_bytes(b"")
    day_ns, now_ns = 86_400 * 10**9, time.time_ns()
    prune(filled, limits=Limits(), now_ns=now_ns + 6 * day_ns)
    assert len(files_in(filled, "quarantine")) == 2
    prune(filled, limits=Limits(), now_ns=now_ns + 8 * day_ns)
    assert files_in(filled, "quarantine") == []
    assert here(filled) == [OLD, NEW]
    monkeypatch.setenv("PALLASC_CACHE_SIZE", "1B")
    assert prune(filled).records == 2


def test_what_nothing_leads_to_goes_after_a_while_unless_a_build_runs(filled: Store) -> None:
    later_ns, aged = time.time_ns() + 301 * 10**9, Limits(max_age_s=200)
    with Session(filled) as session:
        session.hit(NEW)
        digest = put_blob(filled, b"nobody names me")
        filled.put_manifest("aa" * 32, Manifest(action="99" * 32))
        filled.put_manifest("bb" * 32, Manifest(action=""))
        assert prune(filled, now_ns=later_ns).blobs == 0
    assert prune(filled).blobs == prune(filled, limits=aged).manifests == 0
    pruned = prune(filled, now_ns=later_ns)
    assert (pruned.blobs, pruned.manifests, filled.get_blob(digest)) == (1, 1, None)
    assert prune(filled, limits=aged, now_ns=later_ns).manifests == 1


def test_what_cannot_be_removed_is_told_and_not_counted(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    real = files.remove_same

    def refuse(folders: Folders, place: str, known: Any) -> bool:
        order.append(place.partition("/")[0])
        if place.endswith(MID):
            raise OSError(30, "Read-only file system")
        return real(folders, place, known)

    monkeypatch.setattr(files, "remove_same", refuse)
    told = prune(filled, limits=NOTHING).to_json()
    assert order == ["ac"] * 3 + ["cas"] * 2
    size = sum(path.stat().st_size for path in filled.folder.glob("[ac]*/*/*"))
    assert [row["key"] for row in told["evicted"]] == [OLD, NEW]
    assert (told["records"], told["bytes_after"], told["excess_bytes"]) == (2, size, size - 1)
    place = filled.path("ac", MID)
    assert told["warnings"] == [f"{place}: cannot be removed: Read-only file system"]


def test_tidying_prunes_once_an_hour(filled: Store) -> None:
    now_ns = time.time_ns()
    assert tidy(filled, limits=Limits(max_bytes=1 << 40), now_ns=now_ns - 10**13) is None
    assert not (filled.folder / "stat" / "index").exists()
    first = tidy(filled, limits=NOTHING, now_ns=now_ns)
    assert first is not None
    assert first.records == 3
    assert tidy(filled, limits=NOTHING, now_ns=now_ns + 10**9) is None
    aged = Limits(max_bytes=1, max_age_s=1.0)  # with an age to look at, it is never skipped
    assert tidy(filled, limits=aged, now_ns=now_ns + round(TIDY_EVERY_S * 1e9)) is not None
