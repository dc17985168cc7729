"""The folders for the temporary files of workers."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from pallasc.compiler.workers.worker_process import make_folder
from pallasc.errors import ToolError


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder that temporary files go to."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_each_worker_has_a_folder_that_nobody_else_may_enter(temporary: Path) -> None:
    first, second = make_folder(), make_folder()
    assert first != second
    assert first.parent == second.parent == temporary
    assert first.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["two words", "a,b", "a{b", "a}b"])
def test_a_folder_that_mosaic_cannot_read_is_not_taken(
    name: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = temporary / name
    odd.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(odd))
    folder = make_folder()
    assert folder.parent == Path("/tmp")
    folder.rmdir()
    assert list(odd.iterdir()) == []


def test_a_temporary_folder_that_cannot_be_written_is_said(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "missing"))
    with pytest.raises(ToolError, match="no folder for temporary files can be made"):
        make_folder()
