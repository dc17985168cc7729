"""What running builds hold."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pallasc.cache import process
from pallasc.cache.folders import Folders
from pallasc.cache.leases import FOREIGN_S, Held, Lease, held_by_leases, is_over
from pallasc.cache.store import Store

Publish = Callable[..., str]

KEY, OTHER = "ab" * 32, "cd" * 32
DEAD = f"{process.host()}-1-1"


def leases(store: Store) -> list[Path]:
    return sorted((store.folder / "leases").glob("*"))


def test_a_lease_holds_what_is_used_after_its_begin(store: Store, publish: Publish) -> None:
    publish(KEY, used_s=1)
    publish(OTHER, used_s=1)
    lease = Lease(store.folders)
    lease.use(KEY)
    held = held_by_leases(store.folders, now_ns=time.time_ns())
    used = {key: store.path("ac", key).stat().st_mtime_ns for key in (KEY, OTHER)}
    assert held.holds(KEY, used[KEY])
    assert not held.holds(OTHER, used[OTHER])
    lease.release()
    assert leases(store) == []
    assert held_by_leases(store.folders, now_ns=time.time_ns()) == Held()


def test_a_lease_that_uses_nothing_makes_no_file(store: Store) -> None:
    Lease(store.folders).release()
    assert not store.root.exists()


def test_a_record_of_another_user_is_held_by_name(
    store: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(KEY, used_s=1)

    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(1, "not yours")

    monkeypatch.setattr(os, "utime", refuse)
    Lease(store.folders).use(KEY)
    assert held_by_leases(store.folders, now_ns=time.time_ns()).keys == {KEY}


def test_a_lease_of_a_dead_process_holds_nothing(store: Store) -> None:
    path = store.folder / "leases" / f"{DEAD}-00"
    path.parent.mkdir(parents=True)
    path.write_text(f"{KEY}\n")
    assert held_by_leases(store.folders, now_ns=time.time_ns()) == Held()


@pytest.mark.parametrize(("age_s", "holds"), [(FOREIGN_S - 60, True), (FOREIGN_S + 60, False)])
def test_a_lease_of_another_machine_holds_for_a_day(
    store: Store, age_s: float, holds: bool
) -> None:
    path = store.folder / "leases" / "0123456789ab-1-1-00"
    path.parent.mkdir(parents=True)
    path.write_text(f"{KEY}\nno key\n")
    now_ns = path.stat().st_mtime_ns + round(age_s * 1e9)
    assert held_by_leases(store.folders, now_ns=now_ns).keys == ({KEY} if holds else set())


def test_only_what_a_dead_process_left_is_over() -> None:
    assert is_over(f"{DEAD}-00", 0, now_ns=0)
    assert not is_over(f"{process.token()}-00", 0, now_ns=10**30)


def test_a_lease_that_cannot_be_made_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("in the way")
    lease = Lease(Folders(tmp_path / "store" / "v1"))
    lease.use(KEY)
    lease.release()
    assert (tmp_path / "store").read_text() == "in the way"


def test_two_holds_hold_what_either_holds() -> None:
    assert Held(frozenset({"a"}), 5) | Held(frozenset({"b"})) == Held(frozenset({"a", "b"}), 5)
    assert Held(since_ns=5) | Held(since_ns=3) == Held(since_ns=3)
