"""Digests of files that are remembered."""

import hashlib
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pallasc.cache import format
from pallasc.cache.stat_digest import FileDigests
from pallasc.errors import ToolError


def later() -> int:
    """Return a time at which every file of the test is old enough to be trusted."""
    return time.time_ns() + 3_000_000_000


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Return a file of some bytes."""
    path = tmp_path / "library.so"
    path.write_bytes(b"library" * 1000)
    return path


@pytest.fixture
def remember(tmp_path: Path) -> Callable[[], FileDigests]:
    """Return a function that makes digests of one store, for which every file is old."""
    return lambda: FileDigests(tmp_path / "store", now_ns=later)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_an_old_file_is_not_read_again_by_the_next_process(
    library: Path, tmp_path: Path, remember: Callable[[], FileDigests]
) -> None:
    strange = Path(os.fsdecode(bytes(tmp_path) + b"/\xff\xfe"))
    strange.symlink_to(library)
    first, second = remember(), remember()
    assert [first.digest(library), first.digest(str(library))] == [sha256(library)] * 2
    assert (first.hashed, first.save(), first.save()) == (1, True, False)
    status, name = library.stat(), format.sha256(b"pallasc file digests")
    data = (tmp_path / "store" / "v1" / "stat" / "digests").read_bytes()
    body, _ = format.decode("stat", name, data, dict)
    signature = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    assert body == {"files": {str(library): [*signature, sha256(library)]}}
    first.digest(strange)
    assert first.save() is True
    assert second.remembers(library)
    second.hash_ahead([library])
    assert {second.digest(library), second.digest(strange)} == {sha256(library)}
    assert (second.hashed, second.save()) == (0, False)


def test_a_young_file_and_one_from_the_future_are_not_remembered(
    library: Path, tmp_path: Path
) -> None:
    def saved(now_ns: int) -> bool:
        digests = FileDigests(tmp_path / "store", now_ns=lambda: now_ns)
        assert (digests.digest(library), digests.hashed) == (sha256(library), 1)
        return digests.save()

    newest_ns = max(library.stat().st_mtime_ns, library.stat().st_ctime_ns)
    assert not saved(newest_ns + 2_000_000_000)
    os.utime(library, ns=(later() + 10**12, later() + 10**12))
    assert not saved(later())
    os.utime(library, ns=(1, 1))
    assert saved(library.stat().st_ctime_ns + 2_000_000_001)
    (tmp_path / "other").write_text("in the way")
    digests = FileDigests(tmp_path / "other", now_ns=later)
    assert digests.digest(library) == sha256(library)
    assert digests.save() is False


def _rewrite_and_hide(path: Path) -> None:
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    path.write_bytes(b"LIBRARY" * 1000)
    os.utime(path, ns=times)


def _replace(path: Path) -> None:
    new = path.with_name("new")
    new.write_bytes(b"LIBRARY" * 1000)
    os.utime(new, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    new.replace(path)


@pytest.mark.parametrize("change", [_rewrite_and_hide, _replace])
def test_a_changed_file_is_hashed_again(
    library: Path, remember: Callable[[], FileDigests], change: Callable[[Path], None]
) -> None:
    digests = remember()
    digests.digest(library)
    digests.save()
    _wait_for_the_clock(library)
    change(library)
    assert digests.digest(library) == sha256(library)
    assert remember().digest(library) == sha256(library)
    assert digests.hashed == 2


def _wait_for_the_clock(path: Path) -> None:
    """Wait until the file system's clock has ticked since the file was changed."""
    probe = path.with_name("probe")
    while True:
        probe.write_bytes(b"")
        if probe.stat().st_mtime_ns > path.stat().st_ctime_ns:
            return


def test_a_file_that_changes_while_it_is_read_is_read_again(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = hashlib.file_digest
    changes = iter([b"x", b"y"])

    def change_while_reading(file: object, name: str) -> object:
        result = real(file, name)  # type: ignore[arg-type]
        if (more := next(changes, None)) is not None:
            library.write_bytes(library.read_bytes() + more)
        return result

    monkeypatch.setattr(hashlib, "file_digest", change_while_reading)
    digests = FileDigests()
    assert digests.digest(library) == sha256(library)
    assert digests.hashed == 3
    changes = itertools.repeat(b"x")
    with pytest.raises(ToolError, match="it changed 4 times while it was read"):
        FileDigests().digest(library)


def test_what_is_no_file_has_no_digest(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, reason in [
        ("missing", "No such file or directory"),
        (".", "Is a directory|not a regular file"),
        ("pipe", "not a regular file"),
        ("nul\0", "null"),
    ]:
        with pytest.raises(ToolError, match=reason):
            FileDigests().digest(f"{tmp_path}/{name}")
