"""`pallasc diff`: every kind of side, what is printed, and what is refused."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

FIRST, SECOND = "add[m=1024,dtype=f32]@h100-sxm", "add[m=1024,dtype=bf16]@h100-sxm"


@pytest.fixture
def here(built: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the spec, and a store with what was built from it alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PALLASC_CACHE_DIR", str(built.copy))
    shutil.copy(built.spec, "kernels.yaml")
    return tmp_path


def test_sides_of_every_kind_are_the_same_where_they_hold_the_same(
    here: Path, built: Any, run: Any
) -> None:
    assert run("lock", "kernels.yaml", "--update").code == 0
    assert run("bundle", "create", "kernels.yaml", "-o", "k.pallasc").code == 0
    for side in ("kernels.yaml", "pallasc.lock", "k.pallasc", built.copy):
        result = run("diff", "kernels.yaml", side, "--exit-code", "--depth", "raw")
        assert (result.code, result.out) == (0, ""), side
        assert result.err.splitlines()[-1] == "2 variants the same"


@pytest.mark.usefixtures("here")
def test_two_variants_are_compared_with_each_other(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("diff", "kernels.yaml", "-k", "dtype=f32", "-k", "dtype=bf16")
    result = run(*arguments, "--depth", "mix")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0] == f"{FIRST} → {SECOND}"
    assert "  registers " in lines[1]
    assert lines[1].endswith("  better")
    assert any("instructions; " in line for line in lines)
    assert result.err.splitlines()[-1] == "1 variant differs: 1 better; 0 variants the same"
    assert run(*arguments, "--exit-code", "-q").code == 1
    data = json.loads(run(*arguments, "--depth", "sass", "--json").out)
    assert data["schema"] == 1
    assert data["totals"] == {"better": 1, "worse": 0, "mixed": 0, "otherwise": 0, "same": 0}
    (variant,) = data["variants"]
    assert (variant["first"]["id"], variant["second"]["id"]) == (FIRST, SECOND)
    registers = variant["resources"]["registers"]
    assert registers["before"] == variant["first"]["resources"]["registers"]
    assert registers["verdict"] == "better"
    (kernel,) = variant["kernels"]
    assert kernel["code"]["verdict"] == "changed"
    assert kernel["diff"][0].startswith("@@ ")
    keys = [variant[side]["action_key"][:12] for side in ("first", "second")]
    of_keys = json.loads(run("diff", *keys, "--depth", "sass", "--json").out)
    (of_key,) = of_keys["variants"]
    assert {**of_key, "first": 0, "second": 0} == {**variant, "first": 0, "second": 0}
    monkeypatch.setattr("pallasc.analysis.nvdisasm.find_disassembler", lambda: None)
    assert run(*arguments).code == 0
    refused = run(*arguments, "--depth", "mix")
    assert refused.code == 4
    assert "pip install nvidia-cuda-nvdisasm" in refused.err


def test_a_spec_is_compared_with_what_it_was_at_a_revision(
    here: Path, run: Any, built: Any
) -> None:
    store = Path(shutil.copytree(built.store, here / "store"))

    def git(*arguments: str) -> None:
        names = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *names, *arguments], check=True, capture_output=True)

    git("init", "-q", "-b", "main")
    git("add", "kernels.yaml")
    git("commit", "-q", "-m", "one")
    spec = Path("kernels.yaml")
    spec.write_text(spec.read_text().replace("block_size: 2048", "block_size: 8192"))
    arguments = ("kernels.yaml", "--store", store, "-k", "dtype=f32")
    result = run("diff", *arguments, "--base", "main")
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0] == FIRST
    assert re.fullmatch(r"  registers +\d+ → +\d+ +\+\d+  worse", lines[1])
    assert result.err.splitlines()[-1] == "1 variant differs: 1 worse; 0 variants the same"
    deep = run("diff", "kernels.yaml@main", *arguments, "--depth", "lines")
    assert deep.code == 0
    assert "  pallasc/specs/library/elementwise.py: " in deep.out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["kernels.yaml"], 2, "Give two SIDEs, or one SIDE with --base REV, or one SIDE"),
        (["a", "b", "--base", "main"], 2, "Give two SIDEs"),
        (["a", "b", "-k", "x", "-k", "y"], 2, "Two -k compare variants of one SIDE"),
        (["none.lock", "kernels.yaml"], 2, "there is no none.lock."),
        (["kernels.yaml", "-k", "dtype=f32", "-k", "dtype=f64"], 2, "selects none of"),
        (["0123456789ab", "kernels.yaml"], 3, "has no artifact whose action key or digest"),
        (["kernels.yaml@main", "kernels.yaml"], 2, "is in no git repository that git can read."),
    ],
)
def test_what_cannot_be_compared_is_refused(
    here: Path, run: Any, arguments: list[str], code: int, message: str
) -> None:
    result = run("diff", *arguments)
    assert (result.code, result.out) == (code, ""), result.err
    assert message in result.err
