"""A folder that is written as a whole, and never over anybody's work."""

import errno
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pallasc.errors import SpecError
from pallasc.specs.user_files import MARKER, replace_folder

FILES = [("a.txt", b"a"), ("deep/b.txt", b"b")]


def _content(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != MARKER)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_a_folder_is_made_or_replaced_through_a_link_too(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "made"
    replace_folder(folder, FILES)
    assert _content(folder) == dict(FILES)
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(folder.parent.stat().st_mode)
    first = (folder / MARKER).read_bytes()
    replace_folder(folder, reversed(FILES))
    assert (folder / MARKER).read_bytes() == first
    assert [*folder.parent.iterdir()] == [folder]
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    for files in (FILES, [("c.txt", b"c")]):
        replace_folder(link, files)
        assert link.is_symlink()
        assert _content(tmp_path / "real") == dict(files)


def _link(folder: Path) -> None:
    (folder / "a.txt").unlink()
    (folder / "a.txt").symlink_to("deep/b.txt")


@pytest.mark.parametrize(
    "touch",
    [
        lambda folder: (folder / "deep" / "mine.txt").write_text("mine"),
        lambda folder: (folder / "a.txt").write_text("mine"),
        _link,
        lambda folder: (folder / MARKER).unlink(),
        lambda folder: (folder / MARKER).write_text("[" * 100_000),
        lambda folder: (folder / MARKER).write_text('{"schema": 2, "files": {}}'),
    ],
)
def test_somebodys_work_is_left_alone(tmp_path: Path, touch: Callable[[Path], object]) -> None:
    folder = tmp_path / "made"
    replace_folder(folder, FILES)
    touch(folder)
    before = _content(folder)
    with pytest.raises(SpecError, match="did not write, or that were changed since"):
        replace_folder(folder, [("c.txt", b"c")])
    assert _content(folder) == before
    assert [*tmp_path.iterdir()] == [folder]
    with pytest.raises(SpecError, match="cannot be written: Not a directory"):
        replace_folder(folder / "a.txt", FILES)


def test_what_fails_midway_leaves_the_old_folder(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    replace_folder(folder, FILES)

    def failing() -> Iterator[tuple[str, bytes]]:
        yield "c.txt", b"c"
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(SpecError, match="cannot be written: No space left on device"):
        replace_folder(folder, failing())
    assert _content(folder) == dict(FILES)
    assert [*folder.parent.iterdir()] == [folder]


def test_a_file_that_appears_meanwhile_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    replace_folder(folder, FILES)

    def slow() -> Iterator[tuple[str, bytes]]:
        yield "c.txt", b"c"
        (folder / "mine.txt").write_text("mine")

    with pytest.raises(SpecError, match="files that pallasc did not write"):
        replace_folder(folder, slow())
    assert _content(folder) == {**dict(FILES), "mine.txt": b"mine"}
    assert [*folder.parent.iterdir()] == [folder]


def test_a_folder_that_cannot_be_put_in_place_names_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "made"
    replace_folder(folder, FILES)
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if target == folder:
            raise OSError(errno.EBUSY, "Device or resource busy")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(SpecError) as caught:
        replace_folder(folder, [("c.txt", b"c")])
    (old,) = tmp_path.iterdir()
    assert "cannot be written: Device or resource busy." in str(caught.value)
    assert f"Move its old content back from {old}, or give another folder." in str(caught.value)
    assert _content(old) == dict(FILES)
