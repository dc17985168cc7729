"""The folder for a machine with a GPU, and its script, on the stand-in driver."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path, PurePath
from typing import Any

import pytest
import standin as control

pytestmark = pytest.mark.once

HERE = Path(__file__).parent
SCRIPTS = HERE.parents[1] / "bench" / "gpu"
CASES = (
    "sizes of memory",
    "clusters",
    "a stream and no context current",
    "other addresses in tensor maps",
)
VARIANT = "add[m=1024,dtype=f32]"


def _run(*command: Any, environment: dict[str, str] | None = None) -> Any:
    """Run a program of Python that finds the modules of the tests."""
    given = environment or control.environment()
    folders = [str(HERE), str(HERE / "programs"), given.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, "-P", *map(str, command)],
        env={**given, "PYTHONPATH": os.pathsep.join(filter(None, folders)), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def _pack(folder: Path, store: Path) -> None:
    chosen = ["-k", VARIANT, "--cases", ",".join(CASES), "--store", store, "--no-wheels"]
    done = _run(SCRIPTS / "pack.py", folder, *chosen)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pack one kernel and a few cases."""
    if control.compiler() is None:
        pytest.skip("no C compiler (cc or gcc), so the stand-in driver cannot be built")
    place = tmp_path_factory.mktemp("gpu")
    _pack(place / "packed", place / "store")
    return place / "packed"


def _check(folder: Path, out: Path, *arguments: str, **environment: Any) -> Any:
    """Run the script of a folder; return how it ended."""
    return _run(
        folder / "check_gpu.py",
        *("--no-install", "--out", out, "--rounds", "1", "--launches", "5", "--repeats", "2"),
        *arguments,
        environment=control.environment(**environment),
    )


def test_a_packed_folder_holds_what_its_manifest_says(packed: Path) -> None:
    manifest = json.loads((packed / "MANIFEST.json").read_text())
    files = {
        path.relative_to(packed).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in packed.rglob("*")
        if path.is_file() and path.name != "MANIFEST.json"
    }
    assert {name: row["sha256"] for name, row in manifest["files"].items()} == files
    assert manifest["bytes"] == sum(row["bytes"] for row in manifest["files"].values())
    assert {"check_gpu.py", "kernels/variants.json", "codes/standin.json"} <= set(files)


def test_packing_again_gives_the_same_bytes(packed: Path, tmp_path: Path) -> None:
    _pack(tmp_path / "again", packed.parent / "store")
    first, second = (
        (folder / "MANIFEST.json").read_bytes() for folder in (packed, tmp_path / "again")
    )
    assert first == second


def test_a_packed_folder_names_no_folder_of_the_machine(packed: Path) -> None:
    root = str(HERE.parents[1]).encode()
    assert [
        path for path in packed.rglob("*") if path.is_file() and root in path.read_bytes()
    ] == []


def test_the_wheel_that_is_packed_has_every_package(tmp_path: Path) -> None:
    code = "import pathlib, pack, sys; pack.build_wheel(pathlib.Path(sys.argv[1]))"
    path = os.pathsep.join(filter(None, [str(SCRIPTS), os.environ.get("PYTHONPATH", "")]))
    done = _run("-c", code, tmp_path, environment={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    listed = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text("utf-8"))
    wanted = {name.replace(".", "/") for name in listed["tool"]["setuptools"]["packages"]}
    with zipfile.ZipFile(wheel) as file:
        found = {str(PurePath(name).parent) for name in file.namelist() if name.endswith(".py")}
    assert found == wanted


def test_packing_does_not_write_into_a_folder_that_is_there(tmp_path: Path) -> None:
    done = _run(SCRIPTS / "pack.py", tmp_path)
    assert done.returncode == 2
    assert "is there already" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_script_reports_codes_launches_starts_and_times(packed: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    chosen = ["--cases", ",".join(CASES), "--started", "add"]
    done = _check(packed, out, "--parts", "codes,launch,start,time", *chosen)
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert report["machine"]["gpu"] == "Stand-in H100"
    assert report["packed"]["targets"] == ["h100-sxm"]
    assert {row["case"] for row in report["codes"]} == set(CASES)
    assert all(row["same"] for row in report["codes"])
    assert set(report["launch"]["launches"]) >= {
        *("raw", "checked", "unchecked", "checked, four tensor maps"),
        "plan bound with four tensor maps",
    }
    (timed,) = report["time"]["kernels"]
    assert timed["variant"].startswith(VARIANT)
    assert timed["event_us"] > 0
    (started,) = report["start"]
    assert started["pallasc_s"] > 0
    assert "jax_s" not in started  # JAX has no GPU here
    assert started["jax error"]


def test_another_driver_answers_otherwise_and_the_table_says_so(
    packed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "report.json"
    faults = [("cuMemAlloc_v2", 2, 46)]
    chosen = ["--parts", "codes", "--cases", CASES[0]]
    done = _check(packed, out, *chosen, faults=faults)
    differing = [row for row in json.loads(out.read_text())["codes"] if not row["same"]]
    assert [(row["label"], row["real"], row["standin"]) for row in differing] == [
        ("cuMemAlloc of 2^44", 46, 2)
    ]
    assert "cuMemAlloc of 2^44: real 46, stand-in 2" in done.stderr


def test_a_case_that_does_not_end_well_says_how(packed: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    _check(packed, out, "--parts", "codes", "--cases", CASES[1], init=999)
    answers = {row["label"]: row["real"] for row in json.loads(out.read_text())["codes"]}
    assert "999" in answers["end"]
    assert answers["1 blocks"] == "no answer"


def test_a_part_that_fails_is_reported_and_the_others_go_on(packed: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "damaged", tmp_path / "report.json"
    shutil.copytree(packed, folder)
    (folder / "launch" / "names").unlink()
    done = _check(folder, out, "--parts", "launch,time")
    report = json.loads(out.read_text())
    assert done.returncode == 1
    assert "FileNotFoundError" in report["launch"]["error"]
    assert len(report["time"]["kernels"]) == 1


def test_a_run_that_has_no_time_left_says_so(packed: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    done = _check(packed, out, "--parts", "codes,numbers", "--limit-s", "0")
    assert done.returncode == 1
    report = json.loads(out.read_text())
    late = {"error": "no time was left for it"}
    assert (report["machine"], report["codes"], report["numbers"]) == (late, late, late)


@pytest.mark.parametrize("device", ["right", "wrong"])
def test_numbers_are_compared_with_numpy(device: str, packed: Path) -> None:
    done = _run(HERE / "programs" / "gpu_script.py", packed, device)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout.splitlines()[-1])
    assert row["variant"].startswith(VARIANT)
    assert row["right"] == (device == "right")
    assert row["wrong"] == (0 if device == "right" else 4096)
    assert 8 * 4096 <= row["compared"] <= 10 * 4096


def test_kernels_are_timed_against_jax_on_the_same_numbers(packed: Path) -> None:
    done = _run(HERE / "programs" / "gpu_script.py", packed, "times")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["jax"] == "used"
    (row,) = report["kernels"]
    assert row["same_bytes"] is True
    assert row["pallasc_to_jax_in_a_row"] > 0
    assert row["same_code"] is None  # JAX compiles for the CPU here, and profiles no GPU
    assert "same_code_error" in row
    assert "profiler_error" in row


def test_the_references_of_numpy_agree_with_those_of_jax() -> None:
    done = _run(HERE / "programs" / "gpu_references.py", SCRIPTS)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 14
    assert {name: off for name, off in found.items() if off > 1} == {}
