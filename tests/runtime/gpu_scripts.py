"""Programs of the folder for a machine with a GPU, run on the stand-in driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import standin as control

HERE = Path(__file__).parent
SCRIPTS = HERE.parents[1] / "bench" / "gpu"


def run_script(
    *command: Any, environment: dict[str, str] | None = None, device: bool = False
) -> Any:
    """Run a program of Python that finds the modules of the tests.

    Args:
        command: the program and its arguments.
        environment: that of the stand-in where it is None; without a stand-in the test is skipped.
        device: have the stand-in compute what kernels compute.
    """
    if environment is None and (reason := control.why_not()):
        pytest.skip(reason)
    given = environment or control.environment()
    folders = [str(HERE), str(HERE / "programs"), given.get("PYTHONPATH", "")]
    if device:
        folders = [str(HERE / "programs" / "gpu_device"), *folders]
    path = os.pathsep.join(filter(None, folders))
    return subprocess.run(
        [sys.executable, "-P", *map(str, command)],
        env={**given, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
