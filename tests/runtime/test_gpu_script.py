"""The folder for a machine with a GPU, and its command, on the stand-in driver."""

from __future__ import annotations

import hashlib
import json
import shutil
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
) -> Any:
    """Run the command of a folder; `device` says how kernels misbehave."""
    environment = {**control.environment(), **(native or {})}
    environment["GPU_DEVICE"] = json.dumps(device or {})
    command = [folder / "check_gpu.py", "--out", out, *SHORT, *arguments]
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
    """Run most parts; give the folder of results, and how it ended."""
    out = tmp_path_factory.mktemp("whole")
    has_native = native_build.why_not() is None
    native = {"PALLASC_NATIVE": str(native_build.build())} if has_native else {}
    chosen = [word for name in (VARIANT, TUNING, FAR_TUNING) for word in ("-k", name)]
    chosen += ["--parts", "numbers,calls,codes,launch,times,tunings"]
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


def test_a_machine_without_a_gpu_is_told(packed: Path, tmp_path: Path) -> None:
    command = [packed / "check_gpu.py", "--out", tmp_path, *SHORT]
    done = run_script(*command, environment=control.environment(devices=""))
    assert done.returncode == 4
    assert "no GPU can be used here" in done.stderr
    (failure,) = _things(_rows(tmp_path)).values()
    assert failure["error"]["type"] in ("DeviceError", "DriverError", "ArgumentError")


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
