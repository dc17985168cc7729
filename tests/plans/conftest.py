"""Execute the plans of `programs/cases.py` once a session, in a process that compiles."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "programs" / "execute.py"


@pytest.fixture(scope="session")
def executed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what came of each case."""
    output = tmp_path_factory.mktemp("plans") / "results.json"
    command = [sys.executable, "-P", PROGRAM, output]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    results: dict[str, Any] = json.loads(output.read_text())
    return results
