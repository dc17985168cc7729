"""SASS, with the real disassembler."""

from __future__ import annotations

from pathlib import Path

import pytest

from pallasc.analysis import nvdisasm
from pallasc.analysis.nvdisasm import sass
from pallasc.errors import CorruptError, ToolError


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
