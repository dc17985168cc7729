"""The stand-in driver for the tests of the runtime; a real one is not used here."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import made as artifacts
import pytest
import standin as control
import standin_torch as torch_control
from processes import PROGRAMS, run_python

from pallasc.runtime.calls import launch, native_path
from pallasc.runtime.kernel import Kernel
from pallasc.runtime.native.library import extension

FreshProcess = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def _library() -> control.Standin:
    if reason := control.why_not():
        pytest.skip(reason)
    return control.load()


@pytest.fixture
def standin(_library: control.Standin) -> Iterator[control.Standin]:
    """Give the stand-in as after process start; what a kernel function raised fails the test."""
    _library.reset()
    yield _library
    _library.check()
    _library.reset()


@pytest.fixture
def fresh_process(_library: control.Standin) -> FreshProcess:
    """Run Python code in a process that finds the stand-in; keywords as of `environment`.

    The code can `import standin` and steer the driver with `standin.load()`; `reset` there would
    also undo what the keywords say.
    """

    def run(code: str, *arguments: str, **options: Any) -> Any:
        return run_python("-c", code, *arguments, environment=control.environment(**options))

    return run


@pytest.fixture
def runtime(standin: control.Standin) -> Iterator[control.Standin]:
    """Give the stand-in to a runtime that has opened no driver yet."""
    artifacts.forget()
    yield standin
    artifacts.forget()


@pytest.fixture
def framework(runtime: control.Standin) -> artifacts.Framework:
    """Give a framework whose tensors the runtime knows."""
    return artifacts.install()


@pytest.fixture
def adds(runtime: control.Standin) -> Kernel:
    """Give a kernel that adds two arrays."""
    return artifacts.adder(runtime)


@pytest.fixture
def native() -> Any:
    """Give the extension `_native`; a test that needs it is skipped where it was not built."""
    found = extension()
    if found is None:
        pytest.skip("the extension is not built for this Python, or PALLASC_NATIVE is 0")
    return found


@pytest.fixture
def python_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let launches go through cuda-python even where the C library is there."""
    monkeypatch.setattr(native_path, "extension", lambda: None)
    monkeypatch.setattr(launch, "_library", lambda: None)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Count what reaches the slow path, of kernels that are made after this."""
    seen: list[str] = []
    start = Kernel._start

    def counting(self: Kernel, *args: Any, **named: Any) -> Any:
        seen.append(self.name)
        return start(self, *args, **named)

    monkeypatch.setattr(Kernel, "_start", counting)
    return seen


@pytest.fixture(scope="session")
def torch_process(tmp_path_factory: pytest.TempPathFactory) -> FreshProcess:
    """Run a program of programs/ where a stock torch has CUDA tensors; JSON comes back."""
    if reason := torch_control.why_not():
        pytest.skip(f"no CUDA tensors here: {reason}")
    environment = torch_control.environment(tmp_path_factory.mktemp("torch"), devices="9.0,9.0")

    def run(program: str, *arguments: str | Path, devices: str = "9.0,9.0") -> Any:
        variables = {**environment, "STANDIN_DEVICES": devices}
        done = run_python(PROGRAMS / program, *arguments, environment=variables)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run
