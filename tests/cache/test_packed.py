"""Packs in a store: what arrives is verified, and serves as files of the store do."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from stored import ARTIFACT, BLOBS, KEY, OTHER, blob_path, files_in, put

from pallasc.cache import format
from pallasc.cache.manifests import Manifest
from pallasc.cache.pack_writer import write_pack
from pallasc.cache.packs import Entry, open_pack
from pallasc.cache.store import Store
from pallasc.cache.transfer import entries_of_action, entries_of_manifest, publish_pack

REQUEST = "ef" * 32


def pack_of(*groups: Sequence[Entry]) -> bytes:
    out = io.BytesIO()
    write_pack(groups, out)
    return out.getvalue()


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


def test_the_entries_of_a_variant_are_complete_or_none(filled: Store, variant: list[Entry]) -> None:
    assert [entry.area for entry in variant] == ["man", "ac", "cas", "cas"]
    assert entries_of_action(filled, KEY) == variant[1:]
    assert entries_of_action(filled, OTHER) is entries_of_manifest(filled, OTHER) is None
    blob_path(filled, BLOBS["ptx"]).unlink()
    assert entries_of_manifest(filled, REQUEST) is None


def test_a_pack_serves_what_was_put_into_the_other_store(
    store: Store, variant: list[Entry]
) -> None:
    other = Store(store.root)
    assert other.get_artifact(KEY) is None
    publish_pack(store, pack_of(variant))
    for seen in (store, other, Store(store.root)):
        artifact = seen.get_artifact(KEY, verify=True)
        assert artifact is not None
        assert artifact.artifact == ARTIFACT
        assert {name: artifact.blob(name) for name in artifact.names} == BLOBS
        manifest = seen.get_manifest(REQUEST)
        assert manifest is not None
        assert manifest.name == "kernel"
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
        artifact = seen.get_artifact(KEY, verify=True)
        assert artifact is not None
        assert artifact.artifact == {"target": "sm_80"}


def _damage_frame(path: Path) -> None:
    frame = open_pack(path).frames[0]
    data = bytearray(path.read_bytes())
    data[frame.offset + frame.size // 2] ^= 1
    path.write_bytes(data)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _link(path: Path) -> None:
    moved = path.parent.parent.parent / "elsewhere"
    path.rename(moved)
    path.symlink_to(moved)


@pytest.mark.parametrize("damage", [_damage_frame, _folder, _link])
def test_a_damaged_pack_is_told_counts_as_missing_and_heals(
    store: Store, variant: list[Entry], damage: Callable[[Path], None]
) -> None:
    publish_pack(store, pack_of(variant))
    damage(the_pack(store))
    seen = Store(store.root)
    assert seen.get_artifact(KEY, verify=True) is None
    assert len(seen.warnings) == 1
    assert "packs/" in seen.warnings[0]
    assert put(seen).stored
    later = Store(store.root)
    artifact = later.get_artifact(KEY, verify=True)
    assert artifact is not None
    assert {name: artifact.blob(name) for name in artifact.names} == BLOBS


def test_a_damaged_pack_that_arrives_again_is_whole(store: Store, variant: list[Entry]) -> None:
    publish_pack(store, pack_of(variant))
    _damage_frame(the_pack(store))
    other = Store(store.root)
    assert other.get_artifact(KEY, verify=True) is None
    assert list((store.folder / "packs").iterdir()) == []
    publish_pack(other, pack_of(variant))
    for seen in (other, Store(store.root)):
        assert seen.get_artifact(KEY, verify=True) is not None


def test_a_store_without_packs_imports_none_of_it(tmp_path: Path) -> None:
    code = (
        "import sys; from pallasc.cache.store import Store; s = Store(sys.argv[1]);"
        f"s.put_artifact({KEY!r}, {{}}, {{}}); s.get_artifact({KEY!r}); s.get_artifact({OTHER!r});"
        "print([n for n in sys.modules if n.startswith('pallasc.cache.pack') or 'zstd' in n])"
    )
    command = [sys.executable, "-P", "-c", code, str(tmp_path / "own")]
    assert subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout == b"[]\n"
