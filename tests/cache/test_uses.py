"""What builds log, and what it comes to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pallasc.cache import single_flight, uses
from pallasc.cache.about import About
from pallasc.cache.folders import Folders
from pallasc.cache.index import open_index
from pallasc.cache.store import Store
from pallasc.cache.upkeep.stats import artifacts, stats
from pallasc.cache.uses import Session, Totals, fold

Publish = Callable[..., str]

KEY, OTHER = "ab" * 32, "cd" * 32
ABOUT = About("matmul", "h100-sxm", {"m": 1024})


def log(store: Store) -> list[Path]:
    return sorted((store.folder / "uses").glob("*"))


def use(store: Store, *, at_s: float = 100.0) -> None:
    with Session(store, now_s=lambda: at_s) as session:
        session.miss(about=ABOUT)
        session.made(KEY, seconds=8.0, about=ABOUT)
        session.hit(KEY, about=ABOUT)
        session.hit(OTHER, seconds=2.0)


def test_a_session_writes_one_file_at_its_end(store: Store, publish: Publish) -> None:
    publish(KEY, used_s=1)
    session = Session(store)
    session.hit(KEY)
    assert log(store) == []
    session.close()
    session.close()
    assert len(log(store)) == 1


def test_a_session_in_which_nothing_happens_writes_nothing(store: Store) -> None:
    with Session(store):
        pass
    assert not store.root.exists()


def test_totals_count_hits_misses_and_the_time_saved(store: Store, publish: Publish) -> None:
    publish(KEY, used_s=1)
    use(store, at_s=100.0)
    use(store, at_s=50.0)
    assert stats(store).totals == Totals(50.0, 4, 2, 2, saved_s=20.0, spent_s=16.0)
    assert log(store) == []
    assert stats(store).totals.hits == 4


def test_the_index_counts_hits_and_knows_who_asked(store: Store, publish: Publish) -> None:
    publish(KEY, used_s=1)
    use(store)
    (listed,) = artifacts(store)
    assert (listed.hits, listed.compile_s, listed.variants) == (1, 8.0, (ABOUT,))
    assert listed.cubin_bytes == 800


def test_a_fold_that_dies_before_it_cleans_up_counts_nothing_twice(
    store: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(KEY, used_s=1)
    use(store)
    with monkeypatch.context() as patch:
        patch.setattr(Folders, "unlink", lambda *_: None)
        stats(store)
    assert len(log(store)) == 1
    use(store)
    assert stats(store).totals.hits == 4
    assert log(store) == []


def test_a_log_stays_where_nothing_lasting_can_count_it(store: Store, publish: Publish) -> None:
    publish(KEY, used_s=1)
    use(store)
    with (
        single_flight.single_flight(
            store.folders, "locks/index", timeout_s=1, on_error=lambda error: None
        ),
        open_index(store, timeout_s=0) as index,
    ):
        assert fold(store, index).hits == 2
    assert len(log(store)) == 1
    assert stats(store).totals.hits == 2


@pytest.mark.parametrize("damage", [b"", b"pallasc-store 1 uses"])
def test_a_damaged_log_is_dropped(store: Store, publish: Publish, damage: bytes) -> None:
    publish(KEY, used_s=1)
    use(store)
    log(store)[0].write_bytes(damage)
    use(store)
    assert stats(store).totals.hits == 2
    assert log(store) == []


def test_totals_that_cannot_be_read_are_not_written_anew(
    store: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(KEY, used_s=1)
    use(store)
    stats(store)
    use(store)

    def fail(folder: Path) -> None:
        raise OSError(5, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(uses, "_load", fail)
        assert stats(store).totals.hits == 2
    assert stats(store).totals.hits == 4


def test_a_log_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("in the way")
    use(Store(tmp_path / "store"))
    assert (tmp_path / "store").read_text() == "in the way"


def test_a_use_makes_the_record_young(store: Store, publish: Publish) -> None:
    publish(KEY, used_s=1)
    before = os.stat(store.path("ac", KEY)).st_mtime
    use(store)
    assert os.stat(store.path("ac", KEY)).st_mtime > before


def test_a_session_needs_no_sqlite() -> None:
    code = (
        "import sys; from pallasc.cache.uses import Session; from pallasc.cache.store import Store;"
        "Session(Store('nowhere')); sys.exit(any('sqlite' in name for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0
