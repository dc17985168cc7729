"""The commit of an sdist: recorded where it is known, believed while the sources are the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pallasc.compiler.builds.provenance import RECORD, Differences, find_recorded, record_text
from pallasc.errors import SpecError

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

SOURCES = ("kernels/a.yaml", "kernels/rows.py")


@pytest.fixture
def project(git: Callable[..., str], tmp_path: Path) -> Path:
    """Return a project with a commit, two folders below the root of its repository."""
    folder = tmp_path / "clone" / "libraries" / "mine"
    _write(folder)
    (folder / "README").write_text("words")
    git(tmp_path / "clone", "init", "-q")
    git(tmp_path / "clone", "add", ".")
    git(tmp_path / "clone", "commit", "-qm", "one")
    return folder


def _write(folder: Path) -> None:
    for name in SOURCES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def _unpacked(project: Path, to: Path) -> Path:
    """Return what an sdist of a project unpacks to."""
    text = record_text(project, SOURCES)
    assert text is not None
    _write(to)
    (to / RECORD).write_bytes(text)
    return to.resolve()


def test_an_unpacked_sdist_has_the_commit_and_names_of_the_repository(
    project: Path, git: Callable[..., str], tmp_path: Path
) -> None:
    root = _unpacked(project, tmp_path / "unpacked")
    file = root / "kernels" / "a.yaml"
    found = find_recorded(file)
    assert found is not None
    assert found.commit == git(project, "rev-parse", "HEAD").strip()
    assert found.name_of(file) == "libraries/mine/kernels/a.yaml"
    assert found.differences([file]).dirty is False


def test_at_the_root_of_a_repository_names_are_those_of_the_project(
    git: Callable[..., str], tmp_path: Path
) -> None:
    clone = tmp_path / "clone"
    _write(clone)
    git(clone, "init", "-q")
    git(clone, "add", ".")
    git(clone, "commit", "-qm", "one")
    root = _unpacked(clone, tmp_path / "unpacked")
    found = find_recorded(root / "kernels" / "a.yaml")
    assert found is not None
    assert found.name_of(root / "kernels" / "a.yaml") == "kernels/a.yaml"


def test_a_tree_that_is_dirty_stays_so(project: Path, tmp_path: Path) -> None:
    (project / "README").write_text("other words")
    root = _unpacked(project, tmp_path / "unpacked")
    found = find_recorded(root / "kernels" / "a.yaml")
    assert found is not None
    assert found.differences([]).dirty is True


def test_a_changed_missing_or_new_source_makes_an_sdist_dirty(
    project: Path, tmp_path: Path
) -> None:
    root = _unpacked(project, tmp_path / "unpacked")
    file = root / "kernels" / "a.yaml"
    found = find_recorded(file)
    assert found is not None
    assert found.differences([file]) == Differences(False)
    assert found.differences([file, Path("/elsewhere/rows.py")]) == Differences(
        True, ("rows.py (outside of the sdist)",)
    )
    assert found.differences([file, root / "kernels" / "new.py"]).dirty is True
    other = root / "kernels" / "rows.py"
    other.write_text("changed")
    assert found.differences([file]).dirty is True
    assert found.differences([file], ignore=[other]).dirty is False
    other.unlink()
    assert found.differences([file]).dirty is True


def test_a_source_that_the_sdist_did_not_have_is_of_no_commit(
    project: Path, tmp_path: Path
) -> None:
    root = _unpacked(project, tmp_path / "unpacked")
    (root / "kernels" / "new.yaml").write_text("")
    assert find_recorded(root / "kernels" / "new.yaml") is None
    assert find_recorded(tmp_path / "kernels.yaml") is None


def test_an_sdist_of_an_unpacked_one_records_the_same(project: Path, tmp_path: Path) -> None:
    root = _unpacked(project, tmp_path / "unpacked")
    assert record_text(root, SOURCES) == (root / RECORD).read_bytes()


def test_nothing_is_recorded_where_nothing_is_known(tmp_path: Path) -> None:
    _write(tmp_path)
    assert record_text(tmp_path, SOURCES) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("schema", 2), ("commit", "master"), ("commit", 7), ("dirty", "no"), ("files", []),
     ("folder", "../outside"), ("folder", "/outside")],
)  # fmt: skip
def test_a_record_of_another_form_is_refused(
    project: Path, tmp_path: Path, name: str, value: object
) -> None:
    root = _unpacked(project, tmp_path / "unpacked")
    data = json.loads((root / RECORD).read_text())
    (root / RECORD).write_text(json.dumps({**data, name: value}))
    with pytest.raises(SpecError, match="not a record of an sdist's commit") as caught:
        find_recorded(root / "kernels" / "a.yaml")
    assert str(root / RECORD) in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "[" * 10**5, "\xff"])
def test_a_damaged_record_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / RECORD).write_text(text, "latin-1")
    with pytest.raises(SpecError, match="not a record"):
        record_text(tmp_path, SOURCES)
