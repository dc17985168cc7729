"""Packs in a store: what arrives is verified, serves, and is kept in order."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import variants
from stored import ARTIFACT, BLOBS, KEY, OTHER, content_of, files_in, held, pack_of, put
from variants import action_key as key
from variants import fill, request_key

from pallasc.cache import format
from pallasc.cache.evict import Limits
from pallasc.cache.inventory import artifacts, stats
from pallasc.cache.manifests import Manifest
from pallasc.cache.packs import Entry, open_pack
from pallasc.cache.prune import clear, merge_packs, prune, tidy
from pallasc.cache.store import Store
from pallasc.cache.transfer import entries_of_manifest, publish_pack
from pallasc.cache.uses import Session
from pallasc.cache.verify import Verified, verify

REQUEST = "ef" * 32


@pytest.fixture
def filled(tmp_path: Path) -> Store:
    """Return another store, with one variant."""
    other = Store(tmp_path / "other")
    put(other)
    other.put_manifest(REQUEST, Manifest(action=KEY, name="kernel"))
    return other


@pytest.fixture
def variant(filled: Store) -> list[Entry]:
    entries = entries_of_manifest(filled, REQUEST)
    assert entries is not None
    return entries


def the_pack(store: Store) -> Path:
    (path,) = (store.folder / "packs").iterdir()
    return path


def test_a_pack_serves_what_was_put_into_the_other_store(
    store: Store, variant: list[Entry]
) -> None:
    other = Store(store.root)
    assert other.get_artifact(KEY) is None
    publish_pack(store, pack_of(variant))
    for seen in (store, other, Store(store.root)):
        assert content_of(seen) == (ARTIFACT, BLOBS)
        assert seen.get_manifest(REQUEST) == Manifest(action=KEY, name="kernel")
        assert entries_of_manifest(seen, REQUEST) == variant
        assert seen.names("ac") == [KEY]
        assert seen.warnings == []
    assert files_in(store, "ac") == files_in(store, "cas") == files_in(store, "tmp") == []
    store.put_manifest(REQUEST, Manifest(action=KEY, name="newer"))
    for seen in (store, Store(store.root)):
        assert seen.get_manifest(REQUEST) == Manifest(action=KEY, name="newer")


def test_a_record_that_was_put_away_is_missing_and_can_be_made_again(
    store: Store, variant: list[Entry]
) -> None:
    publish_pack(store, pack_of(variant))
    assert store.get_artifact(KEY) is not None
    store.put_away(format.ARTIFACTS, KEY, "nobody vouches for it", None)
    for seen in (store, Store(store.root)):
        assert seen.get_artifact(KEY) is None
        assert seen.get_blob(format.sha256(BLOBS["ptx"])) is None
    publish_pack(store, pack_of(variant))
    assert store.get_artifact(KEY, verify=True) is not None
    store.put_away(format.ARTIFACTS, KEY, "nobody vouches for it", None)
    assert store.put_artifact(KEY, {"target": "sm_80"}, BLOBS).stored
    for seen in (store, Store(store.root)):
        assert content_of(seen) == ({"target": "sm_80"}, BLOBS)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _link(path: Path) -> None:
    moved = path.parent.parent.parent / "elsewhere"
    path.rename(moved)
    path.symlink_to(moved)


def damage(path: Path, number: int = 0) -> None:
    """Change a bit of a frame, and leave the times of the file as they are."""
    frame = open_pack(path).frames[number]
    data, before = bytearray(path.read_bytes()), path.stat()
    data[frame.offset + frame.size // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("spoil", [damage, _folder, _link])
def test_a_damaged_pack_is_told_counts_as_missing_and_heals(
    store: Store, variant: list[Entry], spoil: Callable[[Path], None]
) -> None:
    publish_pack(store, pack_of(variant))
    spoil(the_pack(store))
    seen = Store(store.root)
    assert seen.get_artifact(KEY, verify=True) is None
    assert len(seen.warnings) == 1
    assert "packs/" in seen.warnings[0]
    assert put(seen).stored
    assert content_of(Store(store.root)) == (ARTIFACT, BLOBS)
    for path in (store.folder / "ac").glob("*/*"):
        path.unlink()
    publish_pack(seen, pack_of(variant))
    assert content_of(Store(store.root)) == (ARTIFACT, BLOBS)


def test_a_store_without_packs_imports_none_of_it(tmp_path: Path) -> None:
    code = (
        "import sys; from pallasc.cache.store import Store; s = Store(sys.argv[1]);"
        f"s.put_artifact({KEY!r}, {{}}, {{}}); s.get_artifact({KEY!r}); s.get_artifact({OTHER!r});"
        "print([n for n in sys.modules if n.startswith('pallasc.cache.pack') or 'zstd' in n])"
    )
    command = [sys.executable, "-P", "-c", code, str(tmp_path / "own")]
    assert subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout == b"[]\n"


S = 10**9
NOW_S = 2_000_000_000


@pytest.fixture
def source(tmp_path: Path) -> Store:
    """Return another store with ten variants."""
    other = Store(tmp_path / "source")
    fill(other, range(10))
    return other


def pack(source: Store, store: Store, numbers: Sequence[int], *, used_s: int = 1) -> Path:
    groups = [entries_of_manifest(source, request_key(number)) or [] for number in numbers]
    path = store.folder / "packs" / publish_pack(store, pack_of(*groups))
    os.utime(path, (used_s, used_s))
    store.relist_packs()
    return path


def packs(store: Store) -> list[str]:
    return sorted(path.name for path in (store.folder / "packs").iterdir())


def counts(found: Verified) -> tuple[int, int, int, int, list[str]]:
    reasons = [finding.reason for finding in found.findings]
    return found.records, found.blobs, found.manifests, found.packs, reasons


def test_verify_tells_a_damaged_frame_and_repair_quarantines_the_pack(
    source: Store, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pallasc.cache.pack_writer.FRAME_BYTES", 2000)
    path = pack(source, store, range(4), used_s=7)
    damage(path, 1)
    found = verify(store)
    assert not found.ok
    (finding,) = found.findings
    assert finding.path == f"packs/{path.name}"
    assert "frame 1 is damaged: its SHA-256 is" in finding.reason
    assert verify(store, repair=True).ok
    assert counts(verify(store)) == (0, 0, 0, 0, [])
    assert packs(store) == []
    assert held(store) == set()


def test_stats_list_and_verify_know_what_lies_in_packs(source: Store, store: Store) -> None:
    path = pack(source, store, range(4), used_s=50)
    variants.put(store, 9)
    figures = stats(store)
    assert (figures.entries, figures.manifests, figures.blobs, figures.packs) == (5, 5, 10, 1)
    own = (path for area in ("ac", "cas", "man") for path in (store.folder / area).glob("*/*"))
    assert figures.bytes == sum(p.stat().st_size for p in own) + path.stat().st_size
    assert figures.oldest_use == 50
    (listed,) = artifacts(store, key_prefix=key(2))
    assert [about.name for about in listed.variants] == ["kernel2"]
    assert listed.last_use == 50
    found = verify(store)
    assert counts(found) == (5, 10, 5, 1, [])
    assert found.bytes > path.stat().st_size
    pack(source, store, [5])
    store.put_away(format.ARTIFACTS, key(1), "nobody vouches for it", None)
    assert counts(verify(store)) == (2, 4, 2, 1, [])
    assert held(store) == {5, 9}


@pytest.mark.parametrize(
    ("size", "left"),
    [(10**9, {0, 1, 2, 3, 4, 5}), (-1, {2, 3, 4, 5}), (-700, {2, 3, 4, 5}), (0, set())],
)
def test_a_pack_goes_whole_in_its_turn(
    source: Store, store: Store, size: int, left: set[int]
) -> None:
    pack(source, store, [0, 1], used_s=10)
    pack(source, store, [2, 3], used_s=30)
    for number in (4, 5):
        variants.put(store, number)
    limit = stats(store).bytes + size if size < 0 else size
    pruned = prune(store, limits=Limits(max_bytes=limit, grace_s=0), now_ns=NOW_S * 10 * S)
    assert held(store) == left
    assert pruned.plan.bytes_before - pruned.freed_bytes == stats(store).bytes
    assert len(pruned.evictions) - pruned.records == 2 - len(packs(store))
    gone = pruned.to_json()["packs"]
    assert [p["records"] for p in gone] == [2] * (2 - len(packs(store)))  # type: ignore[attr-defined]


def test_a_pack_with_an_artifact_to_keep_stays_whole(source: Store, store: Store) -> None:
    pack(source, store, [0, 1])
    pack(source, store, [2, 3])
    for action in (1, 2):
        store.put_manifest(f"{action:064}", Manifest(action=key(action)))
        os.utime(store.path("man", f"{action:064}"), (1, 1))
    dry = prune(store, limits=Limits(max_bytes=0), dry_run=True)
    assert [len(eviction.unit.keys) for eviction in dry.evictions] == [2, 2]
    assert held(store) == {0, 1, 2, 3}
    pruned = prune(store, limits=Limits(max_bytes=0, grace_s=0), keep=frozenset({key(1)}))
    assert held(store) == {0, 1}
    assert pruned.manifests == 1
    assert (store.get_manifest(f"{1:064}") is None, store.get_manifest(f"{2:064}") is None) == (
        False, True,
    )  # fmt: skip
    assert pruned.plan.held == 2
    clear(store)
    assert held(store) == set()
    assert packs(store) == []


@pytest.mark.parametrize("owned", [True, False])
def test_a_pack_that_a_build_uses_stays(
    source: Store, store: Store, owned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(place: str, **_: object) -> None:
        raise PermissionError(1, "Operation not permitted", place)

    pack(source, store, [0, 1])
    pack(source, store, [2, 3])
    with Session(store) as session:
        assert store.get_artifact(key(0)) is not None
        if not owned:
            monkeypatch.setattr(store.folders, "touch", refuse)
        session.hit(key(0))
        monkeypatch.undo()
        prune(Store(store.root), limits=Limits(max_bytes=0))
        assert held(store) == {0, 1}
        pack(source, store, [2])
        merge_packs(Store(store.root), most=1)
        prune(Store(store.root), limits=Limits(max_bytes=0))
        assert 0 in held(store)
    prune(store, limits=Limits(max_bytes=0), now_ns=NOW_S * S)
    assert held(store) == set()


def test_many_small_packs_become_one(
    source: Store, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [pack(source, store, [n, n + 1], used_s=100 + n) for n in range(8)]
    size = sum(path.stat().st_size for path in paths)
    assert merge_packs(store, most=8) == 0
    with monkeypatch.context() as patch:
        patch.setattr("pallasc.cache.prune.MAX_MERGED_BYTES", paths[0].stat().st_size * 3 // 2)
        assert merge_packs(store, most=1) == 0
    reader = Store(store.root)
    assert reader.get_artifact(key(0)) is not None
    damage(paths[2])
    monkeypatch.setattr("pallasc.cache.prune.MOST_PACKS", 7)
    assert tidy(store) is None
    (name,) = {*packs(store)} - {paths[2].name}
    merged = (store.folder / "packs" / name).stat()
    assert (merged.st_mtime, merged.st_size < size) == (107, True)
    assert held(store) == set(range(9))
    assert all(reader.get_artifact(key(n), verify=True) for n in range(9))
    assert merge_packs(store, most=1) == 0


def test_merged_packs_have_at_most_the_largest_size(
    source: Store, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = max(pack(source, store, [n, n + 1]).stat().st_size for n in range(8))
    monkeypatch.setattr("pallasc.cache.prune.MAX_MERGED_BYTES", size * 5 // 2)
    assert merge_packs(store, most=1) == 8
    assert len(packs(store)) == 4
