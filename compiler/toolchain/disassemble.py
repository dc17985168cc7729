"""SASS of a cubin, through NVIDIA's `nvdisasm`."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from pallasc.compiler.toolchain.toolchain import find_disassembler
from pallasc.errors import CorruptError, ToolError


def sass(cubin: bytes, *, kernel: str | None = None) -> str:
    """Return the SASS of `cubin`, or of a kernel in it.

    Raises:
        ToolError: nvdisasm is not installed, or cannot be run.
        CorruptError: nvdisasm refuses the cubin.
    """
    tool = find_disassembler()
    if tool is None:
        raise ToolError(
            "nvdisasm is not installed, so there is no SASS to show.",
            hint="Install it with: pip install nvidia-cuda-nvdisasm",
        )
    with tempfile.TemporaryDirectory(prefix="pallasc-sass-") as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        answer = subprocess.run(
            [tool, "-ndf", "-c", file], capture_output=True, text=True, check=False
        )
    if answer.returncode:
        reason = answer.stderr.replace(str(file), "the cubin").strip()
        raise CorruptError(f"nvdisasm cannot read the cubin: {reason}")
    return _of_kernel(answer.stdout, kernel) if kernel else answer.stdout


def _of_kernel(text: str, kernel: str) -> str:
    """Return the part of a disassembly that belongs to a kernel's section."""
    start = text.find(f".section\t.text.{kernel},")
    if start < 0:
        return text
    end = text.find("\n\t.section", start + 1)
    return text[start : end if end >= 0 else len(text)] + "\n"
