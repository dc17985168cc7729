"""The script in front of the assembler: the same cubin, and what was said of it."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pallasc.compiler.lowering.resources import Reports, Spills, first_on_path, parse_warnings
from pallasc.compiler.toolchain.toolchain import find_toolchain

OPTIONS = ("-arch=sm_90a", "--warn-on-spills", "-maxrregcount=32")


@pytest.fixture
def reports(tmp_path: Path) -> Reports:
    folder = tmp_path / "it's here"
    folder.mkdir()
    return Reports(find_toolchain().ptxas, folder)


def _ptx(numbers: int) -> str:
    """Return a kernel that keeps so many numbers until the end."""
    names = range(numbers)
    loads = "\n".join(f"ld.volatile.global.u32 %r{n}, [%p+{4 * n}];" for n in names)
    stores = "\n".join(f"st.volatile.global.u32 [%p+{4 * n}], %r{n};" for n in names)
    return (
        ".version 8.7\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 a) {\n"
        f".reg .b64 %p;\n.reg .b32 %r<{numbers}>;\nld.param.u64 %p, [a];\n"
        f"{loads}\nbar.sync 0;\n{stores}\nret;\n}}\n"
    )


def _assemble(ptxas: Path, folder: Path, numbers: int) -> tuple[bytes, str]:
    """Assemble as Mosaic does; return the cubin and what was said."""
    source, output = folder / f"{numbers}.ptx", folder / f"{numbers}-{ptxas.parent.name}.cubin"
    source.write_text(_ptx(numbers))
    command = [ptxas, source, "-o", output, *OPTIONS]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    return output.read_bytes(), answer.stderr


def test_cubins_and_words_are_the_assemblers_own(reports: Reports, tmp_path: Path) -> None:
    sizes = [4, 40, 48, 56, 64, 72]
    with ThreadPoolExecutor() as pool:
        through = [*pool.map(lambda n: _assemble(reports.folder / "ptxas", tmp_path, n), sizes)]
    for size, (cubin, said) in zip(sizes, through, strict=True):
        assert (cubin, said) == _assemble(find_toolchain().ptxas, tmp_path, size)
        assert reports.of(cubin) == said
    few, many = through[0], through[-1]
    assert parse_warnings(few[1], "k", 0) == Spills(0, 0, 0)
    spilled = parse_warnings(many[1], "k", 168)
    assert spilled.store_bytes > 0
    assert spilled.load_bytes > 0
    assert parse_warnings(many[1], "other", 8) == Spills(8, 0, 0)


def test_of_what_was_assembled_elsewhere_nothing_is_known(reports: Reports, tmp_path: Path) -> None:
    cubin, _ = _assemble(find_toolchain().ptxas, tmp_path, 4)
    assert reports.of(cubin) is None


def test_an_error_comes_through(reports: Reports, tmp_path: Path) -> None:
    source = tmp_path / "wrong.ptx"
    source.write_text("nonsense")
    command = [reports.folder / "ptxas", source, "-o", tmp_path / "no.cubin", *OPTIONS]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    direct = subprocess.run(
        [find_toolchain().ptxas, *command[1:]], capture_output=True, text=True, check=False
    )
    assert answer.returncode == direct.returncode != 0
    assert answer.stderr == direct.stderr


def test_without_its_folder_the_script_only_assembles(reports: Reports, tmp_path: Path) -> None:
    (reports.folder / "said").rmdir()
    cubin, said = _assemble(reports.folder / "ptxas", tmp_path, 64)
    assert (cubin, said) == _assemble(find_toolchain().ptxas, tmp_path, 64)
    assert reports.of(cubin) is None


def test_path_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/a:/b")
    with first_on_path(Path("/x")):
        with first_on_path(Path("/y"), Path("/z")):
            assert os.environ["PATH"] == "/y:/z:/x:/a:/b"
        assert os.environ["PATH"] == "/x:/a:/b"
    assert os.environ["PATH"] == "/a:/b"
