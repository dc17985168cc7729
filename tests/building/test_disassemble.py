"""SASS, with the real disassembler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pallasc.analysis import nvdisasm
from pallasc.analysis.nvdisasm import sass
from pallasc.compiler.toolchain import toolchain
from pallasc.errors import CorruptError, ToolError


@pytest.fixture(scope="module")
def artifact(make_project: Any) -> Any:
    """Return an artifact with a kernel of Mosaic's and one of XLA's."""
    project = make_project()
    text = (
        "from pallasc.specs.library.elementwise import add\n"
        "def run(x): return add(x, x, block_size=1024).T * 71\n"
    )
    project.write("kernel.py", text)
    project.spec({"name": "kernel", "entry": "kernel.py:run"})
    return project.build().results[0].artifact


def test_each_kernel_has_instructions_of_its_own(artifact: Any) -> None:
    assert {kernel.origin for kernel in artifact.kernels} == {"mosaic", "xla"}
    for kernel in artifact.kernels:
        whole = sass(artifact.cubin(kernel.name))
        part = sass(artifact.cubin(kernel.name), kernel=kernel.name)
        assert "EXIT" in part
        assert part.startswith(f".section\t.text.{kernel.name},")
        assert part.count(".section\t.text.") == 1
        assert len(part) < len(whole)
        assert sass(artifact.cubin(kernel.name), kernel="none") == whole


def test_what_is_no_cubin_is_refused_without_naming_a_temporary_file() -> None:
    with pytest.raises(CorruptError, match="nvdisasm cannot read the cubin") as caught:
        sass(b"\x7fELF" + bytes(100))
    assert "/" not in caught.value.message
    assert caught.value.exit_code == 5


def test_a_disassembler_that_does_not_end_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvdisasm"
    tool.write_text("#!/bin/sh\nexec sleep 1000\n")
    tool.chmod(0o755)
    monkeypatch.setattr(nvdisasm, "find_disassembler", lambda: tool)
    monkeypatch.setattr(nvdisasm, "_LONGEST_S", 0.1)
    with pytest.raises(ToolError, match=r"nvdisasm took longer than 0 s for a cubin of 4 bytes"):
        sass(b"\x7fELF")


def test_sass_needs_no_compiler_but_the_disassembler(
    artifact: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, only = toolchain.find_package, "nvidia-cuda-nvdisasm"
    monkeypatch.setattr(
        toolchain, "find_package", lambda name: found(name) if name == only else None
    )
    assert "EXIT" in sass(artifact.cubin())
    monkeypatch.setattr(toolchain, "find_package", lambda name: None)
    with pytest.raises(ToolError, match="pip install nvidia-cuda-nvdisasm"):
        sass(b"")
