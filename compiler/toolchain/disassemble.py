"""SASS of a cubin, through NVIDIA's `nvdisasm`."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from pallasc.compiler.toolchain.toolchain import find_disassembler
from pallasc.errors import CorruptError, ToolError

_LONGEST_S = 600.0
"""No cubin of the coverage table takes a minute."""


def sass(cubin: bytes, *, kernel: str | None = None) -> str:
    """Return the SASS of `cubin`, or of a kernel in it.

    Raises:
        ToolError: nvdisasm is not installed, cannot be run, or does not end.
        CorruptError: nvdisasm refuses the cubin.
    """
    text = disassembly(cubin, "-ndf", "-c")
    return _of_kernel(text, kernel) if kernel else text


def disassembly(cubin: bytes, *options: str) -> str:
    """Return what nvdisasm writes about `cubin` with these options.

    Raises:
        ToolError: nvdisasm is not installed, cannot be run, or does not end.
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
        try:
            answer = subprocess.run(
                [tool, *options, file], capture_output=True, check=False, timeout=_LONGEST_S
            )
        except subprocess.TimeoutExpired:
            raise ToolError(
                f"nvdisasm took longer than {_LONGEST_S:.0f} s for a cubin of {len(cubin):,} "
                "bytes, and was stopped."
            ) from None
        except OSError as error:
            raise ToolError(f"nvdisasm cannot be run: {error}") from error
    if answer.returncode:
        said = answer.stderr.decode(errors="replace").replace(str(file), "the cubin")
        raise CorruptError(f"nvdisasm cannot read the cubin: {_reason(said, answer.returncode)}")
    return answer.stdout.decode(errors="replace")


def _reason(said: str, status: int) -> str:
    """Return the first of nvdisasm's complaints, which are two for each damaged instruction."""
    lines = said.split("\n")
    first = next(filter(None, map(str.strip, lines)), f"it ended with status {status}")
    return re.sub(r"^nvdisasm (?:error|fatal) *: *", "", first)


def _of_kernel(text: str, kernel: str) -> str:
    """Return the part of a disassembly that belongs to a kernel's section."""
    start = text.find(f".section\t.text.{kernel},")
    if start < 0:
        return text
    end = text.find("\n\t.section", start + 1)
    return text[start : end if end >= 0 else len(text)] + "\n"
