"""Run Python in other processes, where it finds the modules of the tests."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import standin as control

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"


def captured(command: Iterable[Any], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command, and return how it ended and what it said."""
    words = [*map(str, command)]
    return subprocess.run(words, capture_output=True, text=True, check=False, **options)


def run_python(
    *command: Any, environment: Mapping[str, str], folders: tuple[Path, ...] = ()
) -> Any:
    """Run a program of Python, with JAX on the CPU; `folders` come first on its path."""
    path = [*map(str, (*folders, HERE, PROGRAMS)), environment.get("PYTHONPATH", "")]
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, path)), "JAX_PLATFORMS": "cpu"}
    return captured(
        [sys.executable, "-P", *command], env={**environment, **variables}, timeout=1800
    )


def run_program(name: str, *arguments: Any, **variables: str) -> Any:
    """Run a program of programs/ that loads the stand-in; return the JSON that it prints last."""
    if reason := control.why_not():
        pytest.skip(reason)
    done = run_python(PROGRAMS / name, *arguments, environment={**os.environ, **variables})
    assert done.returncode == 0, done.stderr
    return json.loads((done.stdout.splitlines() or ["null"])[-1])
