"""Every entry of Pallas' reference has kernels, and they give what the checked-in results say.

The first test process that needs them builds every fifteenth kernel for one architecture, or
with `PALLASC_ALL_COVERAGE=1` every kernel for all of them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pallasc.cache.store import Store

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
JAX = metadata.version("jax")
FILE = FOLDER / f"results-{'.'.join(JAX.split('.')[:2])}.json"
ALL = os.environ.get("PALLASC_ALL_COVERAGE", "") not in ("", "0")
KEPT: dict[str, Any] = json.loads(FILE.read_text()) if FILE.is_file() else {"cases": {}}

pytestmark = pytest.mark.skipif(
    KEPT.get("jax") != JAX, reason=f"there are no results of JAX {JAX}: `make coverage` writes them"
)


def _import(file: Path) -> ModuleType:
    location = importlib.util.spec_from_file_location(file.stem, file)
    assert location is not None
    assert location.loader is not None
    module = importlib.util.module_from_spec(location)
    location.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def page() -> ModuleType:
    """Return docs/coverage_page.py as a module."""
    return _import(ROOT / "docs" / "coverage_page.py")


@pytest.fixture(scope="session")
def built(shared: Callable[..., Path], warm_store: Store) -> Path:
    """Build the kernels, once for all test processes, and return the folder with what came out."""

    def fill(folder: Path) -> None:
        store = shutil.copytree(warm_store.root, folder / "store")
        command = [sys.executable, "-P", FOLDER / "run.py", "--output", folder / "found.json"]
        command += ["--store", store, *([] if ALL else ["--sample"])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
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
    done = subprocess.run(
        [sys.executable, "-P", runtime / "programs" / "native_stores.py", built / "store"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["different"] == []
    assert found["artifacts"] > 10


def test_lines_of_the_source_fit_kernels_of_all_kinds(built: Path) -> None:
    """`bench/lines.py` looks at all of them; here it is one of 99."""
    command = [sys.executable, "-P", ROOT / "bench" / "lines.py", "--step", "99", "--check"]
    done = subprocess.run(
        [*command, "--store", built / "store", "--jobs", "1"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "bench")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "machine code differs with locations: 0 " in done.stdout


def test_the_results_have_every_kernel(came_out: dict[str, Any]) -> None:
    assert set(came_out["declared"]) == set(KEPT["cases"])


def test_what_is_declared_of_each_kernel_is_checked_in(came_out: dict[str, Any]) -> None:
    assert came_out["declared"] == json.loads((FOLDER / "cases.json").read_text())


def test_the_results_have_every_name_that_jax_exports(came_out: dict[str, Any]) -> None:
    assert came_out["exports"] == KEPT["exports"]


def test_names_that_jax_calls_deprecated_are_exported_too(came_out: dict[str, Any]) -> None:
    assert "transpose_ref" in came_out["exports"]["plgpu"]
    assert "core_map" in came_out["exports"]["pl"]


def test_nothing_is_checked_in_that_is_not_as_declared() -> None:
    outcomes = [
        outcome
        for case in KEPT["cases"].values()
        for outcome in [
            *case["targets"].values(),
            case.get("numbers", "ok"),
            *case.get("emulated", {}).values(),
        ]
    ]
    assert outcomes
    assert [
        text for text in outcomes if text.partition(": ")[0] not in ("ok", "gap", "fault", "found")
    ] == []


def test_every_kernel_that_compiles_has_numbers_or_the_words_of_the_interpreter() -> None:
    without = [name for name, case in KEPT["cases"].items() if "numbers" not in case]
    compiled = [name for name in without if not _is_a_gap(KEPT["cases"][name])]
    assert compiled == []


def test_every_kernel_that_compiles_is_emulated_or_has_words_why_not() -> None:
    for case in KEPT["cases"].values():
        compiled = [a for a, text in case["targets"].items() if not text.startswith("gap: ")]
        assert sorted(case.get("emulated", {})) == compiled


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_80", "sm_120a"])
def test_most_of_what_compiles_is_emulated_with_right_numbers(arch: str) -> None:
    said = [c["emulated"][arch] for c in KEPT["cases"].values() if arch in c.get("emulated", {})]
    assert len(said) > 50
    assert said.count("ok") >= 0.95 * len(said)


def test_what_jax_compiles_wrongly_is_found_by_emulation() -> None:
    wrong = {
        (name, arch)
        for name, case in KEPT["cases"].items()
        for arch, outcome in case["targets"].items()
        if outcome.startswith("fault: ")
    }
    assert wrong
    for name, arch in wrong:
        assert KEPT["cases"][name]["emulated"][arch].startswith("found: ")


def _is_a_gap(case: dict[str, Any]) -> bool:
    return all(outcome.startswith("gap: ") for outcome in case["targets"].values())


def test_a_gap_is_told_in_more_than_the_class_of_an_error() -> None:
    outcomes = {
        outcome
        for case in KEPT["cases"].values()
        for outcome in [*case["targets"].values(), case.get("numbers", "ok")]
        if outcome.startswith("gap: ")
    }
    assert outcomes
    assert [text for text in outcomes if text.count(" ") == 1] == []


def test_what_is_looked_for_is_told_without_regular_expressions(page: ModuleType) -> None:
    cases = [case for held in page.all_results().values() for case in held["cases"].values()]
    looks = {look for case in cases for look in case["looked_for"]}
    assert looks
    assert [look for look in looks if re.search(r"\\|\.[*+]|\)[*+?{]", look)] == []


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


def test_notes_and_substitutes_are_of_entries_that_there_are(page: ModuleType) -> None:
    covering = page.rows(page.all_results())
    assert {*page.NOTES} <= {*covering}
    for entry, names in page.SUBSTITUTES.items():
        assert {*names} < {*covering[entry]}


def test_every_entry_has_a_kernel(page: ModuleType) -> None:
    results = page.all_results()
    covering = page.rows(results)
    wanted = [
        page.entry_name(group, name)
        for groups in (page.page_entries(), page.beyond(results))
        for group, names in groups.items()
        for name in names
    ]
    assert len(wanted) > 100
    assert [entry for entry in wanted if entry not in covering] == []


def test_every_kernel_covers_entries_that_there_are(page: ModuleType) -> None:
    results = page.all_results()
    known = {
        page.entry_name(group, name)
        for listed in (page.page_entries(), *(held["exports"] for held in results.values()))
        for group, names in listed.items()
        for name in names
    }
    assert [entry for entry in page.rows(results) if entry not in known] == []


def test_results_of_both_versions_are_of_the_same_kernels(page: ModuleType) -> None:
    by_version = {version: set(held["cases"]) for version, held in page.all_results().items()}
    assert list(by_version) == ["0.10", "0.12"]
    assert by_version["0.10"] == by_version["0.12"]
