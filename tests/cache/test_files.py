"""Reading and publishing single files."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from pallasc.cache import files


def test_read_gives_none_where_nothing_is(tmp_path: Path) -> None:
    assert files.read(str(tmp_path / "nothing")) is None


def test_read_refuses_a_file_beyond_the_limit_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(2**40)
    found = files.read(str(path), limit_bytes=1000)
    assert found is not None
    assert (found.data, found.fault) == (b"", f"{2**40} bytes are too many")


def test_read_continues_after_a_short_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"0123456789" * 10)
    real = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size: real(descriptor, min(size, 7)))
    found = files.read(str(tmp_path / "file"))
    assert found is not None
    assert found.data == b"0123456789" * 10


def test_a_temporary_file_is_removed_when_its_user_fails(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        assert path.read_bytes() == b"x"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), files.temporary(tmp_path / "tmp", b"x") as path:
        fail(path)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_publish_first_does_not_touch_what_is_there(tmp_path: Path) -> None:
    with files.temporary(tmp_path, b"first") as path:
        assert files.publish_first(path, tmp_path / "a" / "name")
    with files.temporary(tmp_path, b"second") as path:
        assert not files.publish_first(path, tmp_path / "a" / "name")
    assert (tmp_path / "a" / "name").read_bytes() == b"first"


@pytest.mark.parametrize("number", [errno.EPERM, errno.EXDEV])
def test_publish_first_does_not_touch_what_is_there_without_links_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    with files.temporary(tmp_path, b"first") as path:
        assert files.publish_first(path, tmp_path / "a" / "name")
    with files.temporary(tmp_path, b"second") as path:
        assert not files.publish_first(path, tmp_path / "a" / "name")
    assert (tmp_path / "a" / "name").read_bytes() == b"first"


def test_a_file_is_durable_before_it_has_its_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    events: list[str] = []
    fsync, link = os.fsync, os.link

    def note_fsync(descriptor: int) -> None:
        events.append(f"sync {os.path.basename(os.readlink(f'/proc/self/fd/{descriptor}'))}")
        fsync(descriptor)

    def note_link(source: Path, target: Path) -> None:
        events.append(f"link {source.name}")
        link(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "link", note_link)
    with files.temporary(tmp_path, b"x") as path:
        files.publish_first(path, tmp_path / "a" / "name")
    assert events == [f"sync {path.name}", f"link {path.name}", "sync a"]


def test_publish_last_replaces_what_is_there(tmp_path: Path) -> None:
    for data in (b"first", b"second"):
        with files.temporary(tmp_path, data) as path:
            files.publish_last(path, tmp_path / "a" / "name")
    assert (tmp_path / "a" / "name").read_bytes() == b"second"


def test_descriptors_are_closed_whatever_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = len(os.listdir("/proc/self/fd"))
    for call in ("write", "fsync", "fstat"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            with pytest.raises(OSError, match="No space"), files.temporary(tmp_path, b"x"):
                pass
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("mode", "group"), [(0o2775, 0o7), (0o775, 0), (0o2755, 0), (0o700, 0)])
def test_what_is_made_in_a_shared_folder_is_the_groups_too(
    tmp_path: Path, mode: int, group: int
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    root.chmod(mode)
    before = os.umask(0o077)
    try:
        files.make_folder(root / "a" / "b")
        with files.temporary(root / "a" / "tmp", b"x") as path:
            files.publish_last(path, root / "a" / "b" / "name")
    finally:
        os.umask(before)
    assert (root / "a" / "b").stat().st_mode >> 3 & 0o7 == group
    assert (root / "a" / "b" / "name").stat().st_mode >> 3 & 0o7 == group & 0o6


@pytest.mark.parametrize("kind", ["link", "socket", "pipe", "folder"])
def test_read_takes_nothing_for_a_file_that_is_none(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "name"
    make: dict[str, Callable[[], object]] = {
        "link": lambda: place.symlink_to("x"),
        "socket": lambda: os.mknod(place, stat.S_IFSOCK | 0o644),
        "pipe": lambda: os.mkfifo(place),
        "folder": place.mkdir,
    }
    make[kind]()
    found = files.read(str(place))
    assert found is not None
    assert (found.data, found.fault) == (b"", "not a regular file")
