"""Python spec files on the command line, and what a build that reads none of them leaves alone."""

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from commands import output_of

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


def _imported_with(module: str) -> set[str]:
    """Return the modules that a module of Python imports: 3.13 imports `tempfile` for this one."""
    command = [sys.executable, "-I", "-c", f"import {module}, sys; print(*sys.modules)"]
    return {*output_of(command).split()}


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
