"""From what a bundle is made: specs by what they declare, commits, toolchains."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from made_bundles import make_artifact

from pallasc.compiler.builds.bundling import origins
from pallasc.specs.bundle.manifest import Provenance, pack_provenance
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
OTHER_ORDER = """\
# The same, in another order.
kernels:
  - files: [other.bin, table.bin]
    args: {x: "f32[128, 256]"}
    name: softmax
    entry: kernels.py:softmax
  - exclude: [{dtype: bf16, m: 2048}, {m: 1024, dtype: f32}]
    matrix: {dtype: [bf16, f32], m: [4096, 1024, 2048]}
    static: {block_size: 2048}
    name: add
    args: {y: "{dtype}[{m}, 4096]", x: "{dtype}[{m}, 4096]"}
    budget: {registers: 255}
    vmap: softmax
    entry: pallasc.specs.library.elementwise:add
targets: [b200, sm_90a]
schema: 1
"""
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
    assert origin.specs.keys() == {"kernels.yaml"}
    assert (origin.commit, origin.dirty) == (None, None)
    assert str(tmp_path).encode() not in pack_provenance([origin])


def test_the_order_in_a_spec_and_its_comments_make_no_difference(tmp_path: Path) -> None:
    first, other = _write(tmp_path / "a"), _write(tmp_path / "b", OTHER_ORDER)
    assert _one(first) == _one(other)


@pytest.mark.parametrize(
    ("old", "new"),
    [("2048}", "4096}"), ("f32[128, 256]", "f32[128, 512]"), ("sm_90a", "a100-sxm"),
     ("name: softmax", "name: soft"), ("4096], dtype", "512], dtype"), ("table.bin", "t.bin"),
     ("kernels.py:softmax", "kernels.py:other"), ("exclude: [{m: 1024", "exclude: [{m: 4096")],
)  # fmt: skip
def test_what_a_spec_declares_makes_one(tmp_path: Path, old: str, new: str) -> None:
    assert old in SPEC
    first, other = _write(tmp_path / "a"), _write(tmp_path / "b", SPEC.replace(old, new, 1))
    assert _one(first).specs != _one(other).specs


def test_names_have_as_few_folders_as_tell_them_apart(tmp_path: Path) -> None:
    paths = [tmp_path / "x" / "specs", tmp_path / "y" / "specs", tmp_path / "z"]
    files = [_write(folder) for folder in paths[:2]] + [_write(paths[2], name="own.yaml")]
    assert _one(*files).specs.keys() == {
        "x/specs/kernels.yaml",
        "y/specs/kernels.yaml",
        "own.yaml",
    }


@pytest.fixture
def repository(tmp_path: Path, git: Callable[..., str]) -> Path:
    """Return a folder with a commit of a spec in `specs/`."""
    folder = tmp_path / "first"
    _write(folder / "specs")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    return folder


@with_git
def test_two_clones_say_the_same(repository: Path, git: Callable[..., str], tmp_path: Path) -> None:
    clone = tmp_path / "deep" / "er" / "clone"
    git(tmp_path, "clone", "-q", str(repository), str(clone))
    found = [_one(folder / "specs" / "kernels.yaml") for folder in (repository, clone)]
    assert found[0] == found[1]
    assert found[0].commit == git(repository, "rev-parse", "HEAD").strip()
    assert found[0].dirty is False
    assert found[0].specs.keys() == {"specs/kernels.yaml"}


@with_git
@pytest.mark.parametrize("name", ["kernels.yaml", "kernels.py", "table.bin"])
def test_a_changed_or_new_source_makes_it_dirty(
    repository: Path, git: Callable[..., str], name: str
) -> None:
    spec = repository / "specs" / "kernels.yaml"
    (repository / "unrelated.txt").write_text("not tracked")
    assert _one(spec).dirty is False
    git(repository, "rm", "-q", "--cached", f"specs/{name}")
    git(repository, "commit", "-qm", "two")
    assert _one(spec).dirty is True


@with_git
def test_the_bundle_itself_does_not_make_it_dirty(
    repository: Path, git: Callable[..., str]
) -> None:
    spec, bundle = repository / "specs" / "kernels.yaml", repository / "kernels.pallasc"
    bundle.write_text("old")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "two")
    bundle.write_text("new")
    assert _one(spec, ignore=(bundle,)).dirty is False
    assert _one(spec).dirty is True


@with_git
def test_specs_of_two_repositories_have_two_commits(
    repository: Path, git: Callable[..., str], tmp_path: Path
) -> None:
    (repository / ".gitignore").write_text("ignored/\n")
    ignored = _write(repository / "ignored")
    outside = _write(tmp_path / "outside")
    specs = _specs(repository / "specs" / "kernels.yaml", ignored, outside)
    found = origins(specs, [make_artifact(1), make_artifact(2)])
    assert [sorted(origin.specs) for origin in found] == [
        ["specs/kernels.yaml"],
        ["ignored/kernels.yaml", "outside/kernels.yaml"],
    ]
    assert [origin.commit is None for origin in found] == [False, True]
