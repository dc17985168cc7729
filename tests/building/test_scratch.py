"""The folders for the temporary files of workers."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pallasc.cache import files
from pallasc.compiler.workers.worker_process import Scratch, remove_left_folders
from pallasc.errors import ToolError


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder that temporary files go to."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def left_by_a_dead_process(temporary: Path) -> Path:
    module = "pallasc.compiler.workers.worker_process"
    code = f"from {module} import Scratch; print(Scratch().make_folder())"
    variables = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=variables, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return Path(done.stdout.strip()).parent


def test_each_worker_has_a_folder_and_all_go_at_once(temporary: Path) -> None:
    scratch = Scratch()
    scratch.remove()
    first, second = scratch.make_folder(), scratch.make_folder()
    (first / "file").write_text("x")
    assert first != second
    assert first.parent == second.parent
    assert first.parent.parent == temporary
    assert first.stat().st_mode & 0o777 == 0o700
    scratch.remove()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("name", ["two words", "a,b", "a{b", "a}b"])
def test_a_folder_that_mosaic_cannot_read_is_not_taken(
    name: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = temporary / name
    odd.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(odd))
    scratch = Scratch()
    folder = scratch.make_folder()
    assert folder.parent.parent == Path("/tmp")
    remove_left_folders()
    assert folder.exists()
    scratch.remove()
    assert not folder.exists()
    assert list(odd.iterdir()) == []


def test_what_a_dead_build_left_is_removed_by_the_next(temporary: Path) -> None:
    left = left_by_a_dead_process(temporary)
    (left / "1" / "deep").mkdir()
    (left / "1" / "deep" / "file").write_text("x")
    living = Scratch()
    mine = living.make_folder()
    assert not left.exists()
    remove_left_folders()
    assert mine.exists()
    living.remove()


def test_what_may_be_of_a_living_build_or_is_no_folder_stays(temporary: Path) -> None:
    left = left_by_a_dead_process(temporary)
    elsewhere = temporary / "pallasc-workers-000000000000-1-1-abcdefgh"
    elsewhere.mkdir()
    (temporary / "target").mkdir()
    link = temporary / left.name.replace(left.name[-8:], "12345678")
    link.symlink_to(temporary / "target")
    other = temporary / "pallasc-tools-x"
    other.mkdir()
    remove_left_folders()
    assert sorted(temporary.iterdir()) == sorted([elsewhere, temporary / "target", link, other])


def test_what_another_machine_left_goes_after_a_day(temporary: Path) -> None:
    folder = temporary / "pallasc-workers-000000000000-1-1-abcdefgh"
    folder.mkdir()
    os.utime(folder, (1e9, 1e9))
    remove_left_folders()
    assert not folder.exists()


def test_the_name_says_which_process_it_belongs_to() -> None:
    scratch = Scratch()
    folder = scratch.make_folder().parent
    token = folder.name.removeprefix("pallasc-workers-").rpartition("-")[0]
    assert files.is_alive(token)
    scratch.remove()


def test_a_temporary_folder_that_cannot_be_written_is_said(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "missing"))
    with pytest.raises(ToolError, match="no folder for temporary files can be made"):
        Scratch().make_folder()
