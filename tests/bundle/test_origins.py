"""From what a bundle is made: specs by what they declare, toolchains, commits and what git says."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from made_bundles import make_artifact

from pallasc.compiler.builds.bundling import Repository, find_repository, origins
from pallasc.specs.bundle.manifest import Provenance, pack_provenance
from pallasc.specs.canonical import digest
from pallasc.specs.loading.yaml_loader import load_specs
from pallasc.specs.spec import Spec

SPEC = """\
schema: 1
targets: [sm_90a, b200]
kernels:
  - name: add
    entry: pallasc.specs.library.elementwise:add
    args: {x: "{dtype}[{m}, 4096]", y: "{dtype}[{m}, 4096]"}
    static: {block_size: 2048}
    matrix: {m: [1024, 2048, 4096], dtype: [f32, bf16]}
    exclude: [{m: 1024, dtype: f32}, {m: 2048, dtype: bf16}]
  - name: softmax
    entry: kernels.py:softmax
    args: {x: "f32[128, 256]"}
    files: [table.bin, other.bin]
"""
Git = Callable[..., str]
with_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def _write(folder: Path, text: str = SPEC, name: str = "kernels.yaml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for data in ("table.bin", "other.bin", "t.bin"):
        (folder / data).write_text("data")
    (folder / "kernels.py").write_text("def softmax(x): ...\ndef other(x): ...\n")
    path = folder / name
    path.write_text(text)
    return path


def _specs(*paths: Path) -> list[Spec]:
    return [spec for path in paths for spec in load_specs([path])]


def _one(*paths: Path, ignore: tuple[Path, ...] = ()) -> Provenance:
    (origin,) = origins(_specs(*paths), [make_artifact(1)], ignore=ignore)
    return origin


def test_outside_of_a_repository_it_says_what_is_known(tmp_path: Path) -> None:
    origin = _one(_write(tmp_path))
    assert origin.builder.startswith("pallasc ")
    assert origin.toolchain == {"jax": "0.12.0.1", "ptxas": "13.5.37"}
    assert origin.specs == {"kernels.yaml": digest(SPEC.encode())}
    assert (origin.commit, origin.dirty) == (None, None)
    assert str(tmp_path).encode() not in pack_provenance([origin])


def test_names_have_as_few_folders_as_tell_them_apart(tmp_path: Path) -> None:
    paths = [tmp_path / "x" / "specs", tmp_path / "y" / "specs", tmp_path / "z"]
    files = [_write(folder) for folder in paths[:2]] + [_write(paths[2], name="own.yaml")]
    assert _one(*files).specs.keys() == {"x/specs/kernels.yaml", "y/specs/kernels.yaml", "own.yaml"}


# ---- what git says


@pytest.fixture
def found(tmp_path: Path, git: Git) -> Repository:
    """Return a repository with a commit of a spec in `specs/`."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    folder = tmp_path / "first"
    _write(folder / "specs")
    (folder / "kernel.py").write_text("k")
    (folder / ".gitignore").write_text("*.o\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    repository = find_repository(folder / "specs")
    assert repository is not None
    assert repository.root == folder.resolve()
    return repository


@with_git
def test_nothing_is_known_without_a_commit_or_git(
    git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_repository(tmp_path) is None
    assert find_repository(tmp_path / "nowhere") is None
    git(tmp_path, "init", "-q")
    assert find_repository(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert find_repository(tmp_path) is None


def test_changed_files_make_it_dirty(found: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.setenv(name, "/elsewhere")
    assert find_repository(found.root) == found
    assert found.differences([]) == ()
    file = found.root / "kernel.py"
    file.write_text("other")
    assert found.differences([]) == ("kernel.py",)
    assert found.differences([], ignore=[file]) == ()
    file.write_text("k")
    os.utime(file, (1, 1))
    assert found.differences([]) == ()
    file.unlink()
    assert found.differences([]) == ("kernel.py",)


def test_programs_of_the_repository_never_run(found: Repository, git: Git, tmp_path: Path) -> None:
    script = tmp_path / "monitor"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path}/was-run\n")
    script.chmod(0o755)
    git(found.root, "config", "core.fsmonitor", str(script))
    git(found.root, "config", "diff.external", str(script))
    for command in ("clean", "smudge", "process"):
        git(found.root, "config", f"filter.own.{command}", str(script))
        git(found.root, "config", f"filter.with.dots and words.{command}", str(script))
    git(found.root, "config", "filter.own.required", "true")
    for command in ("textconv", "command"):
        git(found.root, "config", f"diff.own.{command}", str(script))
    attributes = found.root / ".git" / "info" / "attributes"
    attributes.write_text("*.py filter=own diff=own\n*.yaml filter=with.dots\\ and\\ words\n")
    os.utime(found.root / "kernel.py", (1, 1))  # so that git compares bytes
    os.utime(found.root / "specs" / "kernels.yaml", (1, 1))
    assert found.differences([]) == ()
    (found.root / "kernel.py").write_text("other")
    assert found.differences([]) == ("kernel.py",)
    assert not (tmp_path / "was-run").exists()


def test_a_filter_that_stays_on_leaves_it_unknown(found: Repository, git: Git) -> None:
    git(found.root, "config", "filter.a=b.clean", "false")
    assert found.differences([]) is None
    (found.root / ".git" / "HEAD").write_text("broken")
    assert found.differences([]) is None
    assert find_repository(found.root) is None
