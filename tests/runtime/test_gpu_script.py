"""The folder for a machine with a GPU, and its command, on the stand-in driver."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
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

CASES = (
    "sizes of memory",
    "clusters",
    "a stream and no context current",
    "other addresses in tensor maps",
)
VARIANT = "add[m=1024,dtype=f32]@h100-sxm"
OTHER = "add[m=1024,dtype=bf16]@h100-sxm"
TUNING = "attention[head=64,block_kv=64,causal=false]@h100-sxm"
FAR_TUNING = "reduce_scatter[dtype=i32,reduction=xor,devices=4]@h100-sxm"
SHORT = (
    *("--no-unpack", "--rows", "8", "--repeats", "2", "--rounds", "1", "--launches", "1"),
    *("--repeats-launch", "1", "--ramp-s", "0", "--copied-bytes", "65536", "--peak-n", "64"),
    *("--budget", "100000", "--patience", "100", "--at-once", "2"),
)
MOMENTS = [
    ["begin", "codes/"],
    ["end", "codes/"],
    ["thing", "errors/"],
]
CUT = ("codes", "errors")
"""The parts of the run that is cut off: those of its moments."""


def _pack(folder: Path, store: Path) -> None:
    chosen = ["-k", "add[m=1024", "--cases", ",".join(CASES), "--store", store, "--no-wheels"]
    tunings = ["--only-tunings", TUNING, "--only-tunings", FAR_TUNING]
    done = run_script(SCRIPTS / "pack.py", folder, *chosen, *tunings)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory, warm_store: Store) -> Path:
    """Pack a kernel in two types, two tunings and a few cases."""
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
    chosen = [word for name in (VARIANT, TUNING, FAR_TUNING) for word in ("-k", name)]
    return out, _check(packed, out, *chosen, native=native)


def test_a_packed_folder_holds_what_its_manifest_says(packed: Path) -> None:
    manifest = json.loads((packed / "MANIFEST.json").read_text())
    files = {
        path.relative_to(packed).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in packed.rglob("*")
        if path.is_file() and path.name != "MANIFEST.json" and path.parent.name != "__pycache__"
    }
    assert {name: row["sha256"] for name, row in manifest["files"].items()} == files
    assert manifest["bytes"] == sum(row["bytes"] for row in manifest["files"].values())
    assert {"check_gpu.py", "kernels/variants.json", "codes/standin.json"} <= set(files)
    assert manifest["versions"]["ptxas"]


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
    assert set(ends.values()) <= {"done", "skipped"}
    assert ends[f"tunings/{FAR_TUNING}"] == "skipped"
    assert {unit.partition("/")[0] for unit in ends} >= {"numbers", "calls", "codes", "launch"}
    for adapter in ("numpy", "device arrays", "DLPack", "JAX", "JAX in jit"):
        assert things[f"numbers/{VARIANT}", adapter]["right"] is True, adapter
    for way in ("open_bundle", "load", "two bundles", "graph of the driver", "threads"):
        assert things[f"calls/{way}", "numbers"]["right"] is True
    assert things["calls/two bundles", "numbers"]["bundles"] == 2
    assert all(row["same"] for (unit, _), row in things.items() if unit.startswith("codes/"))
    assert {"raw", "checked", "unchecked"} <= {
        what for unit, what in things if unit == "launch/pointers"
    }
    assert things[f"times/{VARIANT}", "pallasc"]["cold"]["repeats"] == 2
    assert things["times/peaks", "copy"]["gb_per_s"] > 0
    assert things[f"tunings/{TUNING}", "numbers"]["right"] is True
    assert things[f"tunings/{TUNING}", "time"]["warm"]["median_us"] > 0
    job = things["tune/attention", "job"]
    assert (job["right"], job["keys"][0]["winner"]) == (True, TUNING)
    assert TUNING in (out / "tune_attention.jsonl").read_text()


def test_exports_are_launched_in_processes_of_their_own(whole: tuple[Path, Any]) -> None:
    if reason := native_build.why_not():
        pytest.skip(reason)
    things = _things(_rows(whole[0]))
    assert things[f"exports/C {VARIANT}", "library"]["right"] is True
    ways = ("by bytes", "by digest", "by digest, without the bundle")
    long, short, without = (things[f"exports/JAX {VARIANT}", way] for way in ways)
    if importlib.util.find_spec("flatbuffers") is None:
        assert long["missing"].startswith("flatbuffers: ")
        return
    assert (long["right"], short["right"], without["right"]) == (True, True, True)
    assert short["bytes"] < long["bytes"]
    assert "no open bundle has its cubins" in without["said"]


def test_what_is_missing_is_said(whole: tuple[Path, Any]) -> None:
    rows = _rows(whole[0])
    things = _things(rows)
    if shutil.which("nvidia-smi") is None:
        assert "nvidia-smi is not here" in things[f"times/{VARIANT}", "clocks"]["clocks"]["missing"]
    if shutil.which("compute-sanitizer") is None:
        reasons = {r.get("reason") for r in rows if r.get("unit", "").startswith("sanitizer/")}
        assert reasons == {"compute-sanitizer is not here"}
    assert "JAX runs on cpu" in things[f"times/{VARIANT}", "JAX, by its profiler"]["missing"]
    assert "JAX runs on cpu" in things[f"starts/{VARIANT}", "jax"]["missing"]
    # Whatever is not installed: each question has an answer, or says why not.
    silent = [key for key, row in things.items() if len(row) <= 5]
    assert silent == []


def test_errors_are_told_with_all_of_their_causes(whole: tuple[Path, Any]) -> None:
    things = _things(_rows(whole[0]))
    memory = things["errors/memory that does not fit", "more memory than there is"]["raised"]
    assert (memory["type"], memory["code"]) == ("OutOfMemoryError", 2)
    assert memory["hint"]
    waiting = things["errors/an illegal address", "waiting for it"]["raised"]
    assert "earlier asynchronous error" in waiting["message"]
    assert things["errors/an illegal address", "the next call"]["raised"]["code"] == 700
    inside = things["errors/inside JAX", "another shape"]["raised"]
    assert "Traceback" in inside["traceback"]


def test_a_run_that_is_cut_at_three_moments_gives_the_same(
    whole: tuple[Path, Any], packed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "cut"
    program = HERE / "programs" / "gpu_cuts.py"
    check = [sys.executable, "-P", packed / "check_gpu.py", "--out", out, *SHORT]
    check += ["--parts", ",".join(CUT), "--at-once", "1"]  # no unit is begun too often
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
    for row in rows:  # what was over is not begun again, and what was told is not told again
        unit = row.get("unit", "")
        assert not (row["event"] in ("begin", "thing") and unit in over), row
        over |= {unit} if row["event"] == "end" else set()
    told = [(r["unit"], r["what"]) for r in rows if r["event"] == "thing"]
    assert len(told) == len(set(told))


def test_a_broken_context_loses_one_kernel_only(packed: Path, tmp_path: Path) -> None:
    broken = {"numbers/add[m=1024,dtype=f32]": "error"}
    chosen = ["--parts", "numbers", "--adapters", "numpy"]
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
    chosen = ["--parts", "numbers", "--adapters", "numpy", "--patience", "1"]
    conditions = {"numbers_s": 1}
    done = _check(packed, tmp_path, *chosen, "-k", VARIANT, device=hanging, conditions=conditions)
    assert done.returncode == 1
    (end,) = (row for row in _rows(tmp_path) if row["event"] == "end" and "numbers" in row["unit"])
    assert (end["status"], end["reason"]) == ("timeout", "not over after 1 s")
    done = _check(packed, tmp_path, "--parts", "numbers", "--adapters", "numpy")
    assert done.returncode == 1  # the other kernel is right, and this one stays as it was
    assert _ends(_rows(tmp_path)) == {f"numbers/{VARIANT}": "timeout", f"numbers/{OTHER}": "done"}


def test_wrong_numbers_are_found(packed: Path, tmp_path: Path) -> None:
    wrong = {"numbers/": "wrong"}
    chosen = ["--parts", "numbers", "--adapters", "numpy", "-k", VARIANT]
    done = _check(packed, tmp_path, *chosen, device=wrong)
    assert done.returncode == 1
    row = _things(_rows(tmp_path))[f"numbers/{VARIANT}", "numpy"]
    assert row["right"] is False
    assert row["wrong"] == row["compared"] >= 8 * 4096


def test_a_run_whose_time_is_spent_says_what_is_left(packed: Path, tmp_path: Path) -> None:
    chosen = ["--parts", "numbers,errors"]
    done = _check(packed, tmp_path, *chosen, conditions={"spent": True})
    assert done.returncode == 3, done.stderr
    assert "run the same command again" in done.stderr
    assert _rows(tmp_path)[-1]["left"]["numbers"] == 2


def test_another_driver_answers_otherwise_and_the_table_says_so(
    packed: Path, tmp_path: Path
) -> None:
    environment = control.environment(faults=[("cuMemAlloc_v2", 2, 46)])
    command = [packed / "check_gpu.py", "--out", tmp_path, *SHORT, "--parts", "codes"]
    run_script(*command, environment=environment)
    things = _things(_rows(tmp_path))
    differing = {key: row for key, row in things.items() if row.get("same") is False}
    key = ("codes/sizes of memory", "cuMemAlloc of 2^44")
    assert (differing[key]["real"], differing[key]["standin"]) == (46, 2)
    done = run_script(packed / "summary.py", tmp_path / "results.jsonl")
    assert "sizes of memory: cuMemAlloc of 2^44: real 46, stand-in 2" in done.stdout


def test_a_machine_without_a_gpu_is_told(packed: Path, tmp_path: Path) -> None:
    command = [packed / "check_gpu.py", "--out", tmp_path, *SHORT]
    done = run_script(*command, environment=control.environment(devices=""))
    assert done.returncode == 4
    assert "no GPU can be used here" in done.stderr
    (failure,) = _things(_rows(tmp_path)).values()
    assert failure["error"]["type"] in ("DeviceError", "DriverError", "ArgumentError")


def test_results_of_another_gpu_or_folder_are_not_mixed(packed: Path, tmp_path: Path) -> None:
    command = [packed / "check_gpu.py", "--out", tmp_path, *SHORT, "--parts", "codes"]
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
        (["--budget", "abc"], "must be a positive number of seconds, got 'abc'"),
        (["--parts", "numbers,colours"], "parts are numbers, calls"),
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
    done = run_script(packed / "summary.py", lines, "--json", record, "--check")
    assert done.returncode == 0, done.stdout
    assert "1 of 1 right  numpy, 1 with the same bytes" in done.stdout
    assert "1 × tunings: it is for 4 GPUs" in done.stdout
    kept = json.loads(record.read_text())
    assert kept["machine"]["gpu"] == "Stand-in H100"
    assert kept["problems"] == []
    assert kept["best_tunings"]["attention(f16[1, 4096, 16, 64], f16[1, 4096, 4, 64], "
                                "f16[1, 4096, 4, 64])"]["tuning"] == TUNING  # fmt: skip
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
    assert "cut short and do not count: 1" in done.stderr
    assert json.loads((tmp_path / "results.jsonl").read_text().splitlines()[-1])["left"] == {
        "numbers": 0
    }


def test_kernels_are_timed_against_jax_on_the_same_numbers(packed: Path) -> None:
    done = run_script(HERE / "programs" / "gpu_times.py", packed)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["JAX"] == {"missing": "JAX runs on cpu here"}
    assert found["same_bytes"] == {"same": True}
    assert found["ours"]["moved_bytes"] == 3 * 4 * 1024 * 4096
    assert found["in_a_row"]["pallasc_to_jax"] > 0 or "missing" in found["in_a_row"]
    assert "missing" in found["profiled"]  # no GPU is profiled here
    assert "error" in found["same_code"]  # JAX compiles for the CPU here


def test_the_references_of_numpy_agree_with_those_of_jax() -> None:
    done = run_script(HERE / "programs" / "gpu_references.py", SCRIPTS)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 12
    assert {name: off for name, off in found.items() if off > 1} == {}


def test_findings_of_compute_sanitizer_are_counted(packed: Path, tmp_path: Path) -> None:
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(
        "#!/bin/sh\n"
        'test "$2" = memcheck && echo "========= ERROR SUMMARY: 0 errors" > "$4"\n'
        'test "$2" = racecheck && echo "===== RACECHECK SUMMARY: 3 hazards displayed" > "$4"\n'
        'test "$2" = memcheck -o "$2" = racecheck || exit; shift 4; exec "$@"\n'
    )
    tool.chmod(0o755)
    environment = control.environment()
    environment["PATH"] = f"{tmp_path}{os.pathsep}{environment['PATH']}"
    command = [packed / "check_gpu.py", "--out", tmp_path / "out", *SHORT, "--parts", "sanitizer"]
    done = run_script(*command, environment=environment)
    assert done.returncode == 1
    rows = {key[0]: row for key, row in _things(_rows(tmp_path / "out")).items()}
    found = {unit.split("/")[1].split()[0]: row for unit, row in rows.items()}
    assert (found["memcheck"]["right"], found["memcheck"]["findings"]) == (True, 0)
    assert (found["racecheck"]["right"], found["racecheck"]["findings"]) == (False, 3)
    assert found["initcheck"]["findings"] is None  # it said nothing that is understood
