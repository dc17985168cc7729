"""A Python spec whose process dies or hangs fails alone, and every report says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pallasc.compiler.workers.worker_process import Worker

RunCommand = Callable[..., Any]
BROKEN = {
    "ends.py": "import os\nprint('bye', flush=True)\nos._exit(0)\n",
    "hangs.py": "import threading\nthreading.Event().wait()\n",
}


@pytest.fixture
def specs(tmp_path: Path) -> list[Path]:
    """Return two Python specs that cannot be executed."""
    for name, text in BROKEN.items():
        (tmp_path / name).write_text(text)
    return [tmp_path / name for name in BROKEN]


def test_the_others_are_built_and_all_reports_are_right(
    run: RunCommand,
    built: Any,
    specs: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    junit, seconds = tmp_path / "report.xml", Worker.seconds

    def of_one(worker: Any) -> float | None:
        """Let the first one end, however long that takes on a busy machine."""
        return seconds(worker) if worker.request.path.endswith("hangs.py") else 0.0

    monkeypatch.setattr(Worker, "seconds", of_one)
    more = ("--timeout", "0.5", "--json", "--junit", junit, "--annotations", "github")
    result = run("build", *built.arguments, *specs, *more)
    report = json.loads(result.out)
    assert result.code == 2
    assert [variant["status"] for variant in report["variants"]] == ["hit", "hit"]
    assert [Path(error["file"]).name for error in report["errors"]] == list(BROKEN)
    assert "ended with exit code 0" in report["errors"][0]["message"]
    assert "bye" in report["errors"][0]["message"]
    assert "took longer than 0.5 s" in report["errors"][1]["message"]
    assert ElementTree.parse(junit).getroot().get("errors") == "2"
    assert result.err.count("::error ") == 2
    assert "Traceback" not in result.err


def test_fail_fast_ends_at_the_first(run: RunCommand, built: Any, specs: list[Path]) -> None:
    result = run("build", *built.arguments, specs[0], "--fail-fast")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: ")
    assert "hit" not in result.err
