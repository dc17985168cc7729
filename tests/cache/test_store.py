"""The store as its users see it, also when the system refuses, lies or stops halfway."""

import errno
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stored import ARTIFACT, BLOBS, KEY, OTHER, artifact_of, blob_path, content_of, files_in, put

from pallasc.cache.folders import Folders
from pallasc.cache.manifests import Manifest
from pallasc.cache.store import PutResult, Store, default_root
from pallasc.errors import CorruptError


def test_what_was_put_comes_back(store: Store) -> None:
    assert store.get_artifact(KEY) is store.get_manifest(KEY) is store.get_blob(KEY) is None
    assert not store.root.exists()
    later = store.root / "v2" / "ac" / "ab" / KEY
    later.parent.mkdir(parents=True)
    later.write_text("something newer")
    result = put(store)
    found = store.get_artifact(KEY)
    assert found is not None
    assert result == PutResult(stored=True, digest=found.digest)
    assert put(store) == PutResult(stored=True, digest=found.digest, existed=True)
    assert (found.key, found.artifact, found.names) == (KEY, ARTIFACT, ["cubin", "ptx"])
    assert {name: found.blob(name) for name in found.names} == BLOBS
    with pytest.raises(CorruptError, match=r"has no blob 'sass', only \['cubin', 'ptx'\]"):
        found.blob("sass")
    assert store.put_artifact(OTHER, {}, {"empty": b""}).stored
    verified = artifact_of(store, OTHER)
    blob_path(store, b"").unlink()
    assert verified.blob("empty") == b""
    for name in ("1", "2"):
        assert store.put_manifest(KEY, Manifest(name=name)).stored
        assert store.get_manifest(KEY) == Manifest(name=name)
    assert (store.warnings, files_in(store, "tmp")) == ([], [])
    assert sorted(path.name for path in store.root.iterdir()) == ["v1", "v2"]
    assert later.read_text() == "something newer"


def test_a_different_second_artifact_is_a_conflict_and_the_first_one_stays(store: Store) -> None:
    first = put(store)
    second = store.put_artifact(KEY, ARTIFACT, {**BLOBS, "cubin": b"other"})
    assert (second.conflict, second.stored, second.stored_digest) == (True, False, first.digest)
    assert second.digest != first.digest
    assert "not deterministic" in second.reason
    assert content_of(store) == (ARTIFACT, BLOBS)
    assert store.get_blob(hashlib.sha256(b"other").hexdigest()) is None


