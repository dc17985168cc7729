"""Stores merged into one: all that is valid arrives, the rest is named and left as it is."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from pallasc.cache.format import sha256
from pallasc.cache.manifests import Manifest
from pallasc.cache.signing import Trust
from pallasc.cache.store import Store
from pallasc.cache.upkeep.merge_stores import MergedStore, merge_stores
from pallasc.cache.upkeep.verify import verify
from pallasc.errors import ArgumentError, CorruptError, NotCachedError, ToolError


def key(number: int) -> str:
    return sha256(f"action {number}".encode())


def request_of(number: int) -> str:
    return sha256(f"request {number}".encode())


def blobs(number: int) -> dict[str, bytes]:
    return {"cubin": f"cubin {number}".encode() * 300, "ptx": b"shared " * 40}


def put(store: Store, number: int, *, name: str = "", made: int = 0) -> None:
    digest = store.put_artifact(key(number), {"n": number, "made": made}, blobs(number)).digest
    manifest = Manifest(action=key(number), record=digest, name=name or f"kernel{number}")
    store.put_manifest(request_of(number), manifest)


@pytest.fixture
def make(tmp_path: Path) -> Callable[[str, Iterable[int]], Store]:
    def make(name: str, numbers: Iterable[int]) -> Store:
        made = Store(tmp_path / name)
        for number in numbers:
            put(made, number)
        return made

    return make


def merge(store: Store, *others: Store) -> list[MergedStore]:
    return list(merge_stores(store, [other.root for other in others]))


def held(store: Store) -> set[int]:
    seen = Store(store.root)
    found = {n for n in range(20) if seen.get_artifact(key(n), verify=True) is not None}
    assert seen.warnings == []
    return found


def state(store: Store) -> dict[str, tuple[str, int]]:
    """Return digest and time of each file of a store."""
    return {
        str(path.relative_to(store.root)): (
            hashlib.sha256(path.read_bytes()).hexdigest(),
            path.stat().st_mtime_ns,
        )
        for path in store.root.rglob("*")
        if path.is_file()
    }


Make = Callable[[str, Iterable[int]], Store]


def test_everything_of_the_others_is_taken(make: Make, store: Store) -> None:
    put(store, 0)
    one, two = make("one", range(4)), make("two", range(3, 7))
    before = state(one), state(two)
    first, second = merge(store, one, two)
    assert (first.records, first.manifests, first.existed) == (3, 3, 1)
    assert (second.records, second.manifests, second.existed) == (3, 3, 1)
    assert first.ok
    assert second.ok
    assert held(store) == set(range(7))
    assert {store.get_manifest(request_of(n)) is not None for n in range(7)} == {True}
    assert verify(store).findings == []
    assert (state(one), state(two)) == before
    assert len(list((store.folder / "packs").iterdir())) == 2


def test_a_second_merge_takes_nothing(make: Make, store: Store) -> None:
    one = make("one", range(4))
    merge(store, one)
    before = state(store)
    (again,) = merge(store, one)
    assert (again.records, again.manifests, again.existed) == (0, 0, 4)
    assert state(store) == before


def test_a_merged_store_can_be_merged(make: Make, store: Store, tmp_path: Path) -> None:
    merge(store, make("one", range(4)), make("two", range(3, 7)))
    last = Store(tmp_path / "last")
    (merged,) = merge(last, store)
    assert (merged.records, merged.manifests) == (7, 7)
    assert held(last) == set(range(7))


def test_what_is_damaged_is_named_and_left(make: Make, store: Store) -> None:
    one = make("one", range(5))
    one.path("ac", key(0)).write_bytes(b"damaged")
    one.path("cas", sha256(blobs(1)["cubin"])).unlink()
    one.path("man", request_of(2)).write_bytes(b"")
    before = state(one)
    (merged,) = merge(store, one)
    assert not merged.ok
    assert len(merged.refused) == 3
    for part in (f"ac/{key(0)[:2]}/{key(0)}", f"ac/{key(1)[:2]}/{key(1)}", request_of(2)):
        assert any(part in text for text in merged.refused)
    assert held(store) == {2, 3, 4}
    assert state(one) == before
    assert verify(store).findings == []


def test_a_damaged_pack_of_the_other_store_stays_there(
    make: Make, store: Store, tmp_path: Path
) -> None:
    packed = Store(tmp_path / "packed")
    merge(packed, make("one", range(3)))
    (path,) = (packed.folder / "packs").iterdir()
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    put(packed, 5)
    path.write_bytes(data)
    before = state(packed)
    (merged,) = merge(store, packed)
    assert not merged.ok
    assert f"packs/{path.name} is damaged" in merged.refused[0]
    assert held(store) == {5}
    assert state(packed) == before


def test_records_that_differ_under_one_key_are_a_conflict(make: Make, store: Store) -> None:
    put(store, 1)
    one = make("one", [0])
    put(one, 1, made=2)
    (merged,) = merge(store, one)
    assert merged.conflicts == [key(1)]
    assert not merged.ok
    artifact = Store(store.root).get_artifact(key(1), verify=True)
    assert artifact is not None
    assert artifact.artifact["made"] == 0
    assert held(store) == {0, 1}


def test_a_conflict_between_two_others_is_told(make: Make, store: Store, tmp_path: Path) -> None:
    two = Store(tmp_path / "two")
    put(two, 0, made=9)
    first, second = merge(store, make("one", [0]), two)
    assert (first.conflicts, second.conflicts) == ([], [key(0)])


def test_a_request_that_the_store_knows_keeps_its_entry(make: Make, store: Store) -> None:
    put(store, 0, name="mine")
    one = make("one", [0])
    (merged,) = merge(store, one)
    assert (merged.kept, merged.manifests) == (1, 0)
    manifest = store.get_manifest(request_of(0))
    assert manifest is not None
    assert manifest.name == "mine"


def test_an_entry_that_leads_nowhere_is_replaced(make: Make, store: Store) -> None:
    put(store, 0, name="mine")
    store.path("ac", key(0)).unlink()
    (merged,) = merge(store, make("one", [0]))
    assert (merged.kept, merged.manifests, merged.records) == (0, 1, 1)
    manifest = store.get_manifest(request_of(0))
    assert manifest is not None
    assert manifest.name == "kernel0"


def test_artifacts_without_a_request_and_results_of_checks_are_taken(
    make: Make, store: Store
) -> None:
    one = make("one", [])
    one.put_artifact(key(3), {}, {"cubin": b"x" * 99})
    one.put_manifest(request_of(4), Manifest(check="passed"))
    (merged,) = merge(store, one)
    assert (merged.records, merged.manifests) == (1, 1)
    assert store.get_artifact(key(3), verify=True) is not None
    assert store.get_manifest(request_of(4)) is not None


def _trust(secret: bytes, *, required: bool = True) -> Trust:
    def sign(message: bytes) -> bytes:
        return hashlib.sha256(secret + message).digest()

    name = hashlib.sha256(secret).hexdigest()
    return Trust(required, {name: sign}, {name: lambda given, text: sign(text) == given})


def test_only_what_a_trusted_key_signed_is_taken_where_that_is_required(
    make: Make, tmp_path: Path
) -> None:
    signed = Store(tmp_path / "signed", trust=_trust(b"ours"))
    put(signed, 0)
    forged = Store(tmp_path / "forged", trust=_trust(b"theirs"))
    put(forged, 1)
    target = Store(tmp_path / "target", trust=_trust(b"ours"))
    results = merge(target, signed, forged, make("plain", [2]))
    assert [merged.records for merged in results] == [1, 0, 0]
    assert [merged.unsigned for merged in results] == [0, 1, 1]
    assert all(merged.ok for merged in results)
    assert held(target) == {0}
    assert target.get_manifest(request_of(0)) is not None


def test_a_signed_manifest_does_not_vouch_for_another_record(tmp_path: Path) -> None:
    signed = Store(tmp_path / "signed", trust=_trust(b"ours"))
    put(signed, 0)
    signed.path("ac", key(0)).unlink()
    signed.put_artifact(key(0), {"n": 0, "made": "elsewhere"}, blobs(0))
    target = Store(tmp_path / "target", trust=_trust(b"ours"))
    (merged,) = merge(target, signed)
    assert merged.records == 0
    assert "it is not the one that was signed" in merged.refused[0]
    assert held(target) == set()


def test_nothing_is_signed_by_merging(make: Make, tmp_path: Path) -> None:
    target = Store(tmp_path / "target", trust=_trust(b"ours", required=False))
    merge(target, make("plain", [0]))
    manifest = target.find_manifest(request_of(0))
    assert manifest is not None
    assert "signed" not in manifest.body


def test_a_large_store_becomes_several_packs(
    make: Make, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pallasc.cache.upkeep.merge_stores.PACK_BYTES", 300)
    monkeypatch.setattr("pallasc.cache.packs.format.FRAME_BYTES", 1000)
    (merged,) = merge(store, make("one", range(12)))
    assert (merged.records, merged.manifests) == (12, 12)
    assert len(list((store.folder / "packs").iterdir())) > 2
    assert held(store) == set(range(12))
    assert verify(store).findings == []


def test_a_folder_without_a_store_and_the_store_itself_are_refused(
    make: Make, store: Store, tmp_path: Path
) -> None:
    one = make("one", [0])
    with pytest.raises(NotCachedError, match="there is no store"):
        list(merge_stores(store, [one.root, tmp_path / "nothing"]))
    assert not store.folder.exists()
    put(store, 1)
    with pytest.raises(ArgumentError, match="is the store itself"):
        list(merge_stores(store, [store.root]))


def test_a_store_that_somebody_planted_is_refused(make: Make, store: Store, tmp_path: Path) -> None:
    one = make("one", [0])
    (one.folder / "cas").rename(tmp_path / "cas")
    (one.folder / "cas").symlink_to(tmp_path / "cas")
    with pytest.raises(CorruptError, match="a symbolic link"):
        merge(store, one)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_store_that_cannot_be_written_is_an_error(make: Make, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir(mode=0o500)
    with pytest.raises(ToolError, match="cannot be written"):
        merge(Store(tmp_path / "target"), make("one", [0]))


def test_a_store_with_a_file_in_its_place_is_an_error(make: Make, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "v1").write_text("in the way")
    with pytest.raises(ToolError, match="cannot be written"):
        merge(Store(tmp_path / "target"), make("one", [0]))


def test_merges_that_are_killed_leave_both_stores_sound(
    run_program: Callable[..., str], tmp_path: Path
) -> None:
    told = json.loads(run_program("merge_kill.py", tmp_path, 40, 1))
    assert told["wrong"] == []
    assert told["kills"] >= 40
