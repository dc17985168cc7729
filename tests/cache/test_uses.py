"""What builds hold and count, and what the counts come to."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache import files, uses
from pallasc.cache.folders import Folders
from pallasc.cache.store import Store
from pallasc.cache.uses import Held, Session, Totals, held_by_leases, read_totals

Publish = Callable[..., str]

KEY, OTHER = "ab" * 32, "cd" * 32
DEAD = f"{files.host()}-1-1"


def lines(store: Store) -> list[str]:
    path = store.folder / "stat" / "uses"
    return path.read_text().splitlines() if path.exists() else []


def leases(store: Store) -> list[Path]:
    return sorted((store.folder / "leases").glob("*"))


def use(store: Store, *, at_s: float = 100.0) -> None:
    with Session(store, now_s=lambda: at_s) as session:
        session.miss()
        session.made(KEY, seconds=8.0)
        session.hit(KEY, seconds=8.0)
        session.hit(OTHER, seconds=2.0)


def test_a_session_writes_one_line_at_its_end(store: Store, publish: Publish) -> None:
    publish(KEY, used_s=1)
    session = Session(store)
    session.hit(KEY)
    assert lines(store) == []
    session.close()
    session.close()
    assert len(lines(store)) == 1


def test_a_session_in_which_nothing_happens_writes_nothing(store: Store) -> None:
    with Session(store):
        pass
    assert not store.root.exists()


def test_totals_count_hits_misses_and_the_time_saved(store: Store, publish: Publish) -> None:
    publish(KEY, used_s=1)
    use(store, at_s=100.0)
    use(store, at_s=50.0)
    assert read_totals(store) == Totals(50.0, 4, 2, 2, saved_s=20.0, spent_s=16.0)
    assert len(lines(store)) == 2


def test_a_long_list_of_counts_becomes_one_line(
    store: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(KEY, used_s=1)
    use(store)
    use(store)
    uses.shorten(store)
    assert len(lines(store)) == 2
    monkeypatch.setattr(uses, "_SHORTEN_BYTES", 1)
    uses.shorten(store)
    assert len(lines(store)) == 1
    use(store)
    assert read_totals(store) == Totals(100.0, 6, 3, 3, saved_s=30.0, spent_s=24.0)


GOOD = "[1.0, 1, 1, 1, 1.0, 1.0]"


@pytest.mark.parametrize(
    "line",
    ["", "[", "7", "null", GOOD.replace("1.0", "1e300"), GOOD.replace(" 1,", " -1,"),
     GOOD.replace(" 1,", " true,"), GOOD.replace(" 1,", f" {2**63},"), GOOD.replace("1.0", "NaN"),
     GOOD.replace("1.0", '"5"'), GOOD.replace("1.0", "-1"), f"[{GOOD}]", "[" * 9000],
)  # fmt: skip
def test_damaged_counts_are_dropped(store: Store, publish: Publish, line: str) -> None:
    publish(KEY, used_s=1)
    use(store)
    with (store.folder / "stat" / "uses").open("a") as file:
        file.write(f"{line}\n{GOOD}\n")
    assert read_totals(store).hits == 3


def test_counts_that_cannot_be_read_stay(
    store: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(KEY, used_s=1)
    use(store)

    def fail(folders: Folders, place: str, **options: Any) -> files.Content | None:
        raise OSError(5, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(uses.files, "read", fail)
        assert read_totals(store).hits == 0
    assert read_totals(store).hits == 2


def test_a_store_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("in the way")
    use(Store(tmp_path / "store"))
    assert (tmp_path / "store").read_text() == "in the way"


def test_a_lease_holds_what_is_used_after_its_begin(store: Store, publish: Publish) -> None:
    publish(KEY, used_s=1)
    publish(OTHER, used_s=1)
    with Session(store) as session:
        session.hit(KEY)
        held = held_by_leases(store.folders, now_ns=time.time_ns())
        used = {key: store.path("ac", key).stat().st_mtime_ns for key in (KEY, OTHER)}
        assert held.holds(frozenset({KEY}), used[KEY])
        assert not held.holds(frozenset({OTHER}), used[OTHER])
    assert leases(store) == []
    assert held_by_leases(store.folders, now_ns=time.time_ns()) == Held()


def test_a_record_of_another_user_is_held_by_name(
    store: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(KEY, used_s=1)

    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(1, "not yours")

    monkeypatch.setattr(os, "utime", refuse)
    Session(store).hit(KEY)
    assert held_by_leases(store.folders, now_ns=time.time_ns()).keys == {KEY}


def test_a_lease_of_a_dead_process_holds_nothing(store: Store) -> None:
    path = store.folder / "leases" / f"{DEAD}-00"
    path.parent.mkdir(parents=True)
    path.write_text(f"{KEY}\n")
    assert held_by_leases(store.folders, now_ns=time.time_ns()) == Held()


@pytest.mark.parametrize(
    ("age_s", "holds"), [(files.FOREIGN_S - 60, True), (files.FOREIGN_S + 60, False)]
)
def test_a_lease_of_another_machine_holds_for_a_day(
    store: Store, age_s: float, holds: bool
) -> None:
    path = store.folder / "leases" / "0123456789ab-1-1-00"
    path.parent.mkdir(parents=True)
    path.write_text(f"{KEY}\nno key\n")
    now_ns = path.stat().st_mtime_ns + round(age_s * 1e9)
    assert held_by_leases(store.folders, now_ns=now_ns).keys == ({KEY} if holds else set())


def test_only_what_a_dead_process_left_is_over() -> None:
    assert files.is_over(f"{DEAD}-00", 0, now_ns=0)
    assert not files.is_over(f"{files.process_token()}-00", 0, now_ns=10**30)
