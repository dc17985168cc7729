"""Reading and publishing single files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache import files
from pallasc.cache.folders import Folders


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    """Return the folders of a store whose version's folder is the temporary one."""
    return Folders(tmp_path)


def test_read_refuses_a_file_beyond_the_limit_without_reading_it(
    tmp_path: Path, folders: Folders
) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(2**40)
    found = files.read(folders, "large", limit_bytes=1000)
    assert found is not None
    assert (found.data, found.fault) == (b"", f"{2**40:,} bytes is over the limit of 1,000")


def test_read_continues_after_a_short_read(
    tmp_path: Path, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"0123456789" * 10)
    real = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size: real(descriptor, min(size, 7)))
    found = files.read(folders, "file")
    assert found is not None
    assert found.data == b"0123456789" * 10


def test_a_file_is_durable_before_it_has_its_name_and_the_name_after(
    tmp_path: Path, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "tmp").mkdir()
    events: list[str] = []
    fsync, link = os.fsync, os.link

    def note_fsync(descriptor: int) -> None:
        events.append(f"sync {os.path.basename(os.readlink(f'/proc/self/fd/{descriptor}'))}")
        fsync(descriptor)

    def note_link(source: str, target: str, **options: Any) -> None:
        events.append(f"link {source}")
        link(source, target, **options)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "link", note_link)
    with files.temporary(folders, b"x") as place:
        files.publish_first(folders, place, "a/name")
    name = place.rpartition("/")[2]
    assert events == [f"sync {name}", f"link {name}", "sync a"]
    with files.temporary(folders, b"second") as place:
        assert not files.publish_first(folders, place, "a/name")
    assert (tmp_path / "a" / "name").read_bytes() == b"x"


def test_nothing_is_left_open_or_behind_whatever_happens(
    tmp_path: Path, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = len(os.listdir("/proc/self/fd"))
    for call in ("write", "fsync", "fstat"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            with pytest.raises(OSError, match="No space"), files.temporary(folders, b"x"):
                pass
    with pytest.raises(KeyboardInterrupt), files.temporary(folders, b"x"):
        raise KeyboardInterrupt
    assert len(os.listdir("/proc/self/fd")) == before
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(("mode", "group"), [(0o2775, 0o7), (0o775, 0), (0o2755, 0)])
def test_what_is_made_in_a_shared_folder_is_the_groups_too(
    tmp_path: Path, mode: int, group: int
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    root.chmod(mode)
    before = os.umask(0o077)
    try:
        folders = Folders(root / "a")
        with files.temporary(folders, b"x") as place:
            folders.rename(place, "b/name")
    finally:
        os.umask(before)
    assert (root / "a" / "b").stat().st_mode >> 3 & 0o7 == group
    assert (root / "a" / "b" / "name").stat().st_mode >> 3 & 0o7 == group & 0o6
