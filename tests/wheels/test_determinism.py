"""The same commit gives the same bundle in a wheel: in whatever folder, from whatever store."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from environments import EXAMPLES, NOT_SOURCES, Environment, bundles_in, wheel_in

from pallasc.specs.bundle.bundle import open_bundle

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(folder: Path, *arguments: str) -> str:
    """Run git as nobody in particular."""
    known = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    person = {f"GIT_{role}_{what}": f"{what}@example.org" for role in ("AUTHOR", "COMMITTER")
              for what in ("NAME", "EMAIL")}  # fmt: skip
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        env={**known, **person, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """Return a repository with the example in a folder, one of its kernels in the bundle."""
    top = tmp_path / "origin"
    folder = top / "libraries" / "fused"
    shutil.copytree(EXAMPLES / "fused_ops", folder, ignore=NOT_SOURCES)
    short = '"fused_ops/kernels.pallasc" = "kernels/"'
    long = short.replace('"kernels/"', '{specs = "kernels/", select = "add_rms_norm"}')
    text = (folder / "pyproject.toml").read_text()
    assert short in text
    (folder / "pyproject.toml").write_text(text.replace(short, long))
    git(top, "init", "--quiet")
    git(top, "add", ".")
    git(top, "commit", "--quiet", "--message", "a commit")
    return top


def build(builder: Environment, origin: Path, name: str, *flags: str, **variables: str) -> Path:
    """Build the wheel in a clone of its own, in which `name` has the folders above it."""
    top = origin.parent
    clone, dist = top / "clones" / name, top / "dist" / name
    git(top, "clone", "--quiet", str(origin), str(clone))
    done = builder.build(clone / "libraries" / "fused", dist, *flags, **variables)
    assert done.returncode == 0, done.stdout
    assert ("compiled" in done.stdout) == ("PALLASC_CACHE_DIR" in variables)
    return wheel_in(dist)


def test_two_clones_give_the_same_bundle_with_a_warm_and_an_empty_store(
    builder: Environment, example_wheel: Path, origin: Path, tmp_path: Path
) -> None:
    empty = str(tmp_path / "empty store")
    wheels = [
        build(builder, origin, "one", "--wheel", PALLASC_FROZEN="1"),
        build(builder, origin, "another/place", "--wheel", PALLASC_CACHE_DIR=empty),
    ]
    found = [bundles_in(wheel) for wheel in wheels]
    assert found[0] == found[1]
    (data,) = found[0].values()
    with open_bundle(data) as bundle:
        assert len(bundle) == 4
        (provenance,) = bundle.provenance
    assert (provenance.commit, provenance.dirty) == (git(origin, "rev-parse", "HEAD"), False)
    assert provenance.specs.keys() == {"libraries/fused/kernels/kernels.yaml"}
