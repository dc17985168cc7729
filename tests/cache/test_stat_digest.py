"""Digests of files that are remembered."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pallasc.cache import files, format, stat_digest
from pallasc.cache.folders import Folders
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


def test_a_file_is_hashed_once_in_a_process(library: Path) -> None:
    digests = FileDigests()
    assert [digests.digest(library), digests.digest(str(library))] == [sha256(library)] * 2
    assert digests.hashed == 1


def test_an_old_file_is_not_read_again_by_the_next_process(
    library: Path, remember: Callable[[], FileDigests]
) -> None:
    first, second = remember(), remember()
    first.digest(library)
    assert first.save() is True
    assert first.save() is False
    assert second.digest(library) == sha256(library)
    assert second.hashed == 0
    assert second.save() is False


def test_a_young_file_is_not_remembered(library: Path, tmp_path: Path) -> None:
    newest_ns = max(library.stat().st_mtime_ns, library.stat().st_ctime_ns)
    young = FileDigests(tmp_path / "store", now_ns=lambda: newest_ns + 2_000_000_000)
    young.digest(library)
    assert young.save() is False
    old = FileDigests(tmp_path / "store", now_ns=lambda: newest_ns + 2_000_000_001)
    old.digest(library)
    assert (old.hashed, old.save()) == (1, True)


def test_a_file_from_the_future_is_not_remembered(
    library: Path, remember: Callable[[], FileDigests]
) -> None:
    os.utime(library, ns=(later() + 10**12, later() + 10**12))
    digests = remember()
    digests.digest(library)
    assert digests.save() is False


def _rewrite(path: Path) -> None:
    path.write_bytes(b"LIBRARY" * 1000)


def _rewrite_and_hide(path: Path) -> None:
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    path.write_bytes(b"LIBRARY" * 1000)
    os.utime(path, ns=times)


def _replace(path: Path) -> None:
    new = path.with_name("new")
    new.write_bytes(b"LIBRARY" * 1000)
    os.utime(new, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    new.replace(path)


def _extend(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


@pytest.mark.parametrize("change", [_rewrite, _rewrite_and_hide, _replace, _extend])
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


def test_a_file_that_never_stays_has_no_digest(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = hashlib.file_digest

    def change_while_reading(file: object, name: str) -> object:
        library.write_bytes(library.read_bytes() + b"x")
        return real(file, name)  # type: ignore[arg-type]

    monkeypatch.setattr(hashlib, "file_digest", change_while_reading)
    with pytest.raises(ToolError, match="it changed 4 times while it was read"):
        FileDigests().digest(library)


BAD_BODIES = [{}, {"files": []}, {"files": {"/x": [1, 2]}}, {"files": {"/x": [1, 2, 3, 4, "no"]}}]


@pytest.mark.parametrize("damage", [b"", b"junk", b"flip", *BAD_BODIES])
def test_a_corrupt_memory_is_ignored_and_rebuilt(
    library: Path,
    tmp_path: Path,
    remember: Callable[[], FileDigests],
    damage: bytes | dict[str, object],
) -> None:
    first = remember()
    first.digest(library)
    first.save()
    memory = tmp_path / "store" / "v1" / "stat" / "digests"
    right = memory.read_bytes()
    if isinstance(damage, dict):
        name = format.sha256(b"pallasc file digests")
        memory.write_bytes(format.encode("stat", name, damage)[0])
    else:
        memory.write_bytes(
            right.replace(sha256(library)[:8].encode(), b"0" * 8) if damage == b"flip" else damage
        )
    assert memory.read_bytes() != right
    second = remember()
    assert second.digest(library) == sha256(library)
    assert (second.hashed, second.save()) == (1, True)
    assert memory.read_bytes() == right


def test_two_processes_that_save_keep_both_their_files(
    tmp_path: Path, remember: Callable[[], FileDigests]
) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    both = [remember(), remember()]
    for path, digests in zip(paths, both, strict=True):
        path.write_text(path.name)
        digests.digest(path)
    assert all(digests.save() for digests in both)
    third = remember()
    assert {str(path): third.digest(path) for path in paths} == {
        str(path): sha256(path) for path in paths
    }
    assert third.hashed == 0


def test_a_memory_that_cannot_be_written_is_done_without(library: Path, tmp_path: Path) -> None:
    (tmp_path / "store").write_text("in the way")
    digests = FileDigests(tmp_path / "store", now_ns=later)
    assert digests.digest(library) == sha256(library)
    assert digests.save() is False


def test_links_are_followed_and_names_need_not_be_text(tmp_path: Path, library: Path) -> None:
    strange = Path(os.fsdecode(bytes(tmp_path) + b"/\xff\xfe"))
    strange.symlink_to(library)
    digests = FileDigests(tmp_path / "store", now_ns=later)
    assert digests.digest(strange) == sha256(library)
    assert digests.save() is True
    again = FileDigests(tmp_path / "store", now_ns=later)
    assert (again.digest(strange), again.hashed) == (sha256(library), 0)


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


def test_the_memory_is_a_record_of_the_store(
    library: Path, tmp_path: Path, remember: Callable[[], FileDigests]
) -> None:
    digests = remember()
    digests.digest(library)
    digests.save()
    found = files.read(Folders(tmp_path / "store" / "v1"), "stat/digests")
    assert found is not None
    body, _ = format.decode("stat", format.sha256(b"pallasc file digests"), found.data, dict)
    status = library.stat()
    signature = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    assert body == {"files": {str(library): [*signature, sha256(library)]}}


def test_hashing_ahead_gives_the_same_digests_and_leaves_errors_to_later(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number:02}" for number in range(50)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * number * 1000)
    gone = tmp_path / "gone"
    digests = FileDigests()
    digests.hash_ahead([*paths, gone, tmp_path, *paths], threads=4)
    assert digests.hashed == 50
    assert [*map(digests.digest, paths)] == [*map(FileDigests().digest, paths)]
    assert digests.hashed == 50
    assert digests.remembers(paths[0])
    assert not digests.remembers(gone)
    with pytest.raises(ToolError, match="No such file"):
        digests.digest(gone)


def test_hashing_ahead_reads_nothing_that_is_remembered(
    library: Path, remember: Callable[[], FileDigests]
) -> None:
    first, second = remember(), remember()
    first.hash_ahead([library])
    assert (first.hashed, first.save(), second.remembers(library)) == (1, True, True)
    second.hash_ahead([library])
    assert (second.digest(library), second.hashed) == (sha256(library), 0)


def test_an_interrupt_while_hashing_ahead_leaves_the_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The threads end after the file that each has open."""
    paths = [tmp_path / str(number) for number in range(20)]
    for path in paths:
        path.write_text("text")
    held, reached = threading.Event(), threading.Event()
    hash_file = stat_digest._hash_file

    def held_up(place: str) -> object:
        reached.set()
        held.wait(300)
        return hash_file(place)

    def interrupted(self: threading.Thread, timeout: float | None = None) -> None:
        reached.wait(300)
        raise KeyboardInterrupt

    monkeypatch.setattr(stat_digest, "_hash_file", held_up)
    digests = FileDigests()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            digests.hash_ahead(paths, threads=2)
    held.set()
    for thread in threading.enumerate():
        if thread.name.endswith("(_hash_all)"):
            thread.join()
    assert 1 <= digests.hashed <= 2
