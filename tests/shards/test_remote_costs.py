"""Costs in a remote store: what is read is what was sent, and what cannot be read is told."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pallasc.cache.remote.settings import read_settings
from pallasc.cache.store import Store
from pallasc.compiler.inputs.remembered_toolchain import RememberedToolchain
from pallasc.compiler.shards.remote_costs import remote_costs, send_costs
from pallasc.errors import ToolError

SETUP = RememberedToolchain({"python": "3", "pallasc": "1"}, {"jax": "0.12.0"}, "")
LATER, EARLIER = 4_000_000_000, 1_000_000_000


@pytest.fixture
def commit(tmp_path: Path) -> Callable[[int], str]:
    """Return what makes a commit at a time and returns its folder."""

    def make(at_s: int) -> str:
        folder = tmp_path / f"repository{at_s}"
        folder.mkdir()
        name = ("-c", "user.name=n", "-c", "user.email=e@example.org")
        for command in (("init", "-q"), (*name, "commit", "-q", "--allow-empty", "-m", "c")):
            environment = {**os.environ, "GIT_COMMITTER_DATE": f"{at_s} +0000"}
            subprocess.run(["git", "-C", folder, *command], check=True, env=environment)
        return str(folder)

    return make


def settings(tmp_path: Path, *, write: bool = True) -> object:
    return read_settings({}, url=f"file://{tmp_path}/remote", write=write, project={})


@pytest.fixture
def sent(tmp_path: Path, store: Store) -> Callable[..., bool]:
    def send(**times: float) -> bool:
        return send_costs(settings(tmp_path), store, SETUP, times)  # type: ignore[arg-type]

    return send


@pytest.fixture
def read(tmp_path: Path, store: Store) -> Callable[[str], dict[str, int]]:
    def costs(folder: str) -> dict[str, int]:
        found = remote_costs(settings(tmp_path), store, SETUP, folder=folder)  # type: ignore[arg-type]
        return dict(found.milliseconds)

    return costs


def test_what_is_read_is_what_was_sent(
    sent: Callable[..., bool], read: Callable[..., object], commit: Callable[[int], str]
) -> None:
    later = commit(LATER)
    assert read(later) == {}
    assert sent(a=1.84, b=0.3)
    assert read(later) == {"a": 1800, "b": 300}
    assert read(commit(EARLIER)) == {}


def test_times_that_are_near_change_nothing_and_others_are_added(
    sent: Callable[..., bool], read: Callable[..., object], commit: Callable[[int], str]
) -> None:
    assert sent(a=4, b=0.3)
    assert not sent(a=7.9, b=0.7)
    assert sent(a=8.5, c=2)
    assert read(commit(LATER)) == {"a": 8500, "b": 300, "c": 2000}


def test_without_the_right_to_write_nothing_is_sent(tmp_path: Path, store: Store) -> None:
    reading = settings(tmp_path, write=False)
    assert not send_costs(reading, store, SETUP, {"a": 1.0})  # type: ignore[arg-type]
    assert not (tmp_path / "remote").exists()


def test_outside_of_a_repository_nothing_is_asked_and_that_is_said(
    tmp_path: Path, store: Store
) -> None:
    dead = read_settings({}, url="http://127.0.0.1:9/cache", write=False, project={})
    assert dead is not None
    found = remote_costs(dead, store, SETUP, folder=str(tmp_path))
    assert found.digest == ""
    assert found.missing.startswith(f"{tmp_path} is in no git repository, and the time of its")


def test_a_commit_that_git_does_not_tell_is_an_error_as_other_jobs_may_read_it(
    tmp_path: Path, store: Store
) -> None:
    subprocess.run(["git", "init", "-q", tmp_path / "empty"], check=True)
    (inner := tmp_path / "empty" / "specs").mkdir()
    with pytest.raises(ToolError, match="git does not tell the time of the commit in") as caught:
        remote_costs(settings(tmp_path), store, SETUP, folder=str(inner))  # type: ignore[arg-type]
    assert caught.value.exit_code == 4
    assert "give all jobs a lock file or --costs FILE" in str(caught.value.hint)


def test_a_snapshot_that_is_damaged_is_an_error_as_other_jobs_may_have_read_it(
    tmp_path: Path,
    sent: Callable[..., bool],
    read: Callable[..., object],
    commit: Callable[[int], str],
) -> None:
    assert sent(a=1)
    (snapshot,) = (path for path in (tmp_path / "remote").rglob("costs/*") if path.is_file())
    snapshot.write_bytes(b"other")
    with pytest.raises(ToolError, match="the costs that all shards are divided by cannot be read"):
        read(commit(LATER))


def test_a_dead_remote_is_an_error_that_says_what_to_do(
    tmp_path: Path, store: Store, commit: Callable[[int], str]
) -> None:
    dead = read_settings({}, url="http://127.0.0.1:9/cache", write=False, project={})
    assert dead is not None
    with pytest.raises(ToolError) as caught:
        remote_costs(dead, store, SETUP, folder=commit(LATER))
    assert "give all jobs a lock file or --costs FILE" in str(caught.value)
    assert caught.value.exit_code == 4
    assert store.warnings == []  # none says that the build goes on without it
