"""The folder for a machine with a GPU, and its command, on the stand-in driver."""

import hashlib
import importlib.util
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import native_build
import pytest
import standin as control
from processes import HERE, PROGRAMS, run_python

from pallasc.cache.store import Store

ROOT = HERE.parents[1]
SCRIPTS = ROOT / "bench" / "gpu"
VARIANT = "add[m=1024,dtype=f32]@h100-sxm"
OTHER = "add[m=1024,dtype=bf16]@h100-sxm"
TUNING = "attention[head=64,block_kv=64,causal=false]@h100-sxm"
FAR_TUNING = "reduce_scatter[dtype=i32,reduction=xor,devices=4]@h100-sxm"
SHORT = ("--quick", "--budget", "100000", "--patience", "100")
PARTS = ("numbers", "calls", "errors", "launch", "times")

if REASON := control.why_not():
    pytest.skip(REASON, allow_module_level=True)


def _run(*command: Any, **options: Any) -> Any:
    """Run a script on the stand-in; options as of its `environment`."""
    return run_python(*command, environment=control.environment(**options))


def _check(folder: Path, out: Path, *arguments: Any, device: str = "{}", **native: str) -> Any:
    """Run the command of a folder; `device` says how kernels misbehave, as JSON."""
    return run_python(
        *(folder / "check_gpu.py", "--out", out, *SHORT, *arguments),
        environment={**control.environment(), "GPU_DEVICE": device, **native},
        folders=(PROGRAMS / "gpu_device",),
    )


def _rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


def _things(rows: Iterable[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["unit"], row["what"]): row for row in rows if row["event"] == "thing"}


