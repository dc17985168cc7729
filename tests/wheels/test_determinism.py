"""The same commit gives the same bundle in a wheel, in whatever folder and from whatever store."""

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


def test_two_clones_give_the_same_bundle_with_a_warm_and_an_empty_store(
    builder: Environment, example_wheel: Path, tmp_path: Path
) -> None:
    origin = tmp_path / "origin"
    shutil.copytree(EXAMPLES / "fused_ops", origin, ignore=NOT_SOURCES)
    short = '"fused_ops/kernels.pallasc" = "kernels/"'
    long = short.replace('"kernels/"', '{specs = "kernels/", select = "add_rms_norm"}')
    text = (origin / "pyproject.toml").read_text()
    assert short in text
    (origin / "pyproject.toml").write_text(text.replace(short, long))
    git(origin, "init", "--quiet")
    git(origin, "add", ".")
    git(origin, "commit", "--quiet", "--message", "first")
    commit = git(origin, "rev-parse", "HEAD")
    made = []
    for name, store in (("one", None), ("another/place", tmp_path / "empty store")):
        clone = tmp_path / name
        git(tmp_path, "clone", "--quiet", str(origin), str(clone))
        variables = {"PALLASC_FROZEN": "1"} if store is None else {"PALLASC_CACHE_DIR": str(store)}
        done = builder.build(clone, tmp_path / "dist" / name, "--wheel", **variables)
        assert done.returncode == 0, done.stdout
        assert ("compiled" in done.stdout) == (store is not None)
        made.append(bundles_in(wheel_in(tmp_path / "dist" / name)))
    assert made[0] == made[1]
    (data,) = made[0].values()
    with open_bundle(data) as bundle:
        assert len(bundle) == 4
        assert [(one.commit, one.dirty) for one in bundle.provenance] == [(commit, False)]
