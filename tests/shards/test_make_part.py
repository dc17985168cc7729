"""What a part takes from the store: all that another machine needs, in whatever state it is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pallasc.cache.store import Store
from pallasc.cli.main import main

Run = Callable[..., str]
KERNELS = "def scaled(x): return x * {factor}\n"
YAML = """\
schema: 1
targets: [sm_90a]
kernels:
  - {name: scaled, entry: "kernel.py:scaled", args: {x: "f32[8, 128]"}}
"""
PYTHON = """\
import pallasc

@pallasc.kernel(args={"x": "f32[8, 256]"}, targets=["sm_90a"])
def doubled(x): return x * 2
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)

    def run_here(*arguments: object, code: int = 0) -> str:
        capfd.readouterr()
        found = main([str(argument) for argument in arguments])
        said = "".join(capfd.readouterr())
        assert found == code, said
        return said

    return run_here


@pytest.fixture
def warmed(warm_store: Store, tmp_path: Path) -> Path:
    """Return a store that knows the toolchain's digests."""
    return Path(shutil.copytree(warm_store.root, tmp_path / "warmed"))


def checkout(name: str, factor: int) -> Path:
    folder = Path(name)
    folder.mkdir()
    (folder / "kernel.py").write_text(KERNELS.format(factor=factor))
    (folder / "spec.yaml").write_text(YAML)
    return folder / "spec.yaml"


def test_another_checkout_in_the_same_store_does_not_matter(run: Run, warmed: Path) -> None:
    ours, theirs = checkout("ours", 2), checkout("theirs", 3)
    for spec in (ours, theirs):  # the manifest that serves every folder is now that of theirs
        run("build", spec, "--store", warmed, "--jobs", 1)
    part = ("--shard", "1/1", "--shard-output", "1.part")
    assert "1 hit (100 %)" in run("build", ours, "--store", warmed, *part)
    run("merge", "1.part", "--store", "merged")
    assert "1 hit (100 %)" in run("build", ours, "--store", "merged", "--frozen")
    run("build", theirs, "--store", "merged", "--frozen", code=3)


def test_python_specs_need_not_be_executed_where_parts_were_merged(run: Run, warmed: Path) -> None:
    Path("kernels.py").write_text(PYTHON)
    run("build", "kernels.py", "--store", "merged", "--frozen", code=3)
    for store in (warmed, warmed):  # executed the first time, remembered the second
        shard = ("--shard", "1/1", "--shard-output", "1.part")
        run("build", "kernels.py", "--store", store, "--jobs", 1, *shard)
        run("merge", "1.part", "--store", "merged")
        assert "1 hit (100 %)" in run("build", "kernels.py", "--store", "merged", "--frozen")
        run("bundle", "create", "kernels.py", "--store", "merged", "--frozen", "-o", "k.pallasc")
        shutil.rmtree("merged")


def test_a_store_that_lost_an_artifact_ends_with_4(
    run: Run, warmed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = checkout("ours", 2)
    monkeypatch.setattr("pallasc.compiler.shards.make_part.entries_of_action", lambda *_: None)
    monkeypatch.setattr("pallasc.compiler.shards.make_part.entries_of_variant", lambda *_: None)
    part = ("--shard", "1/1", "--shard-output", "1.part")
    said = run("build", spec, "--store", warmed, "--jobs", 1, *part, code=4)
    assert f"the store {warmed} has no artifact of scaled@h100-sxm: it was removed" in said
    assert not Path("1.part").exists()
