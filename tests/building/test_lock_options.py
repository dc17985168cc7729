"""Which lock --lock, --frozen and --locked take, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from pallasc.compiler.builds.locked import (
    Locked,
    load_locked,
)
from pallasc.errors import NotCachedError, SpecError
from pallasc.specs.loading.lock import Entry, Lock, write_lock

ENTRY = Entry("a" * 64, "b" * 64, "c" * 64)


def test_without_an_option_nothing_holds_a_build(tmp_path: Path) -> None:
    assert load_locked(None, frozen=False, locked=False) is None
    with pytest.raises(SpecError, match="--lock needs --frozen or --locked"):
        load_locked(tmp_path / "x.lock", frozen=False, locked=False)


@pytest.mark.parametrize(("frozen", "locked"), [(True, False), (False, True), (True, True)])
def test_a_lock_is_taken_from_the_current_folder_or_where_it_is_said_to_be(
    frozen: bool, locked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here, there = Lock(variants={"here": ENTRY}), Lock(variants={"there": ENTRY})
    write_lock(tmp_path / "pallasc.lock", here)
    write_lock(tmp_path / "other.lock", there)
    options = {"frozen": frozen, "locked": locked}
    assert load_locked(None, **options) == Locked("pallasc.lock", here)
    assert load_locked(Path("other.lock"), **options) == Locked("other.lock", there)


def test_a_lock_that_was_named_must_be_there(tmp_path: Path) -> None:
    path = tmp_path / "none.lock"
    for options in ({"frozen": True, "locked": False}, {"frozen": False, "locked": True}):
        with pytest.raises(NotCachedError) as caught:
            load_locked(path, **options)
        assert caught.value.exit_code == 3
        assert str(caught.value) == (
            f"there is no {path}.\n  Make it with: pallasc lock SPECS --update --lock {path}"
        )


@pytest.mark.parametrize("frozen", [True, False])
def test_locked_without_a_lock_is_not_as_locked(
    frozen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotCachedError) as caught:
        load_locked(None, frozen=frozen, locked=True)
    assert str(caught.value) == (
        "there is no pallasc.lock here.\n  Make it with: pallasc lock SPECS --update"
    )
