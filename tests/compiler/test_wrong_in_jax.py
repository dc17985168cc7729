"""A build warns about what the JAX in use compiles wrongly, and about nothing else."""

import json
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache.store import Store
from pallasc.cli.main import main
from pallasc.compiler.lowering.constructs import BOOLEANS, STRIDE, WRONG_CONSTRUCTS

JAX = tuple(int(part) for part in metadata.version("jax").split(".")[:2])
FILE = Path(__file__).parent / "programs" / "wrong_in_jax.py"
COVERAGE = Path(__file__).parents[1] / "coverage"
SPEC = """\
schema: 1
targets: [sm_90a]
kernels:
  - name: copied
    entry: wrong_in_jax.py:copied
    args: {x: "f32[128, 128]"}
    static: {stride: "{stride}"}
    matrix: {stride: [1, 2]}
  - name: prefetched
    entry: wrong_in_jax.py:prefetched
    args: {x: "f32[64, 64]"}
    static: {semantics: "{semantics}"}
    matrix: {semantics: [Lane, Warpgroup]}
  - {name: selected, entry: "wrong_in_jax.py:selected", args: {x: "bool[1024]"}}
  - {name: moved, entry: "wrong_in_jax.py:moved", args: {x: "i1[1024]"}}
  - {name: first_selected, entry: "wrong_in_jax.py:first_selected", args: {x: "bool[8]"}}
"""
FAILING_SPEC = """\
schema: 1
targets: [sm_90a]
kernels:
  - {name: summed, entry: "wrong_in_jax.py:summed", args: {x: "bool[1024]"}}
"""
WARNED = {
    "copied[stride=2]": "copied",
    "prefetched[semantics=Warpgroup]": "prefetched",
    **({"selected": "selected", "moved": "moved"} if BOOLEANS.first <= JAX else {}),
}
"""By variant, the mark of the line that is warned about; JAX 0.10 refuses to load booleans."""


@pytest.fixture
def spec(tmp_path: Path, warm_store: Store, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the place of a spec of copies of the kernels, with an own store."""
    monkeypatch.setenv("PALLASC_CACHE_DIR", str(shutil.copytree(warm_store.root, tmp_path / "s")))
    shutil.copy(FILE, tmp_path)
    return tmp_path / "kernels.yaml"


def warnings(spec: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    main(["build", str(spec), "--json", "--jobs", "1"])
    variants = json.loads(capsys.readouterr().out)["variants"]
    found = {variant["id"].partition("@")[0]: variant["warnings"] for variant in variants}
    assert all(len(each) <= 1 for each in found.values())
    return {name: each[0] for name, each in found.items() if each}


def test_each_wrong_construct_is_warned_about_once_with_its_line(
    spec: Path, marked: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    spec.write_text(SPEC)
    found = warnings(spec, capsys)
    places = {name: marked("wrong_in_jax", mark) for name, mark in WARNED.items()}
    assert {name: warning["source"] for name, warning in found.items()} == {
        name: f"{path.name}:{line}" for name, (path, line) in places.items()
    }
    assert {warning["kind"] for warning in found.values()} == {"CompiledWrongly"}
    assert found["copied[stride=2]"]["text"] == (
        f"in this version of JAX, {STRIDE.does}. {STRIDE.instead}"
    )
    assert warnings(spec, capsys) == found  # a hit repeats them
    assert main(["build", str(spec), "-k", "copied", "--fail-on-warning", "CompiledWrongly"]) == 1
    capsys.readouterr()
    main(["check", str(spec), "-k", "copied", "--level", "artifact"])
    assert STRIDE.does in capsys.readouterr().err


def test_a_kernel_that_fails_to_lower_shows_its_error_without_the_warning(
    spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec.write_text(FAILING_SPEC)
    assert main(["build", str(spec), "--jobs", "1"]) == 1
    shown = capsys.readouterr().err
    assert "failed    summed@h100-sxm" in shown
    assert "CompiledWrongly" not in shown


@pytest.mark.parametrize("version", ["0.10", "0.12"])
def test_the_table_and_the_coverage_page_agree(version: str) -> None:
    cases = json.loads((COVERAGE / f"results-{version}.json").read_text())["cases"].values()
    outcomes = {text for case in cases for text in case["targets"].values()}
    faults = {text.removeprefix("fault: ") for text in outcomes if text.startswith("fault: ")}
    number = tuple(map(int, version.split(".")))
    assert faults <= {row.does for row in WRONG_CONSTRUCTS if row.first <= number}
    if version == "0.12":
        assert faults == {row.does for row in WRONG_CONSTRUCTS}
