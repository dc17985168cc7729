"""The store when the system refuses, lies or stops halfway."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stored import BLOBS, KEY, files_in, put

from pallasc.cache.manifests import Manifest
from pallasc.cache.store import Store


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
    store: Store, monkeypatch: pytest.MonkeyPatch, number: int, call: str
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
    assert store.get_artifact(KEY, verify=True) is not None
    assert files_in(store, "quarantine") == []


def test_a_read_error_at_a_blob_does_not_put_the_record_away(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store)
    real = os.open

    def fail_at_blobs(path: Any, *arguments: Any, **options: Any) -> int:
        above = options.get("dir_fd", -1)
        if above >= 0 and "/cas/" in os.readlink(f"/proc/self/fd/{above}"):
            raise OSError(errno.EIO, "broken")
        return real(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail_at_blobs)
        assert store.get_artifact(KEY, verify=True) is None
    assert store.get_artifact(KEY, verify=True) is not None


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


@pytest.mark.parametrize("claimed", [0, None])
def test_a_write_that_lies_stores_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch, claimed: int | None
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda _, data: len(data) if claimed is None else claimed)
        assert not put(store).stored
    assert files_in(store, "tmp") == []
    assert store.get_artifact(KEY) is None
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda place, data: real(place, b"\0" * len(data)))
        put(store)
    assert store.get_artifact(KEY, verify=True) is None
    monkeypatch.setattr(os, "write", lambda place, data: real(place, data[:100]))
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


def test_a_folder_that_cannot_be_synced_is_good_enough(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def only_files(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not here")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", only_files)
    assert put(store).stored


def test_a_file_in_the_place_of_the_store_stores_nothing(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("mine")
    told: list[str] = []
    store = Store(tmp_path / "store", warn=told.append)
    assert store.get_artifact(KEY) is None
    assert not put(store).stored
    assert not store.put_manifest(KEY, Manifest()).stored
    assert (tmp_path / "store").read_text() == "mine"
    assert told == store.warnings
    assert len(told) == 2
