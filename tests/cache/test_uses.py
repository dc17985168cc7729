"""What builds hold and count, and what the counts come to."""

import os
import time
from collections.abc import Callable

import pytest
from stored import KEY, OTHER, files_in

from pallasc.cache import files
from pallasc.cache.store import Store
from pallasc.cache.uses import Held, Session, Totals, held_by_leases, read_totals

Publish = Callable[..., str]


def lines(store: Store) -> list[str]:
    return (store.folder / "stat" / "uses").read_text().splitlines()


def use(store: Store, *, at_s: float = 100.0) -> None:
    with Session(store, now_s=lambda: at_s) as session:
        session.miss()
        session.made(KEY, seconds=8.0)
        session.hit(KEY, seconds=8.0)
        session.hit(OTHER, seconds=2.0)


def test_totals_count_hits_misses_and_the_time_saved(store: Store, publish: Publish) -> None:
    with Session(store):
        pass
    assert not store.root.exists()
    publish(KEY, used_s=1)
    use(store, at_s=100.0)
    use(store, at_s=50.0)
    assert read_totals(store) == Totals(50.0, 4, 2, 2, saved_s=20.0, spent_s=16.0)
    assert len(lines(store)) == 2
    session = Session(store)
    session.hit(KEY)
    assert len(lines(store)) == 2
    session.close()
    session.close()
    assert len(lines(store)) == 3
    (store.root / "file").write_text("in the way")
    use(Store(store.root / "file"))


GOOD = "[1.0, 1, 1, 1, 1.0, 1.0]"


@pytest.mark.parametrize(
    "line",
    ["", "[", "7", GOOD.replace("1.0", "1e300"), GOOD.replace(" 1,", " -1,"),
     GOOD.replace(" 1,", " true,"), GOOD.replace(" 1,", f" {2**63},"), GOOD.replace("1.0", "NaN"),
     GOOD.replace("1.0", '"5"'), GOOD.replace("1.0", "-1"), f"[{GOOD}]", "[" * 9000],
)  # fmt: skip
def test_damaged_counts_are_dropped(store: Store, publish: Publish, line: str) -> None:
    publish(KEY, used_s=1)
    use(store)
    with (store.folder / "stat" / "uses").open("a") as file:
        file.write(f"{line}\n{GOOD}\n")
    assert read_totals(store).hits == 3


def test_a_lease_holds_what_is_used_after_its_begin_and_names_what_is_another_users(
    store: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(KEY, used_s=1)
    publish(OTHER, used_s=1)
    with Session(store) as session:
        session.hit(KEY)
        held = held_by_leases(store.folders, now_ns=time.time_ns())
        used = {key: store.path("ac", key).stat().st_mtime_ns for key in (KEY, OTHER)}
        assert held.holds(frozenset({KEY}), used[KEY])
        assert not held.holds(frozenset({OTHER}), used[OTHER])
    assert files_in(store, "leases") == []
    assert held_by_leases(store.folders, now_ns=time.time_ns()) == Held()

    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(1, "not yours")

    monkeypatch.setattr(os, "utime", refuse)
    Session(store).hit(KEY)
    assert held_by_leases(store.folders, now_ns=time.time_ns()).keys == {KEY}


@pytest.mark.parametrize(
    ("owner", "age_s", "holds"),
    [
        ("0123456789ab-1-1", files.FOREIGN_S - 60, True),
        ("0123456789ab-1-1", files.FOREIGN_S + 60, False),
        (f"{files.host()}-1-1", 0, False),
    ],
)
def test_a_lease_of_another_machine_holds_for_a_day_and_one_of_a_dead_process_never(
    store: Store, owner: str, age_s: float, holds: bool
) -> None:
    path = store.folder / "leases" / f"{owner}-00"
    path.parent.mkdir(parents=True)
    path.write_text(f"{KEY}\nno key\n")
    now_ns = path.stat().st_mtime_ns + round(age_s * 1e9)
    assert held_by_leases(store.folders, now_ns=now_ns).keys == ({KEY} if holds else set())
    assert not files.is_over(f"{files.process_token()}-00", 0, now_ns=10**30)
