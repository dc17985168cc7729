"""An export is a module of tvm-ffi: the real package calls it."""

import shutil
import sys
from pathlib import Path

import c_exports
import page_programs
import pytest
import standin as control
from processes import PROGRAMS, captured, run_python

RELEASE = "0.1.15.post2"
PAGE = page_programs.DOCS / "native.md"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder of packages with tvm-ffi."""
    folder = tmp_path_factory.mktemp("tvm")
    command = ["-m", "pip", "install", "--quiet", "--timeout", "20", "--retries", "1"]
    wanted = ["--target", folder, f"apache-tvm-ffi=={RELEASE}"]
    answer = captured([sys.executable, *command, *wanted])
    if answer.returncode:
        last = (answer.stderr or answer.stdout).strip().splitlines()[-1:]
        pytest.skip(f"no {wanted[-1]} from a package index: {' '.join(last)}")
    return folder


@pytest.mark.skipif(shutil.which("cc") is None, reason="no cc on the PATH")
def test_tvm_ffi_calls_the_kernels(site: Path, tmp_path: Path) -> None:
    library = c_exports.build_with_cc(c_exports.export(tmp_path), tmp_path / "build")
    program = tmp_path / "page.py"
    (text,) = (text for text in page_programs.blocks(PAGE, "python") if "tvm_ffi" in text)
    program.write_text(text)
    done = run_python(
        PROGRAMS / "tvm_calls.py", library, program, environment=control.environment(),
        folders=(site,),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "5 launches\n"), done.stderr
