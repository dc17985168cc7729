"""The stand-in driver for the tests of the runtime; they use no real driver."""

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
    """Yield the stand-in as after process start; errors of kernel functions fail the test."""
    _library.reset()
    yield _library
    _library.check()
    _library.reset()


@pytest.fixture
def fresh_process(_library: control.Standin) -> FreshProcess:
    """Return a function that runs Python code in a process with the stand-in.

    Its keywords are those of `environment`. The code can `import standin` and control the driver
    with `standin.load()`, but `reset` would also undo the settings of the keywords.
    """

    def run(code: str, *arguments: str, **options: Any) -> Any:
        return run_python("-c", code, *arguments, environment=control.environment(**options))

    return run


@pytest.fixture
def runtime(standin: control.Standin) -> Iterator[control.Standin]:
    """Yield the stand-in, for a runtime that has not opened a driver yet."""
    artifacts.forget()
    yield standin
    artifacts.forget()


@pytest.fixture
def framework(runtime: control.Standin) -> artifacts.Framework:
    """Return a framework whose tensors the runtime supports."""
    return artifacts.install()


@pytest.fixture
def adds(runtime: control.Standin) -> Kernel:
    """Return a kernel that adds two arrays."""
    return artifacts.adder(runtime)


@pytest.fixture
def native() -> Any:
    """Return the extension `_native`; skip the test if it was not built."""
    found = extension()
    if found is None:
        pytest.skip("the extension is not built for this Python, or PALLASC_NATIVE is 0")
    return found


@pytest.fixture
def python_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make launches go through cuda-python even if the C library is available."""
    monkeypatch.setattr(native_path, "extension", lambda: None)
    monkeypatch.setattr(launch, "_library", lambda: None)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that records calls on the slow path, of kernels that are made after this."""
    seen: list[str] = []
    start = Kernel._start

    def counting(self: Kernel, *args: Any, **named: Any) -> Any:
        seen.append(self.name)
        return start(self, *args, **named)

    monkeypatch.setattr(Kernel, "_start", counting)
    return seen


@pytest.fixture(scope="session")
def torch_process(tmp_path_factory: pytest.TempPathFactory) -> FreshProcess:
    """Return a function that runs a program of programs/ with CUDA tensors of torch; gives JSON."""
    if reason := torch_control.why_not():
        pytest.skip(f"no CUDA tensors here: {reason}")
    environment = torch_control.environment(tmp_path_factory.mktemp("torch"), devices="9.0,9.0")

    def run(program: str, *arguments: str | Path, devices: str = "9.0,9.0") -> Any:
        variables = {**environment, "STANDIN_DEVICES": devices}
        done = run_python(PROGRAMS / program, *arguments, environment=variables)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run
