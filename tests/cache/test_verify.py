"""Verifying everything, and repairing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stored import put_blob

from pallasc.cache.format import sha256
from pallasc.cache.manifests import Manifest
from pallasc.cache.store import Store
from pallasc.cache.uses import Session
from pallasc.cache.verify import Verified, verify
from pallasc.errors import CorruptError
from pallasc.specs.artifacts.cubin import Tool

Publish = Callable[..., str]

KEY, OTHER, REQUEST = "ab" * 32, "cd" * 32, "ef" * 32
CUBIN = b"\x7fELF" * 100
DIGEST = sha256(CUBIN)


@pytest.fixture
def filled(store: Store, publish: Publish) -> Store:
    publish(KEY, used_s=1000, blobs={"cubin": CUBIN, "ptx": b"ptx"})
    publish(OTHER, used_s=1000)
    store.put_manifest(REQUEST, Manifest(action=KEY))
    return store


def kinds(verified: Verified) -> list[tuple[str, str]]:
    return [(finding.kind, finding.path.partition("/")[0]) for finding in verified.findings]


def test_a_sound_store_has_no_findings(filled: Store, tmp_path: Path) -> None:
    assert verify(Store(tmp_path / "none"), repair=True).ok
    assert not (tmp_path / "none").exists()
    with Session(filled) as session:
        session.hit(KEY)
    put_blob(filled, b"orphan")
    filled.put_manifest("00" * 32, Manifest(action="11" * 32))
    found = verify(filled)
    assert (found.records, found.blobs, found.manifests) == (2, 4, 2)
    assert (found.ok, found.findings, found.bytes > len(CUBIN)) == (True, [], True)


Damage = Callable[[Store], Any]
DAMAGES: dict[str, tuple[Damage, list[tuple[str, str]]]] = {
    "blob changed": (
        lambda store: store.path("cas", DIGEST).write_bytes(CUBIN[:-1] + b"!"),
        [("corrupt", "cas"), ("incomplete", "ac")],
    ),
    "blob gone": (lambda store: store.path("cas", DIGEST).unlink(), [("incomplete", "ac")]),
    "manifest empty": (
        lambda store: store.path("man", REQUEST).write_bytes(b""),
        [("corrupt", "man")],
    ),
    "file in the wrong shard": (
        lambda store: store.path("ac", KEY).rename(store.folder / "ac" / "cd" / KEY),
        [("foreign", "ac")],
    ),
    "link in the place of a record": (
        lambda store: (store.path("ac", KEY).unlink(), store.path("ac", KEY).symlink_to("x")),
        [("foreign", "ac")],
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_and_only_a_repair_touches_it(filled: Store, name: str) -> None:
    damage, expected = DAMAGES[name]
    damage(filled)
    before = {path for path in filled.folder.rglob("*") if "stat" not in path.parts}
    found = verify(filled)
    after = {path for path in filled.folder.rglob("*") if "stat" not in path.parts}
    assert kinds(found) == expected
    assert (found.ok, found.to_json()["ok"]) == (False, False)
    told = found.to_json()["findings"][-1]
    assert (told["kind"], told["path"].partition("/")[0], told["repaired"]) == (
        *expected[-1],
        False,
    )
    assert {path for path in after if path.name != "locks"} == before
    repaired = verify(filled, repair=True)
    assert kinds(repaired) == expected
    assert repaired.ok
    assert not (filled.folder / "stat" / "index").exists()
    assert verify(filled).findings == []


def test_what_cannot_be_read_is_told_and_not_put_away(filled: Store, unreadable: Any) -> None:
    with unreadable("cas/"):
        found = verify(filled, repair=True)
    told = [(finding.kind, finding.reason) for finding in found.findings]
    assert told == [("unreadable", "cannot be read: Input/output error")] * 3
    assert not found.ok
    assert verify(filled).findings == []


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        ((Tool("ptxas", "13.5.37", ""),), ""),
        ((Tool("ptxas", "13.9.1", ""),), "it names ptxas 13.5.37, but ptxas 13.9.1 assembled k"),
        ((), "it names ptxas 13.5.37, but a tool that it does not name assembled k"),
        (None, ""),
    ],
)
def test_a_record_that_names_another_assembler_is_corrupt(
    store: Store, monkeypatch: pytest.MonkeyPatch, tools: tuple[Tool, ...] | None, says: str
) -> None:
    def made_by(data: bytes) -> tuple[Tool, ...]:
        if tools is None:
            raise CorruptError("not a cubin")
        return tools

    monkeypatch.setattr("pallasc.cache.verify.tools_of", made_by)
    kernels = [{"name": "k", "cubin": "cubin"}]
    artifact = {"kernels": kernels, "toolchain": {"ptxas": "13.5.37"}}
    store.put_artifact(KEY, artifact, {"cubin": CUBIN})
    found = verify(store, repair=True)
    assert [each.reason for each in found.findings] == ([says] if says else [])
    assert (store.get_artifact(KEY) is None) == bool(says)