def test_the_record_is_published_after_every_blob(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    rename, link = Folders.rename, Folders.link

    def note_rename(folders: Folders, place: str, to: str) -> None:
        order.append(to.partition("/")[0])
        rename(folders, place, to)

    def note_link(folders: Folders, place: str, to: str) -> None:
        order.append(to.partition("/")[0])
        link(folders, place, to)

    put(store, OTHER)  # the folders exist from here on
    for data in BLOBS.values():
        blob_path(store, data).unlink()
    store.path("ac", KEY).parent.mkdir()
    monkeypatch.setattr(Folders, "rename", note_rename)
    monkeypatch.setattr(Folders, "link", note_link)
    put(store)
    assert order == ["cas", "cas", "ac"]


def test_a_corrupt_blob_is_put_away_with_the_reason_and_heals(store: Store) -> None:
    put(store)
    blob_path(store, BLOBS["ptx"]).write_bytes(b".version 8.9")
    assert store.get_artifact(KEY, verify=True) is None
    names = files_in(store, "quarantine")
    digest = hashlib.sha256(BLOBS["ptx"]).hexdigest()
    assert [name[: name.index("-")] for name in names] == ["ac", "ac", "cas", "cas"]
    told = json.loads((store.folder / "quarantine" / names[3]).read_text())
    found = hashlib.sha256(b".version 8.9").hexdigest()
    assert told == {
        "path": f"cas/{digest[:2]}/{digest}",
        "reason": f"blob {digest}: its SHA-256 is {found}",
    }
    assert (store.folder / "quarantine" / names[2]).read_bytes() == b".version 8.9"
    assert put(store).stored
    assert store.get_artifact(KEY, verify=True) is not None


def rewrite(change: Callable[[bytes], bytes]) -> Callable[[Path, Path], object]:
    return lambda place, _: place.write_bytes(change(place.read_bytes()))


def put_there(make: Callable[[Path, Path], object]) -> Callable[[Path, Path], object]:
    """Return a damage that moves a file away before something is made in its place."""

    def damage(place: Path, other: Path) -> None:
        away = place.rename(place.with_name("away"))
        make(place, away)

    return damage


DAMAGES: dict[str, Callable[[Path, Path], object]] = {
    "a changed bit": rewrite(lambda data: bytes([*data[:-1], data[-1] ^ 1])),
    "cut": rewrite(lambda data: data[:-1]),
    "longer": rewrite(lambda data: data + b" "),
    "empty": rewrite(lambda data: b""),
    "zeros": rewrite(lambda data: bytes(len(data))),
    "another file": lambda place, other: place.write_bytes(other.read_bytes()),
    "a folder": put_there(lambda place, _: place.mkdir()),
    "a link": put_there(lambda place, away: place.symlink_to(away)),
    "a pipe": put_there(lambda place, _: os.mkfifo(place)),
}


@pytest.mark.parametrize("area", ["ac", "man", "cas"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_not_as_it_was_written_is_a_miss_and_heals(
    store: Store, area: str, damage: str
) -> None:
    for key, data in ((KEY, BLOBS["cubin"]), (OTHER, b"other")):
        assert store.put_artifact(key, ARTIFACT, {**BLOBS, "cubin": data}).stored
        store.put_manifest(key, Manifest(name=key))
    place, other = store.path(area, KEY), store.path(area, OTHER)
    if area == "cas":
        place, other = blob_path(store, BLOBS["cubin"]), blob_path(store, b"other")
    DAMAGES[damage](place, other)
    missing = store.get_manifest(KEY) if area == "man" else store.get_artifact(KEY, verify=True)
    assert missing is None
    assert any(place.name in warning for warning in store.warnings)
    assert put(store).stored
    assert store.put_manifest(KEY, Manifest()).stored
    assert content_of(store) == (ARTIFACT, BLOBS)
    assert place.is_file()
    assert not place.is_symlink()


@pytest.mark.parametrize(
    ("environment", "root"),
    [
        ({"PALLASC_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"PALLASC_CACHE_DIR": "~/x", "HOME": "/c"}, "/c/x"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/c"}, "/c/.cache/pallasc"),
        ({"PALLASC_CACHE_DIR": "", "XDG_CACHE_HOME": "", "HOME": "/c"}, "/c/.cache/pallasc"),
    ],
)
def test_the_environment_says_where_the_store_lies(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], root: str
) -> None:
    for name in ("PALLASC_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert default_root() == Path(root)
    assert Store().root == Path(root)


def refuse(number: int) -> Callable[..., Any]:
    """Return a system call that always fails."""

    def call(*arguments: object, **_: object) -> Any:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize(
    "number", [errno.EIO, errno.EMFILE, errno.EACCES, errno.ENOTDIR, errno.ELOOP]
)
@pytest.mark.parametrize("call", ["open", "read", "fstat"])
def test_a_read_error_is_a_miss_with_one_warning(
    store: Store, monkeypatch: pytest.MonkeyPatch, unreadable: Any, number: int, call: str
) -> None:
    put(store)
    store.put_manifest(KEY, Manifest())
    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse(number))
        assert store.get_artifact(KEY) is None
        assert store.get_artifact(KEY, verify=True) is None
        assert store.get_manifest(KEY) is None
        assert store.get_blob(hashlib.sha256(BLOBS["ptx"]).hexdigest()) is None
    assert len(store.warnings) == 1
    assert os.strerror(number) in store.warnings[0]
    with unreadable("cas/"):
        assert store.get_artifact(KEY, verify=True) is None
    assert store.get_artifact(KEY, verify=True) is not None
    assert files_in(store, "quarantine") == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("call", ["open", "mkdir", "write", "fsync", "link", "rename", "close"])
def test_a_write_error_stores_nothing_and_says_why(
    store: Store, monkeypatch: pytest.MonkeyPatch, number: int, call: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse(number))
        results = [put(store), store.put_manifest(KEY, Manifest())]
    refused = [result for result in results if not result.stored]
    assert len(refused) == (1 if call == "link" else 2)
    assert all(os.strerror(number) in result.reason for result in refused)
    assert sum("nothing is stored" in text for text in store.warnings) == 1
    assert files_in(store, "tmp") == []
    assert put(store).stored
    assert store.get_artifact(KEY, verify=True) is not None


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.EMLINK])
def test_a_file_system_without_links_keeps_the_first_one_too(
    store: Store, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "link", refuse(number))
    first = put(store)
    assert first.stored
    assert put(store).existed
    assert store.put_artifact(KEY, {}, {}).stored_digest == first.digest
    assert files_in(store, "tmp") == []
    assert store.warnings == []
