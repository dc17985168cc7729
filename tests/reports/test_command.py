"""`pallasc report`, of what a build and a check left in the store."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from processes import captured
from report_case import Built


@pytest.fixture
def folder(built: Built, tmp_path: Path) -> Path:
    """Return a copy of the spec and its store."""
    return Path(shutil.copytree(built.spec.parent, tmp_path / "copy"))


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return captured(
        [sys.executable, "-P", "-m", "pallasc", *arguments, "--store", "store"], cwd=folder
    )


def test_results_of_checks_that_the_store_has_are_shown(folder: Path) -> None:
    chosen = ["kernels.yaml", "-k", "block=1024 and label=plain"]
    report = ["report", *chosen, "-o", "report.html", "-q"]
    assert _run(folder, *report).returncode == 0
    assert "The store has no results of checks" in (folder / "report.html").read_text()
    assert _run(folder, "check", *chosen, "--level", "artifact", "-j", "1").returncode == 0
    assert _run(folder, *report).returncode == 0
    page = (folder / "report.html").read_text()
    assert "Nothing was found in the 1 variant whose results the store has." in page


def test_a_report_needs_a_name_and_writes_nothing_without_specs(folder: Path) -> None:
    done = _run(folder, "report", "kernels.yaml")
    assert done.returncode == 2
    assert "--output" in done.stderr
    done = _run(folder, "report", "nothing.yaml", "-o", "nothing.html")
    assert done.returncode == 2
    assert not (folder / "nothing.html").exists()
