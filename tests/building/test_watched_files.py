"""Files that are watched: what counts as a change, and when it has settled."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pallasc.compiler.builds.watch import WatchedFiles, files_of_paths, python_files


class Script:
    """Does one thing at each pause, and counts the time."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self.steps = list(steps)
        self.now_s = 0.0

    def pause(self, seconds: float) -> None:
        self.now_s += seconds
        if self.steps:
            self.steps.pop(0)()
        elif self.now_s > 100:
            raise AssertionError("nothing has changed")


def watch(script: Script, *paths: Path, read_ns: int | None = None) -> WatchedFiles:
    files = WatchedFiles(pause=script.pause)
    files.follow(paths, read_ns=time.time_ns() + 10**9 if read_ns is None else read_ns)
    return files


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.py"
    path.write_text("one")
    return path


def nothing() -> None:
    """Leave everything as it is."""


def test_a_file_that_another_replaces_has_changed_although_size_and_times_are_equal(
    file: Path,
) -> None:
    def replace() -> None:
        other = file.with_name("new")
        other.write_text("two")
        status = file.stat()
        os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
        other.replace(file)

    assert watch(Script(nothing, replace), file).wait() == [file]


def test_a_change_is_told_when_nothing_changes_any_more(file: Path) -> None:
    writes = [lambda n=n: file.write_text("more" * n) for n in range(1, 4)]
    script = Script(*writes)
    files = watch(script, file)
    assert files.wait() == [file]
    assert script.steps == []
    with pytest.raises(AssertionError, match="nothing has changed"):
        files.wait()


def test_a_file_that_vanishes_and_its_return_are_told_when_it_rests(file: Path) -> None:
    script = Script(file.unlink, lambda: file.write_text("new"))
    files = watch(script, file)
    assert files.wait() == [file]
    assert file.exists()
    script.steps.append(file.unlink)
    assert files.wait() == [file]
    script.steps.append(lambda: file.write_text("again"))
    assert files.wait() == [file]


def test_what_was_written_while_it_was_read_counts_as_changed(file: Path) -> None:
    script = Script()
    files = watch(script, file, read_ns=file.stat().st_ctime_ns)
    assert files.wait() == [file]
    assert script.now_s < 1


def test_a_folder_changes_when_a_source_comes_or_goes(tmp_path: Path) -> None:
    script = Script(
        (tmp_path / "notes.txt").touch,
        (tmp_path / ".kernels.py.swp").touch,
        nothing,
        (tmp_path / "new.py").touch,
    )
    assert watch(script, tmp_path).wait() == [tmp_path]
    assert script.steps == []


def test_a_spec_is_watched_with_its_folder_and_project_and_python_files_of_neither_environment(
    tmp_path: Path,
) -> None:
    for name in ("a.py", "sub/b.py", ".git/c.py", "env/lib/d.py", "env/pyvenv.cfg",
                 "pyproject.toml", "sub/spec.yaml"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert python_files(tmp_path) == {tmp_path / "a.py", tmp_path / "sub/b.py"}
    spec = tmp_path / "sub" / "spec.yaml"
    assert files_of_paths([str(spec)]) == {spec, spec.parent, tmp_path / "pyproject.toml"}
