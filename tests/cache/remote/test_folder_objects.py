"""Objects in a folder: whole or not there, one writer at a time, errors in words."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from pathlib import Path

import pytest

from pallasc.cache.remote.failure import Failure, RemoteError
from pallasc.cache.remote.folder_objects import FolderObjects
from pallasc.cache.remote.objects import Item


def nothing(size: int) -> None:
    pass


def get(objects: FolderObjects, name: str, limit_bytes: int = 100) -> bytes:
    return objects.get(name, limit_bytes=limit_bytes, on_bytes=nothing).data


@pytest.fixture
def objects(tmp_path: Path) -> FolderObjects:
    return FolderObjects(tmp_path / "there", timeout_s=0.2)


def test_what_was_written_is_read(objects: FolderObjects, tmp_path: Path) -> None:
    objects.put("a/b/c", b"0123456789")
    objects.put("a/d", b"x")
    assert get(objects, "a/b/c") == b"0123456789"
    assert objects.get_part("a/b/c", 3, 4, on_bytes=nothing) == b"3456"
    assert [item[:2] for item in objects.list("a/")] == [("a/d", 1), ("a/b/c", 10)]
    (item,) = objects.list("a/b/")
    assert isinstance(item, Item)
    assert time.time() - 100 < item.modified_s < time.time() + 1
    objects.delete("a/d")
    objects.delete("a/d")
    assert not list((tmp_path / "there" / ".tmp").iterdir())


def test_a_change_is_made_only_to_the_version_that_was_read(objects: FolderObjects) -> None:
    assert objects.put_if("x", b"1", None)
    assert not objects.put_if("x", b"2", None)
    version = objects.get("x", limit_bytes=9, on_bytes=nothing).version
    assert objects.put_if("x", b"2", version)
    assert not objects.put_if("x", b"3", version)
    assert get(objects, "x") == b"2"
    assert [item.name for item in objects.list("")] == ["x"]


def test_changes_at_once_are_one_after_the_other(objects: FolderObjects) -> None:
    objects.put_if("x", b"0", None)
    objects = FolderObjects(objects._folder, timeout_s=600)

    def count() -> None:
        done = 0
        while done < 10:
            got = objects.get("x", limit_bytes=9, on_bytes=nothing)
            done += objects.put_if("x", b"%d" % (int(got.data) + 1), got.version)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert get(objects, "x") == b"40"


def _failure(call: object, *arguments: object, **named: object) -> tuple[Failure, str]:
    with pytest.raises(RemoteError) as caught:
        call(*arguments, **named)  # type: ignore[operator]
    return caught.value.failure, caught.value.message


def test_errors_say_what_and_where(objects: FolderObjects, tmp_path: Path) -> None:
    there = tmp_path / "there"
    assert _failure(get, objects, "x") == (
        Failure.MISSING, f"read file://{there}/x: it does not exist",
    )  # fmt: skip
    objects.put("x", b"0123456789")
    assert _failure(get, objects, "x", 5) == (
        Failure.TOO_LARGE, f"file://{there}/x: 10 bytes is over the limit of 5",
    )  # fmt: skip
    assert _failure(objects.get_part, "x", 8, 9, on_bytes=nothing)[0] is Failure.TORN
    assert _failure(objects.put, "x/y", b"")[1] == f"write file://{there}/x/y: Not a directory"


@pytest.mark.parametrize(
    ("number", "failure"),
    [
        (errno.EACCES, Failure.REFUSED),
        (errno.EROFS, Failure.REFUSED),
        (errno.ENOSPC, Failure.UNREACHABLE),
        (errno.EIO, Failure.BROKEN),
    ],
)
def test_what_a_disk_refuses(
    objects: FolderObjects, monkeypatch: pytest.MonkeyPatch, number: int, failure: Failure
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.fsync", refuse)
    found, message = _failure(objects.put, "x", b"")
    assert found is failure
    assert message.endswith(os.strerror(number))


def test_links_and_pipes_are_not_read(objects: FolderObjects, tmp_path: Path) -> None:
    objects.put("x", b"1")
    (tmp_path / "there" / "link").symlink_to("x")
    os.mkfifo(tmp_path / "there" / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(RemoteError):
            get(objects, name)
    assert [item.name for item in objects.list("")] == ["x"]


def test_a_lock_that_another_writer_holds_is_not_waited_for_long(
    objects: FolderObjects,
) -> None:
    objects.put_if("x", b"0", None)
    with objects._locked("x"):
        failure, message = _failure(objects.put_if, "x", b"1", None)
    assert failure is Failure.BUSY
    assert message.endswith("another writer holds its lock")


def test_leftovers_of_killed_writers_go_after_a_day(objects: FolderObjects, tmp_path: Path) -> None:
    objects.put("x", b"1")
    aside = tmp_path / "there" / ".tmp"
    for name, age_s in (("old", 25 * 3600), ("new", 60)):
        (aside / name).write_bytes(b"")
        os.utime(aside / name, (time.time() - age_s,) * 2)
    objects.put("y", b"1")
    assert [path.name for path in aside.iterdir()] == ["new"]


def test_what_is_made_in_a_shared_folder_is_the_group_s_too(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(0o2775)
    before = os.umask(0o077)
    try:
        objects = FolderObjects(there)
        objects.put("a/b", b"")
        objects.put_if("a/c", b"", None)
    finally:
        os.umask(before)
    for path in there.rglob("*"):
        rights = 0o070 if path.is_dir() else 0o060
        assert stat.S_IMODE(path.stat().st_mode) & 0o070 == rights, path
