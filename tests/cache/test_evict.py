"""Limits as users write them, and a table of stores and what has to go from each."""

from typing import Any

import pytest

from pallasc.cache.evict import (
    DEFAULT_BYTES,
    Limits,
    Plan,
    decide,
    parse_age,
    parse_size,
    read_limits,
)
from pallasc.cache.format import size
from pallasc.cache.inventory import Facts, Inventory, StoredFile
from pallasc.cache.uses import Held
from pallasc.errors import SpecError

S = 10**9
NOW = 1000


def record(key: str, used_s: int, *blobs: str, size: int = 1) -> StoredFile:
    return StoredFile(key, (1, used_s * S, size), Facts(blobs=blobs))


def blob(size: int, made_s: int = 1) -> tuple[int, int, int]:
    return (2, made_s * S, size)


def manifest(action: str, made_s: int = 1, size: int = 1) -> tuple[int, str, int]:
    return made_s, action, size


def store(
    *records: StoredFile,
    blobs: dict[str, tuple[int, int, int]] | None = None,
    manifests: dict[str, tuple[int, str, int]] | None = None,
) -> Inventory:
    leading = {
        name: StoredFile(name, (3, made_s * S, size), Facts(action=action))
        for name, (made_s, action, size) in (manifests or {}).items()
    }
    return Inventory({found.name: found for found in records}, leading, blobs or {})


def plan(
    inventory: Inventory,
    held: Held | None = None,
    *,
    size: int | None = None,
    age_s: float | None = None,
    grace_s: float = 100,
    clear: bool = False,
    **options: Any,
) -> Plan:
    limits = Limits(max_bytes=size, max_age_s=age_s, grace_s=grace_s, clear=clear)
    return decide(inventory, limits, held or Held(), now_ns=NOW * S, **options)


THREE = store(
    record("new", 30, "n"),
    record("old", 10, "o"),
    record("mid", 20, "m"),
    blobs={"n": blob(9), "o": blob(9), "m": blob(9)},
)


@pytest.mark.parametrize(
    ("made_s", "held", "gone"),
    [
        (NOW - 100, Held(), ("x",)),
        (NOW - 99, Held(), ()),
        (NOW - 500, Held(since_ns=(NOW - 600) * S), ()),
        (NOW - 500, Held(since_ns=(NOW - 400) * S), ("x",)),
    ],
)
def test_a_blob_without_a_record_goes_after_a_time_of_grace(
    made_s: int, held: Held, gone: tuple[str, ...]
) -> None:
    assert plan(store(blobs={"x": blob(5, made_s)}), held).orphans == gone


@pytest.mark.parametrize(
    ("action", "made_s", "age_s", "gone"),
    [
        ("gone", 1, None, ("r",)),
        ("gone", NOW - 50, None, ()),
        ("", 1, 500, ("r",)),
        ("", NOW - 400, 500, ()),
    ],
)
def test_a_manifest_that_leads_to_nothing_goes(
    action: str, made_s: int, age_s: float | None, gone: tuple[str, ...]
) -> None:
    inventory = store(record("here", 999), manifests={"r": manifest(action, made_s)})
    assert plan(inventory, age_s=age_s).dangling == gone


def test_nothing_goes_where_something_could_not_be_seen() -> None:
    unseen = Inventory(THREE.records, {}, {**THREE.blobs, "x": blob(1)}, faults=["broken"])
    assert plan(unseen, size=0, age_s=0) == Plan(bytes_before=31, bytes_after=31, complete=False)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("5 gb", 5 * 10**9),
        ("1.5MiB", 3 * 2**19),
        (" 2TiB ", 2 * 2**40),
        ("0", None),
        ("none", None),
    ],
)
def test_a_size_is_read(text: str, count: int | None) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("5Gib5", "Write a number and a unit, such as 5GiB"),
        ("-5GiB", "Write a number and a unit"),
        ("1048576", "1048576' has no unit"),
        ("0GiB", "0 or none: no limit"),
    ],
)
def test_what_is_no_size_is_refused_with_what_to_write(text: str, hint: str) -> None:
    with pytest.raises(SpecError, match=hint):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "age_s"), [("12h", 43_200.0), ("90d", 7_776_000.0), ("2W", 1_209_600.0), ("0", None)]
)
def test_an_age_is_read(text: str, age_s: float | None) -> None:
    assert parse_age(text) == age_s


@pytest.mark.parametrize("text", ["90", "0d", "3 months", "-1d"])
def test_what_is_no_age_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(SpecError, match="12h, 90d, 2w, none"):
        parse_age(text)


def test_limits_are_finite_unless_the_environment_sets_them() -> None:
    assert read_limits(environment={}) == Limits(max_bytes=DEFAULT_BYTES, max_age_s=None)
    assert DEFAULT_BYTES == 10 * 2**30
    environment = {"PALLASC_CACHE_SIZE": "5GiB", "PALLASC_CACHE_AGE": "90d"}
    wanted = Limits(max_bytes=5 * 2**30, max_age_s=90 * 86_400.0)
    assert read_limits(environment=environment) == wanted
    with pytest.raises(SpecError, match="PALLASC_CACHE_SIZE: '5Q' is not a size"):
        read_limits(environment={"PALLASC_CACHE_SIZE": "5Q"})


def test_sizes_are_for_people() -> None:
    counts = (0, 999, 1000, 2_150_000, 2_000_000_000, 3 << 30)
    shown = ["0 bytes", "999 bytes", "1 kB", "2.1 MB", "2 GB", "3 GiB"]
    assert [size(count) for count in counts] == shown
    assert size(1_500_000, limit=1 << 20) == "1.4 MiB"
