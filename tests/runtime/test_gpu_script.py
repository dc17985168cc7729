"""The folder for a machine with a GPU, and its command, on the stand-in driver."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import native_build
import pytest
import standin as control
from gpu_scripts import HERE, SCRIPTS, run_script

from pallasc.cache.store import Store

VARIANT = "add[m=1024,dtype=f32]@h100-sxm"
OTHER = "add[m=1024,dtype=bf16]@h100-sxm"
TUNING = "attention[head=64,block_kv=64,causal=false]@h100-sxm"
FAR_TUNING = "reduce_scatter[dtype=i32,reduction=xor,devices=4]@h100-sxm"
SHORT = ("--quick", "--budget", "100000", "--patience", "100")
MOMENTS = [
    ["begin", "errors/memory"],
    ["end", "errors/memory"],
    ["thing", "errors/an illegal"],
]
PARTS = ("numbers", "calls", "errors", "launch", "times")
CUT = ("errors",)
"""The parts of the run that is cut off: those of its moments."""


def _pack(folder: Path, store: Path) -> None:
    names = [word for name in ("add[m=1024", TUNING, FAR_TUNING) for word in ("-k", name)]
    done = run_script(SCRIPTS / "pack.py", folder, *names, "--store", store, "--no-wheels")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory, warm_store: Store) -> Path:
    """Pack a kernel in two types, and a tuning; one for several GPUs is left out."""
    if reason := control.why_not():
        pytest.skip(reason)
    place = tmp_path_factory.mktemp("gpu")
    shutil.copytree(warm_store.root, place / "store")
    _pack(place / "packed", place / "store")
    return place / "packed"


def _check(
    folder: Path,
    out: Path,
    *arguments: Any,
    device: dict[str, str] | None = None,
    native: dict[str, str] | None = None,
    conditions: dict[str, Any] | None = None,
) -> Any:
    """Run the command of a folder; `device` says how kernels misbehave."""
    environment = {**control.environment(), **(native or {})}
    environment["GPU_DEVICE"] = json.dumps(device or {})
    command = [folder / "check_gpu.py", "--out", out, *SHORT, *arguments]
    if conditions is not None:
        program = HERE / "programs" / "gpu_conditions.py"
        command[:1] = [program, folder, json.dumps(conditions)]
    return run_script(*command, environment=environment, device=True)


def _rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


def _things(rows: Iterable[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["unit"], row["what"]): row for row in rows if row["event"] == "thing"}


def _ends(rows: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Return how each unit ended, those apart that say what the machine is."""
    ended = [row for row in rows if row["event"] == "end"]
    return {r["unit"]: r["status"] for r in ended if not r["unit"].startswith("machine/")}


