"""Every entry of Pallas' reference has kernels, and they give what the checked-in results say.

The first test process that needs them builds every fifteenth kernel for one architecture, or
with `PALLASC_ALL_COVERAGE=1` every kernel for all of them.
"""

import importlib.util
import json
import os
import runpy
import shutil
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from commands import captured, output_of

from pallasc.cache.store import Store
from pallasc.specs.gpus import DEFAULT_MODELS

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
JAX = metadata.version("jax")
FILE = FOLDER / f"results-{'.'.join(JAX.split('.')[:2])}.json"
ALL = os.environ.get("PALLASC_ALL_COVERAGE", "") not in ("", "0")
KEPT: dict[str, Any] = json.loads(FILE.read_text()) if FILE.is_file() else {"cases": {}}

pytestmark = pytest.mark.skipif(
    KEPT.get("jax") != JAX, reason=f"there are no results of JAX {JAX}: `make coverage` writes them"
)


@pytest.fixture(scope="module")
def page() -> ModuleType:
    """Return docs/coverage_page.py as a module."""
    location = importlib.util.spec_from_file_location("page", ROOT / "docs" / "coverage_page.py")
    assert location is not None
    assert location.loader is not None
    module = importlib.util.module_from_spec(location)
    location.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def built(shared: Callable[..., Path], warm_store: Store) -> Path:
    """Build the kernels, once for all test processes, and return the folder with what came out."""

    def fill(folder: Path) -> None:
        store = shutil.copytree(warm_store.root, folder / "store")
        command = [sys.executable, "-P", FOLDER / "run.py", "--output", folder / "found.json"]
        command += ["--store", store, *([] if ALL else ["--sample"])]
        done = captured(command)
        assert (folder / "found.json").is_file(), done.stderr

    return shared("coverage", fill)


@pytest.fixture(scope="session")
def came_out(built: Path) -> dict[str, Any]:
    """Return what came out."""
    found: dict[str, Any] = json.loads((built / "found.json").read_text())
    return found


def test_kernels_give_what_the_results_say(came_out: dict[str, Any]) -> None:
    cases = came_out["cases"]
    assert len(cases) >= len(KEPT["cases"]) // (1 if ALL else 15)
    assert cases == {name: _kept(name, case["targets"]) for name, case in cases.items()}


def _kept(name: str, built: Mapping[str, str]) -> dict[str, Any]:
    """Return the checked-in results of a kernel for the architectures that were built."""
    kept = KEPT["cases"][name]
    targets = kept["targets"] if ALL else built
    emulated = {arch: said for arch, said in kept.get("emulated", {}).items() if arch in targets}
    found = {**kept, "targets": {arch: kept["targets"].get(arch) for arch in targets}}
    return {key: value for key, value in (found | {"emulated": emulated}).items() if value}


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler on the PATH")
def test_c_launches_every_kernel_as_python_does(built: Path) -> None:
    runtime = ROOT / "tests" / "runtime"
    path = [str(runtime), os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, "-P", runtime / "programs" / "native_stores.py", built / "store"]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    found = json.loads(output_of(command, env=variables))
    assert found["different"] == []
    assert found["artifacts"] > 5


def test_lines_of_the_source_fit_kernels_of_all_kinds(built: Path) -> None:
    """`bench/lines.py` looks at all of them; here it is one of 99."""
    command = [sys.executable, "-P", ROOT / "bench" / "lines.py", "--step", "99", "--check"]
    command += ["--store", built / "store", "--jobs", "1"]
    said = output_of(command, env={**os.environ, "PYTHONPATH": str(ROOT / "bench")})
    assert "machine code differs with locations: 0 " in said


def test_everywhere_is_everything_that_pallasc_compiles_for() -> None:
    known = runpy.run_path(str(FOLDER / "architectures.py"))
    before, since = known["BEFORE_HOPPER"], known["SINCE_HOPPER"]
    assert {*known["EVERYWHERE"]} == {*before, *since} == {*DEFAULT_MODELS}


def test_results_are_checked_in_for_every_kernel_and_every_name_of_jax(
    came_out: dict[str, Any],
) -> None:
    assert came_out["declared"] == json.loads((FOLDER / "cases.json").read_text())
    assert set(came_out["declared"]) == set(KEPT["cases"])
    assert came_out["exports"] == KEPT["exports"]


def test_every_kernel_that_compiles_is_emulated_and_almost_all_are_right() -> None:
    outcomes = []
    for case in KEPT["cases"].values():
        compiled = [a for a, text in case["targets"].items() if not text.startswith("gap: ")]
        assert sorted(case.get("emulated", {})) == compiled
        outcomes += [*case["targets"].values(), *case.get("emulated", {}).values()]
    assert {text.partition(": ")[0] for text in outcomes} <= {"ok", "gap", "fault", "found"}
    for arch in ("sm_90a", "sm_100a", "sm_80", "sm_120a"):
        said = [case.get("emulated", {}).get(arch) for case in KEPT["cases"].values()]
        assert said.count("ok") >= 0.95 * (len(said) - said.count(None)) > 40


def test_what_jax_compiles_wrongly_is_found_by_emulation() -> None:
    wrong = {
        case["emulated"][arch].partition(": ")[0]
        for case in KEPT["cases"].values()
        for arch, outcome in case["targets"].items()
        if outcome.startswith("fault: ")
    }
    assert wrong == {"found"}


def test_the_page_has_a_note_for_each_entry_that_the_newest_jax_does_not_compile(
    page: ModuleType,
) -> None:
    results = page.all_results()
    *_, newest = results.values()
    covering = page.rows(results)
    without = [entry for entry in covering if entry not in page.NOTES]
    cells = {entry: page.compiles(newest["cases"], entry, covering[entry]) for entry in without}
    assert [entry for entry, cell in cells.items() if cell in ("no", "missing")] == []
    wrong = {
        entry
        for case in newest["cases"].values()
        for entry in case["covers"]
        if any(text.startswith("fault: ") for text in case["targets"].values())
    }
    assert wrong
    assert [entry for entry in wrong if "#compiled-wrongly" not in page.NOTES[entry]] == []


def test_every_entry_has_a_kernel_and_every_kernel_note_and_substitute_an_entry(
    page: ModuleType,
) -> None:
    results = page.all_results()
    assert list(results) == ["0.10", "0.12"]
    assert set(results["0.10"]["cases"]) == set(results["0.12"]["cases"])
    covering = page.rows(results)
    wanted, known = (
        {
            page.entry_name(group, name)
            for listed in lists
            for group in listed
            for name in listed[group]
        }
        for lists in (
            (page.page_entries(), page.beyond(results)),
            (page.page_entries(), *(held["exports"] for held in results.values())),
        )
    )
    assert len(wanted) > 100
    assert wanted <= set(covering) <= known
    assert {*page.NOTES} <= {*covering}
    for entry, names in page.SUBSTITUTES.items():
        assert {*names} < {*covering[entry]}
