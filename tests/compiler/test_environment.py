"""The folder of tools that a compiling process finds first."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from pallasc.compiler.toolchain.setup import tool_folder
from pallasc.compiler.toolchain.toolchain import find_toolchain


def test_the_wheels_folder_serves_as_it_is() -> None:
    toolchain = find_toolchain()
    assert tool_folder(toolchain) == (toolchain.ptxas.parent, None)


def test_another_assembler_gets_a_folder_of_links(tmp_path: Path) -> None:
    other = tmp_path / "ptxas-13.0"
    other.write_text("")
    toolchain = replace(find_toolchain(), ptxas=other)
    folder, keep = tool_folder(toolchain)
    assert keep is not None
    assert (folder / "ptxas").resolve() == other
    assert toolchain.nvlink is None or (folder / "nvlink").resolve() == toolchain.nvlink.resolve()
    keep.cleanup()
    assert not folder.exists()
