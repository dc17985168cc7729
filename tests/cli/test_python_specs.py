"""Python spec files on the command line, and what a build that reads none of them leaves alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pallasc.compiler.workers.worker_process import Worker

STARTERS = {
    "pallasc.compiler.workers.pool",
    "pallasc.compiler.workers.warden",
    "pallasc.compiler.workers.worker_process",
    "subprocess",
}
FOR_MISSES_AND_ERRORS = {
    "pallasc.compiler.inputs.manifest", "pallasc.specs.loading.select",
    "pallasc.specs.loading.lock", "difflib", "hmac", "pkgutil", "random", "secrets", "shutil",
    "sqlite3", "tempfile", "traceback",
}  # fmt: skip
"""Modules that a build which finds everything has no use for; each takes a noticeable time."""

KERNEL = "import pallasc\n@pallasc.kernel(args=['f32[8]'], targets=['sm_90a'])\ndef k(x): pass\n"


def _imported_with(module: str) -> set[str]:
    """Return the modules that a module of Python imports: 3.13 imports `tempfile` for this one."""
    command = [sys.executable, "-I", "-c", f"import {module}, sys; print(*sys.modules)"]
    return {*subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()}


def test_a_build_that_finds_all_imports_nothing_that_starts_processes(
    process: Any, built: Any, tmp_path: Path
) -> None:
    modules = tmp_path / "modules"
    result = process("build", *built.arguments, modules=modules)
    assert result.code == 0
    loaded = {*modules.read_text().splitlines()}
    assert "pallasc.compiler.builds.collect" in loaded
    assert loaded & STARTERS == set()
    assert loaded & FOR_MISSES_AND_ERRORS <= _imported_with("importlib.metadata")
    assert built.modules >= STARTERS, "the names are those of the modules that do"


@pytest.mark.parametrize("command", ["list", "lock --update"])
def test_every_command_stops_a_spec_that_takes_too_long(
    command: str, run: Any, tmp_path: Path
) -> None:
    loops = tmp_path / "loops.py"
    loops.write_text("import time\ntime.sleep(600)\n")
    store = str(tmp_path / "store")
    result = run(*command.split(), str(loops), "--timeout", "0.5", "--store", store)
    assert result.code == 2
    assert f"error: {loops}" in result.err
    assert "took longer than 0.5 s (--timeout)" in result.err


def test_what_a_spec_prints_is_told_beside_json(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "spec.py"
    path.write_text(f"print('{{}}')\n{KERNEL}")
    for _ in range(2):  # executed, and then remembered
        result = run("list", path, "--store", tmp_path / "store", "--json")
        assert result.err == f"warning: while {path} was read: stdout: {{}}\n"
        assert [row["name"] for row in json.loads(result.out)["variants"]] == ["k"]


SHARED = """\
from pallasc.specs.library import elementwise


def double(x):
    return elementwise.add(x, x, block_size=1024)
"""
OTHER = """\
schema: 1
targets: [sm_90a]
kernels:
  - {name: plain, entry: "kernels.py:double", args: ["f32[1024]"]}
"""


def test_a_folder_means_both_kinds_and_an_added_variant_costs_only_itself(
    run: Any, tmp_path: Path
) -> None:
    """One matrix in a Python file apart from its kernel: edits to it lower nothing again."""
    folder = tmp_path / "specs"
    folder.mkdir()
    (folder / "kernels.py").write_text(SHARED)
    (folder / "other.yaml").write_text(OTHER)
    declared = folder / "declared.py"

    def build(name: str, shapes: list[int]) -> dict[str, str]:
        calls = [
            f'pallasc.declare(entry="kernels.py:double", name="{name}{rows}", '
            f'args=["f32[{rows}, 1024]"], targets=["sm_90a"])'
            for rows in shapes
        ]
        declared.write_text("import pallasc\n" + "\n".join(calls) + "\n")
        result = run("build", folder, "--store", tmp_path / "store", "--json")
        assert result.code == 0, result.err
        return {row["name"]: row["status"] for row in json.loads(result.out)["variants"]}

    assert build("k", [1, 2]) == {"k1": "compiled", "k2": "compiled", "plain": "compiled"}
    assert build("k", [1, 2, 4]) == {
        "k1": "hit", "k2": "hit", "k4": "compiled", "plain": "hit",
    }  # fmt: skip
    assert set(build("renamed", [1, 4]).values()) == {"hit"}


def test_a_spec_whose_process_dies_or_hangs_fails_alone_and_all_reports_say_so(
    run: Any, built: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    junit, seconds = tmp_path / "report.xml", Worker.seconds
    ends, hangs = tmp_path / "ends.py", tmp_path / "hangs.py"
    ends.write_text("import os\nprint('bye', flush=True)\nos._exit(0)\n")
    hangs.write_text("import threading\nthreading.Event().wait()\n")

    def of_one(worker: Any) -> float | None:
        """Let the first one end, however long that takes on a busy machine."""
        return seconds(worker) if worker.request.path.endswith("hangs.py") else 0.0

    monkeypatch.setattr(Worker, "seconds", of_one)
    more = ("--timeout", "0.5", "--json", "--junit", junit, "--annotations", "github")
    result = run("build", *built.arguments, ends, hangs, *more)
    report = json.loads(result.out)
    assert result.code == 2
    assert [variant["status"] for variant in report["variants"]] == ["hit", "hit"]
    first, second = report["errors"]
    assert (first["file"], second["file"]) == (str(ends), str(hangs))
    assert "ended with exit code 0" in first["message"]
    assert "bye" in first["message"]
    assert "took longer than 0.5 s" in second["message"]
    assert ElementTree.parse(junit).getroot().get("errors") == "2"
    assert result.err.count("::error ") == 2
    assert "Traceback" not in result.err
    result = run("build", *built.arguments, ends, "--fail-fast")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: ")
    assert "hit" not in result.err