@pytest.fixture(scope="session")
def whole(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Run everything, without a cut; give the folder of results, and how it ended."""
    out = tmp_path_factory.mktemp("whole")
    has_native = native_build.why_not() is None
    native = {"PALLASC_NATIVE": str(native_build.build())} if has_native else {}
    chosen = [word for name in (VARIANT, TUNING) for word in ("-k", name)]
    return out, _check(packed, out, *chosen, native=native)


def test_a_packed_folder_holds_what_its_manifest_says(packed: Path) -> None:
    manifest = json.loads((packed / "MANIFEST.json").read_text())
    files = {
        path.relative_to(packed).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in packed.rglob("*")
        if path.is_file() and path.name != "MANIFEST.json" and path.parent.name != "__pycache__"
    }
    assert manifest["files"] == files
    assert {"check_gpu.py", "variants.json", "library.pallasc", "add.jax"} <= set(files)
    assert manifest["versions"]["jax"]
    packed_ids = {row["id"] for row in json.loads((packed / "variants.json").read_text())}
    assert packed_ids == {VARIANT, OTHER, TUNING}


def test_a_packed_folder_names_no_folder_of_the_machine(packed: Path) -> None:
    root = str(HERE.parents[1]).encode()
    assert [
        path for path in packed.rglob("*") if path.is_file() and root in path.read_bytes()
    ] == []


def test_a_whole_run_answers_everything(whole: tuple[Path, Any], packed: Path) -> None:
    out, done = whole
    assert done.returncode == 0, done.stderr
    rows = _rows(out)
    ends, things = _ends(rows), _things(rows)
    assert set(ends.values()) == {"done"}
    assert {unit.partition("/")[0] for unit in ends} == set(PARTS)
    for adapter in ("numpy", "device arrays", "DLPack", "JAX", "JAX in jit"):
        assert things[f"numbers/{VARIANT}", adapter]["right"] is True, adapter
    assert things[f"numbers/{TUNING}", "numpy"]["right"] is True
    for way in ("load", "graph of the driver", "threads", "JAX in a loop"):
        assert things[f"calls/{way}", "numbers"]["right"] is True, way
    tuned = things["calls/tune run", "numbers"]
    assert (tuned["right"], tuned["keys"][0]["winner"]) == (True, TUNING)
    assert TUNING in (out / "tune_attention.jsonl").read_text()
    assert {"raw", "checked", "unchecked"} <= {
        what for unit, what in things if unit == "launch/pallasc"
    }
    assert things[f"times/{VARIANT}", "pallasc"]["cold"]["repeats"] == 2


def test_an_exported_function_is_called_in_another_process(whole: tuple[Path, Any]) -> None:
    row = _things(_rows(whole[0]))["calls/jax.export", "numbers"]
    if native_build.why_not() or importlib.util.find_spec("flatbuffers") is None:
        assert "missing" in row
    else:
        assert row["right"] is True


def test_what_is_missing_is_said(whole: tuple[Path, Any]) -> None:
    rows = _rows(whole[0])
    things = _things(rows)
    if shutil.which("nvidia-smi") is None:
        clocks = things[f"times/{VARIANT}", "clocks"]["clocks"]
        assert clocks == {"missing": "nvidia-smi is not installed"}
    assert "JAX runs on cpu" in things[f"times/{VARIANT}", "JAX"]["missing"]
    assert "JAX runs on cpu" in things["launch/JAX", "JAX"]["missing"]
    # Whatever is not installed: each question has an answer, or says why not.
    silent = [key for key, row in things.items() if len(row) <= 5]
    assert silent == []


def test_errors_are_as_expected_and_reported_with_their_tracebacks(
    whole: tuple[Path, Any],
) -> None:
    things = _things(_rows(whole[0]))
    rows = {key: row for key, row in things.items() if key[0].startswith("errors/")}
    assert [key for key, row in rows.items() if not row["right"]] == []
    memory = rows["errors/memory that is not valid", "too much memory"]["raised"]
    assert (memory["type"], memory["code"]) == ("OutOfMemoryError", 2)
    assert memory["hint"]
    waiting = rows["errors/an illegal address", "waiting for it"]["raised"]
    assert "earlier asynchronous error" in waiting["message"]
    assert "Traceback" in waiting["traceback"]
    assert rows["errors/an illegal address", "the next call"]["raised"]["code"] == 700


def test_a_run_that_is_cut_at_three_moments_gives_the_same(
    whole: tuple[Path, Any], packed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "cut"
    program = HERE / "programs" / "gpu_cuts.py"
    check = [sys.executable, "-P", packed / "check_gpu.py", "--out", out, *SHORT]
    check += ["--parts", *CUT]
    own = {**control.environment(), "TMPDIR": str(tmp_path)}  # what is killed leaves its folder
    moments = json.dumps(MOMENTS)
    done = run_script(program, out / "results.jsonl", moments, *check, environment=own, device=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["status"] == 0, done.stderr
    rows = _rows(out)
    uncut = [r for r in _rows(whole[0]) if r.get("unit", "").partition("/")[0] in CUT]
    assert max(row["run"] for row in rows) == 1 + len(MOMENTS)
    assert _ends(rows) == _ends(uncut)
    found, wanted = _things(rows), _things(uncut)
    assert set(found) == set(wanted)
    for key, row in wanted.items():
        for name in ("right", "same", "wrong", "missing", "same_bytes"):
            assert found[key].get(name) == row.get(name), (key, name)
    over: set[str] = set()
    for row in rows:  # what was over is not begun again
        unit = row.get("unit", "")
        assert not (row["event"] in ("begin", "thing") and unit in over), row
        over |= {unit} if row["event"] == "end" else set()


def test_a_broken_context_loses_one_kernel_only(packed: Path, tmp_path: Path) -> None:
    broken = {"numbers/add[m=1024,dtype=f32]": "error"}
    chosen = ["--parts", "numbers", "-k", "add["]
    done = _check(packed, tmp_path, *chosen, device=broken)
    assert done.returncode == 1
    rows = _rows(tmp_path)
    assert _ends(rows) == {f"numbers/{VARIANT}": "failed", f"numbers/{OTHER}": "done"}
    things = _things(rows)
    failure = things[f"numbers/{VARIANT}", "failure"]["error"]
    assert failure["code"] == 700
    assert "Traceback" in failure["traceback"]
    assert things[f"numbers/{OTHER}", "numpy"]["right"] is True


def test_a_hang_loses_one_kernel_only(packed: Path, tmp_path: Path) -> None:
    hanging = {"numbers/add[m=1024,dtype=f32]": "hang"}
    chosen = ["--parts", "numbers", "--patience", "1"]
    conditions = {"numbers_s": 1}
    done = _check(packed, tmp_path, *chosen, "-k", VARIANT, device=hanging, conditions=conditions)
    assert done.returncode == 1
    (end,) = (row for row in _rows(tmp_path) if row["event"] == "end" and "numbers" in row["unit"])
    assert (end["status"], end["reason"]) == ("timeout", "not over after 1 s")
    done = _check(packed, tmp_path, "--parts", "numbers", "-k", OTHER)
    assert done.returncode == 1  # the other kernel is right, and this one stays as it was
    assert _ends(_rows(tmp_path)) == {f"numbers/{VARIANT}": "timeout", f"numbers/{OTHER}": "done"}


def test_wrong_numbers_are_found(packed: Path, tmp_path: Path) -> None:
    wrong = {"numbers/": "wrong"}
    chosen = ["--parts", "numbers", "-k", VARIANT]
    done = _check(packed, tmp_path, *chosen, device=wrong)
    assert done.returncode == 1
    row = _things(_rows(tmp_path))[f"numbers/{VARIANT}", "numpy"]
    assert row["right"] is False
    assert row["wrong"] == row["compared"] >= 8 * 4096


def test_a_run_whose_time_is_spent_says_what_is_left(packed: Path, tmp_path: Path) -> None:
    chosen = ["--parts", "numbers", "errors"]
    done = _check(packed, tmp_path, *chosen, conditions={"spent": True})
    assert done.returncode == 3, done.stderr
    assert "run the same command again" in done.stderr
    assert _rows(tmp_path)[-1]["left"]["numbers"] == 3


def test_another_error_of_the_driver_is_found_and_the_table_shows_it(
    packed: Path, tmp_path: Path
) -> None:
    environment = control.environment(faults=[("cuMemAlloc_v2", 2, 46)])
    command = [packed / "check_gpu.py", "--out", tmp_path, *SHORT, "--parts", "errors"]
    assert run_script(*command, environment=environment).returncode == 1
    done = run_script(packed / "summary.py", tmp_path / "results.jsonl")
    assert "WRONG    memory that is not valid: too much memory: DriverError" in done.stdout
    assert "right    no GPU is visible: a call: DriverError" in done.stdout


def test_a_machine_without_a_gpu_is_told(packed: Path, tmp_path: Path) -> None:
    command = [packed / "check_gpu.py", "--out", tmp_path, *SHORT]
    done = run_script(*command, environment=control.environment(devices=""))
    assert done.returncode == 4
    assert "no GPU can be used here" in done.stderr
    (failure,) = _things(_rows(tmp_path)).values()
    assert failure["error"]["type"] in ("DeviceError", "DriverError", "ArgumentError")


def test_results_of_another_gpu_or_folder_are_not_mixed(packed: Path, tmp_path: Path) -> None:
    command = [packed / "check_gpu.py", "--out", tmp_path, *SHORT, "--parts", "launch"]
    assert run_script(*command).returncode == 0
    done = run_script(*command, environment=control.environment(devices="10.0"))
    assert done.returncode == 2
    assert "are of Stand-in H100" in done.stderr
    other = tmp_path / "other"
    shutil.copytree(packed, other)
    manifest = json.loads((other / "MANIFEST.json").read_text())
    (other / "MANIFEST.json").write_text(json.dumps({**manifest, "digest": "another"}))
    done = run_script(other / "check_gpu.py", *command[1:])
    assert done.returncode == 2
    assert "of another packed folder" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--budget", "abc"], "invalid float value: 'abc'"),
        (["--parts", "colours"], "invalid choice: 'colours'"),
        (["--folder", "nowhere"], "was not made by pack.py"),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: list[str], text: str, packed: Path, tmp_path: Path
) -> None:
    done = run_script(packed / "check_gpu.py", "--out", tmp_path / "out", *arguments)
    assert done.returncode == 2
    assert text in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_summary_makes_a_table_and_a_record(
    whole: tuple[Path, Any], packed: Path, tmp_path: Path
) -> None:
    record = tmp_path / "gpu.json"
    lines = whole[0] / "results.jsonl"
    done = run_script(packed / "summary.py", lines, "--json", record)
    assert done.returncode == 0, done.stdout
    assert "2 of 2 right  numpy, 2 with the same bytes" in done.stdout
    assert "× times: JAX runs on cpu here" in done.stdout
    kept = json.loads(record.read_text())
    assert kept["machine"]["gpu"] == "Stand-in H100"
    assert kept["problems"] == []
    assert kept["units"][f"numbers/{VARIANT}"]["numpy"]["right"] is True
    assert "Traceback" not in record.read_text()
    assert str(HERE.parents[1]) not in record.read_text()


def test_a_line_that_was_cut_short_is_not_counted(
    whole: tuple[Path, Any], packed: Path, tmp_path: Path
) -> None:
    shutil.copy(whole[0] / "results.jsonl", tmp_path)
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"event": "end", "unit": "numb')
    done = _check(packed, tmp_path, "--parts", "numbers", "-k", VARIANT)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "results.jsonl").read_text().splitlines()[-1])["left"] == {
        "numbers": 0
    }


def test_kernels_are_timed_against_jax_on_the_same_numbers(packed: Path) -> None:
    done = run_script(HERE / "programs" / "gpu_times.py", packed)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["jax"] == {"missing": "JAX runs on cpu here"}
    assert found["ours"]["warm"]["repeats"] == 3
    assert "error" in found["profiled"] or "missing" in found["profiled"]  # no GPU is here


def test_the_references_of_numpy_agree_with_those_of_jax() -> None:
    done = run_script(HERE / "programs" / "gpu_references.py", SCRIPTS)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 10
    assert {name: off for name, off in found.items() if off > 1} == {}
