"""Pinned artifacts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pallasc.cache.store import Store
from pallasc.cache.upkeep.pins import Pin, held_by_pins, pin, pins, unpin
from pallasc.errors import CorruptError, NotCachedError, ToolError

Publish = Callable[..., str]

KEY, OTHER = "ab" * 32, "cd" * 32


def test_pins_are_listed_with_their_labels(store: Store, publish: Publish) -> None:
    publish(KEY, used_s=1)
    publish(OTHER, used_s=1)
    assert pins(store) == []
    pin(store, OTHER, label="release", now_s=2.0)
    assert pin(store, KEY, now_s=3.0) == Pin(KEY, "", 3.0)
    assert pins(store) == [Pin(KEY, "", 3.0), Pin(OTHER, "release", 2.0)]
    assert held_by_pins(store) == {KEY, OTHER}


def test_a_second_pin_changes_the_label(store: Store, publish: Publish) -> None:
    publish(KEY, used_s=1)
    pin(store, KEY, label="a", now_s=1.0)
    pin(store, KEY, label="b", now_s=2.0)
    assert pins(store) == [Pin(KEY, "b", 2.0)]


@pytest.mark.parametrize("named", [KEY, "release"])
def test_a_pin_is_removed_by_key_or_label(store: Store, publish: Publish, named: str) -> None:
    publish(KEY, used_s=1)
    pin(store, KEY, label="release", now_s=1.0)
    assert unpin(store, "something else") == []
    assert unpin(store, named) == [Pin(KEY, "release", 1.0)]
    assert (pins(store), unpin(store, named)) == ([], [])


def test_pins_without_a_label_are_not_removed_by_an_empty_one(
    store: Store, publish: Publish
) -> None:
    pin(store, publish(KEY, used_s=1), now_s=1.0)
    assert unpin(store, "") == []


def test_what_is_not_in_the_store_cannot_be_pinned(store: Store) -> None:
    with pytest.raises(NotCachedError, match="has no artifact abab"):
        pin(store, KEY)
    assert pins(store) == []
    with pytest.raises(CorruptError, match="64 lower-case"):
        pin(store, "KEY")


def test_a_pin_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("in the way")
    with pytest.raises(ToolError, match="cannot be pinned: Not a directory"):
        pin(Store(tmp_path / "store"), KEY)
