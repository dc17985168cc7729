"""What git says: the commit of files, and whether the tree differs from it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pallasc.compiler.builds.bundling import Differences, Repository, find_repository

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

Git = Callable[..., str]


@pytest.fixture
def found(git: Git, tmp_path: Path) -> Repository:
    """Return a repository with one commit of two files."""
    folder = tmp_path / "clone"
    (folder / "specs").mkdir(parents=True)
    (folder / "specs" / "a.yaml").write_text("a")
    (folder / "kernel.py").write_text("k")
    (folder / ".gitignore").write_text("*.o\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    repository = find_repository(folder / "specs")
    assert repository is not None
    return repository


def test_a_folder_is_in_the_repository_above_it(found: Repository, git: Git) -> None:
    assert found.root == found.root.resolve()
    assert (found.root / "kernel.py").exists()
    assert found.commit == git(found.root, "rev-parse", "HEAD").strip()
    assert len(found.commit) == 40


def test_nothing_is_known_outside_before_the_first_commit_and_without_git(
    git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_repository(tmp_path) is None
    assert find_repository(tmp_path / "nowhere") is None
    git(tmp_path, "init", "-q")
    assert find_repository(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert find_repository(tmp_path) is None


def test_a_changed_file_makes_the_tree_dirty_unless_it_is_left_apart(found: Repository) -> None:
    assert found.differences([]).dirty is False
    file = found.root / "kernel.py"
    file.write_text("other")
    assert found.differences([]).dirty is True
    assert found.differences([], ignore=[file]).dirty is False
    file.write_text("k")
    os.utime(file, (1, 1))
    assert found.differences([]).dirty is False
    file.unlink()
    assert found.differences([]).dirty is True


def test_a_staged_change_makes_it_dirty(found: Repository, git: Git) -> None:
    (found.root / "new.py").write_text("n")
    assert found.differences([]).dirty is False
    git(found.root, "add", "new.py")
    assert found.differences([]).dirty is True


def test_a_file_that_is_not_tracked_counts_where_it_is_named(found: Repository) -> None:
    new, ignored = found.root / "new -é\n.yaml", found.root / "built.o"
    new.write_text("n")
    ignored.write_text("o")
    assert found.differences([]) == Differences(False)
    elsewhere = Path("/elsewhere/helper.py")
    assert found.differences([ignored, new, elsewhere, found.root / "kernel.py"]) == Differences(
        True, ("built.o", "helper.py (outside of the repository)", "new -é\n.yaml")
    )
    assert found.differences([ignored, new], ignore=[ignored, new]) == Differences(False)
    assert found.tracked([new, ignored, found.root / "kernel.py", Path("/elsewhere")]) == {
        new,
        found.root / "kernel.py",
    }


def test_files_of_a_submodule_are_compared_with_its_own_commit(
    found: Repository, git: Git, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "helper.py").write_text("h")
    git(other, "init", "-q")
    git(other, "add", ".")
    git(other, "commit", "-qm", "one")
    add = ("-c", "protocol.file.allow=always", "submodule", "--quiet", "add")
    git(found.root, *add, str(other), "third/other")
    git(found.root, "commit", "-qam", "two")
    helper = found.root / "third" / "other" / "helper.py"
    assert found.differences([helper]) == Differences(False)
    helper.write_text("edited")
    assert found.differences([helper]) == Differences(True, ("third/other/helper.py",))


def test_a_name_is_no_pattern(found: Repository) -> None:
    assert found.tracked([found.root / "*.py"]) == set()


def test_variables_of_a_hook_of_git_change_nothing(
    found: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "other"))
    assert find_repository(found.root) == found
    assert found.differences([]).dirty is False


def test_the_repository_s_own_programs_are_not_run(
    found: Repository, git: Git, tmp_path: Path
) -> None:
    script = tmp_path / "monitor"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path}/was-run\n")
    script.chmod(0o755)
    git(found.root, "config", "core.fsmonitor", str(script))
    git(found.root, "config", "diff.external", str(script))
    for command in ("clean", "smudge", "process"):
        git(found.root, "config", f"filter.own.{command}", str(script))
        git(found.root, "config", f"filter.with.dots and words.{command}", str(script))
    git(found.root, "config", "filter.own.required", "true")
    git(found.root, "config", "diff.own.textconv", str(script))
    git(found.root, "config", "diff.own.command", str(script))
    attributes = found.root / ".git" / "info" / "attributes"
    attributes.write_text("*.py filter=own diff=own\n*.yaml filter=with.dots\\ and\\ words\n")
    os.utime(found.root / "kernel.py", (1, 1))  # so that git compares bytes
    os.utime(found.root / "specs" / "a.yaml", (1, 1))
    assert found.differences([]).dirty is False
    (found.root / "kernel.py").write_text("other")
    assert found.differences([]).dirty is True
    assert not (tmp_path / "was-run").exists()


def test_a_filter_that_cannot_be_switched_off_leaves_it_unknown(
    found: Repository, git: Git
) -> None:
    git(found.root, "config", "filter.a=b.clean", "false")
    assert found.differences([]) == Differences(None)


def test_where_git_fails_nobody_knows(found: Repository) -> None:
    (found.root / ".git" / "HEAD").write_text("broken")
    assert found.differences([]).dirty is None
    assert find_repository(found.root) is None
