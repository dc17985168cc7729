"""Launch what is installed in an environment, on the stand-in driver."""

import json
import os
import subprocess
from collections.abc import Sequence
from typing import Any

from environments import PROGRAMS, ROOT, Environment


def run(
    user: Environment, standin: Any, *arguments: str, devices: str
) -> subprocess.CompletedProcess[str]:
    """Run `launch.py` with arguments on a GPU, where there is no JAX."""
    runtime = ROOT / "tests" / "runtime"
    path = os.pathsep.join([str(runtime), str(runtime / "programs")])
    driver = standin.environment(devices=devices)
    steering = {k: v for k, v in driver.items() if k.startswith(("STANDIN_", "LD_"))}
    words = ["-P", PROGRAMS / "launch.py", *arguments]
    return user.run(*words, cwd=user.folder, PYTHONPATH=path, **steering)


def launch(user: Environment, standin: Any, package: str, arch: str, devices: str) -> Any:
    """Launch them, and return what became of each kernel."""
    done = run(user, standin, package, arch, devices=devices)
    assert done.returncode == 0, done.stdout
    return json.loads(done.stdout.splitlines()[-1])


def check_launched(found: Any, kernels: Sequence[str], model: str) -> None:
    """Check that kernels were launched as they should, those that were compiled for a model."""
    assert sorted(found) == sorted(kernels)
    for kernel in found.values():
        assert kernel["id"].endswith(f"@{model}")
        assert (kernel["arrived"], kernel["right"], kernel["launches"]) == ([True], True, 1), kernel
