"""Compile the programs of this folder's tests in separate processes, each file once per session.

Mosaic supports one architecture per process, and JAX must be imported with pallasc's environment,
so no test here imports JAX itself.
"""

import base64
import functools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from commands import output_of

from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.plan import LaunchPlan

PROGRAMS = Path(__file__).parent / "programs"


@dataclass(frozen=True)
class Result:
    """The result of one case."""

    name: str
    data: dict[str, Any]

    @property
    def error(self) -> dict[str, Any]:
        """The error; the test fails if there is none."""
        assert "error" in self.data, f"{self.name} compiled"
        error: dict[str, Any] = self.data["error"]
        return error

    @property
    def record(self) -> dict[str, Any]:
        """The artifact's record; the test fails if there is none."""
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


def build_once(
    output: Path, file: Path, targets: str, *names: str, **options: Any
) -> dict[str, Result]:
    """Compile the cases of `file` in a new process."""
    output_of([sys.executable, PROGRAMS / "build.py", output, targets, file, *names], **options)
    return read_results(output)


def read_results(output: Path) -> dict[str, Result]:
    """Return the results that a process has written, by case."""
    return {name: Result(name, data) for name, data in json.loads(output.read_text()).items()}


@pytest.fixture(scope="session")
def build(shared: Callable[..., Path]) -> Builder:
    """Return a function that compiles a file of `programs/` for targets, once per session."""

    @functools.cache
    def run(file: str, targets: str = "h100-sxm") -> dict[str, Result]:
        def fill(folder: Path) -> None:
            build_once(folder / "results.json", PROGRAMS / f"{file}.py", targets)

        return read_results(shared(f"compiled-{file}-{targets}", fill) / "results.json")

    return run


@pytest.fixture(scope="session")
def marked() -> Callable[[str, str], tuple[Path, int]]:
    """Return a function that finds the line that a comment marks in a file of `programs/`."""

    def place(file: str, name: str) -> tuple[Path, int]:
        path = PROGRAMS / f"{file}.py"
        lines = path.read_text().splitlines()
        (line,) = [i for i, text in enumerate(lines, 1) if text.endswith(f"# HERE {name}")]
        return path, line

    return place


@pytest.fixture
def build_alone(tmp_path: Path) -> Builder:
    """Return a function that compiles some cases of a file of `programs/` in a new process."""

    def run(file: str, targets: str, *names: str) -> dict[str, Result]:
        return build_once(tmp_path / "results.json", PROGRAMS / f"{file}.py", targets, *names)

    return run


@pytest.fixture(scope="session")
def functions(build: Any) -> Any:
    """Return functions that call kernels, by name."""
    return build("functions")
