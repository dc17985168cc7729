"""An export is a module of tvm-ffi: the real package calls it, in an environment of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import c_exports
import page_programs
import pytest
import standin as control

RELEASE = "0.1.15.post2"
RUNTIME_TESTS = Path(__file__).parents[1]
PAGE = page_programs.DOCS / "native.md"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the Python of an environment with tvm-ffi."""
    folder = tmp_path_factory.mktemp("tvm") / "environment"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    made = folder / "bin" / "python"
    wanted = [f"apache-tvm-ffi=={RELEASE}", "numpy"]
    command = ["-m", "pip", "install", "--quiet", "--timeout", "20", "--retries", "1", *wanted]
    answer = subprocess.run([made, *command], capture_output=True, text=True, check=False)
    if answer.returncode:
        last = (answer.stderr or answer.stdout).strip().splitlines()[-1:]
        pytest.skip(f"no {wanted[0]} from a package index: {' '.join(last)}")
    return made


@pytest.mark.skipif(shutil.which("cc") is None, reason="no cc on the PATH")
def test_tvm_ffi_calls_the_kernels(python: Path, tmp_path: Path) -> None:
    library = c_exports.build_with_cc(c_exports.export(tmp_path), tmp_path / "build")
    program = tmp_path / "page.py"
    (text,) = (text for text in page_programs.blocks(PAGE, "python") if "tvm_ffi" in text)
    program.write_text(text)
    calls = RUNTIME_TESTS / "programs" / "tvm_calls.py"
    environment = {**control.environment(), "PYTHONPATH": str(RUNTIME_TESTS)}
    done = subprocess.run(
        [python, calls, library, program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "5 launches\n"), done.stderr
