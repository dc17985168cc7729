"""Compile the programs of this folder's tests, each file once a session, in processes of their own.

Mosaic takes one architecture a process, and JAX may not be imported with another environment than
pallasc's, so no test here imports JAX itself.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from pallasc.specs.artifact import Artifact
from pallasc.specs.plan import LaunchPlan

PROGRAMS = Path(__file__).parent / "programs"
JAX = tuple(int(part) for part in metadata.version("jax").split(".")[:2])


@dataclass(frozen=True)
class Result:
    """What came out of one case."""

    name: str
    data: dict[str, Any]

    @property
    def error(self) -> dict[str, Any]:
        """The error; the test fails where there is none."""
        assert "error" in self.data, f"{self.name} compiled"
        error: dict[str, Any] = self.data["error"]
        return error

    @property
    def record(self) -> dict[str, Any]:
        """The artifact's record; the test fails where there is none."""
        assert "error" not in self.data, self.data["error"]["text"]
        record: dict[str, Any] = self.data["record"]
        return record

    @cached_property
    def blobs(self) -> dict[str, bytes]:
        return {key: base64.b64decode(text) for key, text in self.data["blobs"].items()}

    @cached_property
    def artifact(self) -> Artifact:
        return Artifact(self.record, self.blobs.__getitem__)

    @property
    def plan(self) -> LaunchPlan:
        return self.artifact.plan

    @property
    def executable(self) -> bytes:
        return base64.b64decode(self.data["executable"])

    @property
    def key(self) -> str:
        return str(self.data["key"])


Builder = Callable[..., dict[str, Result]]


def run_build(
    output: Path, file: Path, targets: str, *names: str, **options: Any
) -> dict[str, Result]:
    """Compile the cases of `file` in a fresh process."""
    command = [sys.executable, PROGRAMS / "build.py", output, targets, file, *names]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert answer.returncode == 0, answer.stderr
    return {name: Result(name, data) for name, data in json.loads(output.read_text()).items()}


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    """Return a function that compiles a file of `programs/` for targets, once a session."""
    found: dict[tuple[str, str], dict[str, Result]] = {}

    def run(file: str, targets: str = "h100-sxm") -> dict[str, Result]:
        if (file, targets) not in found:
            output = tmp_path_factory.mktemp("build") / "results.json"
            found[file, targets] = run_build(output, PROGRAMS / f"{file}.py", targets)
        return found[file, targets]

    return run


@pytest.fixture(scope="session")
def compiling_environment() -> dict[str, str]:
    """Return the environment of a process that compiles."""
    from pallasc.compiler.environment import compiling_environment as environment
    from pallasc.compiler.environment import tool_folder
    from pallasc.compiler.toolchain import find_toolchain

    folder, keep = tool_folder(find_toolchain())
    assert keep is None
    return environment(os.environ, folder)