def _ends(rows: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Return how each unit ended, those apart that say what the machine is."""
    ended = [row for row in rows if row["event"] == "end"]
    return {r["unit"]: r["status"] for r in ended if not r["unit"].startswith("machine/")}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory, warm_store: Store) -> Path:
    """Pack a kernel in two types, and a tuning; one for several GPUs is left out."""
    place = tmp_path_factory.mktemp("gpu")
    shutil.copytree(warm_store.root, place / "store")
    names = [word for name in ("add[m=1024", TUNING, FAR_TUNING) for word in ("-k", name)]
    options = ["--store", place / "store", "--no-wheels"]
    done = _run(SCRIPTS / "pack.py", place / "packed", *names, *options)
    assert done.returncode == 0, done.stderr
    return place / "packed"


@pytest.fixture(scope="module")
def whole(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run everything; give the folder of results."""
    out = tmp_path_factory.mktemp("whole")
    has_native = native_build.why_not() is None
    native = {"PALLASC_NATIVE": str(native_build.build())} if has_native else {}
    done = _check(packed, out, "-k", VARIANT, "-k", TUNING, **native)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.parametrize(
    ("there", "status", "words"),
    [
        (None, 2, "already exists"),
        ("jax==0.1.2\nnumpy==2.0\n", 1, "and 0.1.2 on the machine with the GPU"),
        ("Package Version\n------- -------\nnumpy   2.0\n", 1, "there.txt does not list packages"),
    ],
)
def test_packing_is_refused(there: str | None, status: int, words: str, tmp_path: Path) -> None:
    new, options = tmp_path / "new", []
    if there is None:
        new.mkdir()
    else:
        (tmp_path / "there.txt").write_text(there)
        options = ["--there", tmp_path / "there.txt"]
    done = _run(SCRIPTS / "pack.py", new, *options)
    assert done.returncode == status
    assert words in done.stderr
    assert [*new.rglob("*")] == []


def test_a_packed_folder_holds_what_its_manifest_says_and_names_no_folder_of_the_machine(
    packed: Path,
) -> None:
    manifest = json.loads((packed / "MANIFEST.json").read_text())
    files = [path for path in packed.rglob("*") if path.is_file()]
    assert [path for path in files if str(ROOT).encode() in path.read_bytes()] == []
    digests = {
        path.relative_to(packed).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.name != "MANIFEST.json" and path.parent.name != "__pycache__"
    }
    assert manifest["files"] == digests
    assert {"check_gpu.py", "variants.json", "library.pallasc", "add.jax"} <= set(digests)
    assert manifest["versions"]["jax"]
    packed_args = {
        row["id"]: [*row["args"]] for row in json.loads((packed / "variants.json").read_text())
    }
    assert packed_args == {VARIANT: ["x", "y"], OTHER: ["x", "y"], TUNING: ["q", "k", "v"]}


def test_a_whole_run_answers_everything_or_says_what_is_missing(whole: Path) -> None:
    rows = _rows(whole)
    ends, things = _ends(rows), _things(rows)
    assert set(ends.values()) == {"done"}
    assert {unit.partition("/")[0] for unit in ends} == set(PARTS)
    for adapter in ("numpy", "device arrays", "DLPack", "JAX", "JAX in jit"):
        assert things[f"numbers/{VARIANT}", adapter]["right"] is True, adapter
    assert things[f"numbers/{TUNING}", "numpy"]["right"] is True
    for way in ("load", "graph of the driver", "threads", "JAX in a loop"):
        assert things[f"calls/{way}", "numbers"]["right"] is True, way
    exported = things["calls/jax.export", "numbers"]
    if native_build.why_not() or importlib.util.find_spec("flatbuffers") is None:
        assert "missing" in exported
    else:
        assert exported["right"] is True
    tuned = things["calls/tune run", "numbers"]
    assert (tuned["right"], tuned["keys"][0]["winner"]) == (True, TUNING)
    assert TUNING in (whole / "tune_attention.jsonl").read_text()
    launches = {what for unit, what in things if unit == "launch/pallasc"}
    assert {"raw", "checked", "unchecked"} <= launches
    assert things[f"times/{VARIANT}", "pallasc"]["cold"]["repeats"] == 2
    assert "JAX runs on cpu" in things[f"times/{VARIANT}", "JAX"]["missing"]
    # Whatever is not installed: each question has an answer, or says why not.
    assert [key for key, row in things.items() if len(row) <= 5] == []


def test_errors_are_as_expected_and_reported_with_their_tracebacks(whole: Path) -> None:
    things = _things(_rows(whole))
    rows = {key: row for key, row in things.items() if key[0].startswith("errors/")}
    assert [key for key, row in rows.items() if not row["right"]] == []
    memory = rows["errors/memory that is not valid", "too much memory"]["raised"]
    assert (memory["type"], memory["code"], bool(memory["hint"])) == ("OutOfMemoryError", 2, True)
    waiting = rows["errors/an illegal address", "waiting for it"]["raised"]
    assert "earlier asynchronous error" in waiting["message"]
    assert "Traceback" in waiting["traceback"]


def test_wrong_numbers_and_a_broken_context_lose_one_kernel_only(
    packed: Path, tmp_path: Path
) -> None:
    how = {"numbers/add[m=1024,dtype=f32]": "error", "numbers/add[m=1024,dtype=bf16]": "wrong"}
    chosen = ["--parts", "numbers", "-k", "add[", "-k", TUNING]
    done = _check(packed, tmp_path, *chosen, device=json.dumps(how))
    assert done.returncode == 1
    rows = _rows(tmp_path)
    assert _ends(rows) == {
        f"numbers/{VARIANT}": "failed", f"numbers/{OTHER}": "done", f"numbers/{TUNING}": "done",
    }  # fmt: skip
    things = _things(rows)
    failure = things[f"numbers/{VARIANT}", "failure"]["error"]
    assert failure["code"] == 700
    assert "Traceback" in failure["traceback"]
    wrong = things[f"numbers/{OTHER}", "numpy"]
    assert wrong["right"] is False
    assert wrong["wrong"] == wrong["compared"] >= 8 * 4096
    assert things[f"numbers/{TUNING}", "numpy"]["right"] is True


def test_a_machine_without_a_gpu_is_told(packed: Path, tmp_path: Path) -> None:
    done = _run(packed / "check_gpu.py", "--out", tmp_path, *SHORT, devices="")
    assert done.returncode == 4
    assert "no GPU can be used here" in done.stderr


def test_the_summary_makes_a_table_and_a_record(whole: Path, packed: Path, tmp_path: Path) -> None:
    record = tmp_path / "gpu.json"
    done = _run(packed / "summary.py", whole / "results.jsonl", "--json", record)
    assert done.returncode == 0, done.stdout
    assert "2 of 2 right  numpy, 2 with the same bytes" in done.stdout
    assert "× times: JAX runs on cpu here" in done.stdout
    kept = json.loads(record.read_text())
    assert kept["machine"]["gpu"] == "Stand-in H100"
    assert kept["problems"] == []
    assert kept["units"][f"numbers/{VARIANT}"]["numpy"]["right"] is True
    assert "Traceback" not in record.read_text()
    assert str(ROOT) not in record.read_text()
