"""Branches, folders and edits that share a store: each finds its own artifacts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pallasc.cache.format import ARTIFACTS
from pallasc.compiler.builds.locked import Locked
from pallasc.compiler.builds.options import Options
from pallasc.compiler.builds.relock import check_lock, update_lock
from pallasc.specs.loading.lock import Lock

KERNEL = """\
from helper import scale

# branch {branch}
def scaled(x):
    return x * scale({factor})
"""
HELPER = "def scale(factor): return factor\n"
SPEC = {"name": "scaled", "entry": "kernel.py:scaled", "args": {"x": "f32[8, 128]"}}


class Branches(NamedTuple):
    """A folder whose files change as two branches are checked out, and what each has locked."""

    project: Any
    actions: list[str]
    locks: list[Lock]

    def check_out(self, branch: int) -> None:
        text = KERNEL.format(branch=branch, factor=2.0 + branch)
        self.project.write("kernel.py", text)


@pytest.fixture(scope="module")
def first_round(make_project: Callable[[], Any]) -> Branches:
    """Return a store that has both branches."""
    branches = Branches(make_project(), [], [])
    project = branches.project
    project.spec(SPEC)
    project.write("helper.py", HELPER)
    for branch in range(2):
        branches.check_out(branch)
        file, options = Path("pallasc.lock"), Options(jobs=1)
        updated = update_lock(
            project.variants(), None, file=file, whole=True, store=project.store, options=options
        )
        assert [result.status for result in updated.report.results] == ["compiled"]
        branches.locks.append(updated.lock)
        branches.actions.append(str(updated.report.results[0].action_key))
    return branches


@pytest.fixture
def branches(first_round: Branches, tmp_path: Path) -> Branches:
    """Return a copy of the folder and of the store."""
    return first_round._replace(project=first_round.project.copy(tmp_path))


def test_branches_in_turn_are_hits_and_match_their_locks(branches: Branches) -> None:
    project = branches.project
    for _ in range(2):
        for branch in range(2):
            branches.check_out(branch)
            locked = Locked("pallasc.lock", branches.locks[branch])
            for options in ({}, {"locked": locked, "frozen": True}):
                (result,) = project.build(**options).results
                assert (result.status, result.error) == ("hit", None)
                assert result.action_key == branches.actions[branch]
    lock = branches.locks[1]
    check = check_lock(
        project.variants(), Path("pallasc.lock"), lock, whole=True, store=project.store
    )
    assert check.changes == ()


def test_a_branch_does_not_match_the_lock_of_another(branches: Branches) -> None:
    branches.check_out(0)
    other = Locked("pallasc.lock", branches.locks[1])
    for frozen in (True, False):
        (result,) = branches.project.build(locked=other, frozen=frozen).results
        assert result.status == "failed"
        assert "is not as locked: its sources have changed since it was" in str(result.error)


def test_an_explanation_compares_with_the_set_of_sources_with_the_fewest_changes(
    branches: Branches,
) -> None:
    project = branches.project
    branches.check_out(0)
    project.write("helper.py", "def scale(factor): return -factor\n")
    (missing,) = project.build(compile=False, explain=True).results
    assert missing.explanation == ("helper (helper.py) has changed",)
    (result,) = project.build(frozen=True).results
    assert result.reason == "helper (helper.py) has changed"
    project.write("helper.py", HELPER)
    assert [result.status for result in project.build(frozen=True).results] == ["hit"]


def test_a_branch_whose_artifact_was_evicted_does_not_hide_the_others(branches: Branches) -> None:
    project = branches.project
    project.store.path(ARTIFACTS, branches.actions[1]).unlink()
    branches.check_out(0)
    assert [result.status for result in project.build().results] == ["hit"]
    branches.check_out(1)
    (result,) = project.build(frozen=True).results
    assert result.reason == "the store no longer has its record"
