"""Verifying everything, and repairing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache import files
from pallasc.cache.format import sha256
from pallasc.cache.index import open_index
from pallasc.cache.pins import pin
from pallasc.cache.store import Store
from pallasc.cache.uses import Session
from pallasc.cache.verify import Verified, verify

Publish = Callable[..., str]

KEY, OTHER, REQUEST = "ab" * 32, "cd" * 32, "ef" * 32
CUBIN = b"\x7fELF" * 100
DIGEST = sha256(CUBIN)


@pytest.fixture
def filled(store: Store, publish: Publish) -> Store:
    publish(KEY, used_s=1000, blobs={"cubin": CUBIN, "ptx": b"ptx"})
    publish(OTHER, used_s=1000)
    store.put_manifest(REQUEST, {"action": KEY})
    return store


def kinds(verified: Verified) -> list[tuple[str, str]]:
    return [(one.kind, one.path.partition("/")[0]) for one in verified.findings]


def test_a_sound_store_has_no_findings(filled: Store) -> None:
    pin(filled, KEY)
    with Session(filled) as session:
        session.hit(KEY)
    filled.put_blob(b"orphan")
    filled.put_manifest("00" * 32, {"action": "11" * 32})
    found = verify(filled)
    assert (found.records, found.blobs, found.manifests) == (2, 4, 2)
    assert (found.pins, found.uses, found.orphans, found.dangling) == (1, 1, 1, 1)
    assert found.ok
    assert found.findings == []
    assert found.bytes > len(CUBIN)


def test_a_missing_store_is_sound(store: Store) -> None:
    assert verify(store, repair=True).ok
    assert not store.root.exists()


Damage = Callable[[Store], Any]
DAMAGES: dict[str, tuple[Damage, list[tuple[str, str]]]] = {
    "blob changed": (
        lambda store: store.path("cas", DIGEST).write_bytes(CUBIN[:-1] + b"!"),
        [("corrupt", "cas"), ("incomplete", "ac")],
    ),
    "blob gone": (lambda store: store.path("cas", DIGEST).unlink(), [("incomplete", "ac")]),
    "record cut": (
        lambda store: store.path("ac", KEY).write_bytes(store.path("ac", KEY).read_bytes()[:-1]),
        [("corrupt", "ac")],
    ),
    "manifest empty": (
        lambda store: store.path("man", REQUEST).write_bytes(b""),
        [("corrupt", "man")],
    ),
    "file of another name": (
        lambda store: (store.folder / "ac" / "ab" / "notes.txt").write_text("mine"),
        [("foreign", "ac")],
    ),
    "file in the wrong shard": (
        lambda store: store.path("ac", KEY).rename(store.folder / "ac" / "cd" / KEY),
        [("foreign", "ac")],
    ),
    "link in the place of a record": (
        lambda store: (store.path("ac", KEY).unlink(), store.path("ac", KEY).symlink_to("x")),
        [("foreign", "ac")],
    ),
    "log damaged": (
        lambda store: (
            (store.folder / "uses").mkdir(),
            (store.folder / "uses" / KEY).write_bytes(b"x"),
        ),
        [("corrupt", "uses")],
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_and_only_a_repair_touches_it(filled: Store, name: str) -> None:
    damage, expected = DAMAGES[name]
    damage(filled)
    before = sorted(path for path in filled.folder.rglob("*") if "index" not in path.name)
    found = verify(filled)
    after = sorted(path for path in filled.folder.rglob("*") if "index" not in path.name)
    assert kinds(found) == expected
    assert not found.ok
    assert [path for path in after if path.name != "locks"] == before
    repaired = verify(filled, repair=True)
    assert kinds(repaired) == expected
    assert repaired.ok
    assert verify(filled).findings == []


def test_what_was_repaired_is_made_anew_by_the_next_build(filled: Store) -> None:
    filled.path("cas", DIGEST).write_bytes(b"")
    verify(filled, repair=True)
    assert filled.get_artifact(KEY) is None
    assert filled.put_artifact(KEY, {}, {"cubin": CUBIN}).stored
    assert verify(filled).findings == []


def test_a_damaged_pin_is_found_and_stays(filled: Store) -> None:
    pin(filled, KEY)
    (filled.folder / "pins" / KEY).write_bytes(b"")
    found = verify(filled, repair=True)
    assert kinds(found) == [("corrupt", "pins")]
    assert not found.ok
    assert (filled.folder / "pins" / KEY).exists()


def test_what_cannot_be_read_is_told_and_not_put_away(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = files.read

    def refuse(path: str, **options: Any) -> files.Found | None:
        if "/cas/" in path:
            raise OSError(5, "Input/output error")
        return real(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(files, "read", refuse)
        found = verify(filled, repair=True)
    assert [(one.kind, one.reason) for one in found.findings] == [
        ("unreadable", "Input/output error")
    ] * 3
    assert not found.ok
    assert verify(filled).findings == []


def test_an_index_that_is_wrong_is_found_and_thrown_away(filled: Store) -> None:
    with open_index(filled) as index:
        index.write(lambda database: database.execute("UPDATE artifacts SET blobs = x''"))
    assert kinds(verify(filled)) == [("index", "index.sqlite")]
    assert verify(filled, repair=True).ok
    assert verify(filled).findings == []


def test_the_result_can_be_written_as_json(filled: Store) -> None:
    filled.path("ac", KEY).write_bytes(b"")
    told = json.loads(json.dumps(verify(filled).to_json()))
    assert told["ok"] is False
    assert told["findings"] == [
        {
            "kind": "corrupt",
            "path": f"ac/ab/{KEY}",
            "reason": f"artifact {KEY}: the file is empty",
            "repaired": False,
        }
    ]


def test_a_record_that_is_evicted_meanwhile_is_no_finding(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = files.read

    def evict(path: str, **options: Any) -> files.Found | None:
        found = real(path, **options)
        if path.endswith(KEY):
            Path(path).unlink()
            filled.path("cas", DIGEST).unlink(missing_ok=True)
        return found

    filled.path("cas", DIGEST).unlink()
    monkeypatch.setattr(files, "read", evict)
    assert verify(filled, repair=True).findings == []
