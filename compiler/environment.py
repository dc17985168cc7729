"""What a process must have in its environment before it imports JAX to compile for a GPU.

`JAX_PLATFORMS=cpu` keeps JAX from looking for a GPU, `JAX_SKIP_CUDA_CONSTRAINTS_CHECK` lets the
CUDA plugin register without a driver, and `PATH` decides which `ptxas` XLA runs: it searches `PATH`
first, then the usual folders, then the wheels.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pallasc.compiler.toolchain import Toolchain

COMPILER_PREFIXES = ("XLA_", "JAX_", "MOSAIC_", "TF_", "LLVM_", "NVVM_", "PTXAS_", "LIBTPU_")
"""Variables that reach the compiler: they count in every key."""

_FORCED = {"JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
_DROPPED = (
    "CUDA_VISIBLE_DEVICES",
    "JAX_COMPILATION_CACHE_DIR",
    "JAX_ENABLE_COMPILATION_CACHE",
    # JAX sets these itself when it is imported, so they are there where the caller has done so.
    "MOSAIC_GPU_CUDA_ROOT",
    "MOSAIC_GPU_RUNTIME_LIB_PATH",
    "TF_CPP_MIN_LOG_LEVEL",
)


def compiling_environment(base: Mapping[str, str], tools: Path) -> dict[str, str]:
    """Return `base` changed so that JAX compiles with the assembler in the folder `tools`."""
    result = {key: value for key, value in base.items() if key not in _DROPPED}
    result.update(_FORCED)
    result["PATH"] = os.pathsep.join([str(tools), result.get("PATH", "")])
    return result


def compiler_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that reach the compiler and are not set by pallasc itself."""
    return {
        key: value
        for key, value in sorted(environment.items())
        if key.startswith(COMPILER_PREFIXES) and key not in _FORCED and key not in _DROPPED
    }


def tool_folder(toolchain: Toolchain) -> tuple[Path, tempfile.TemporaryDirectory[str] | None]:
    """Return a folder that holds `ptxas` and `nvlink` of this toolchain under these names.

    The wheel's own folder serves as it is; for another assembler a temporary folder of links is
    made, which lives as long as the second result.
    """
    own = toolchain.nvlink.parent if toolchain.nvlink else toolchain.ptxas.parent
    if toolchain.ptxas == own / "ptxas":
        return own, None
    folder = tempfile.TemporaryDirectory(prefix="pallasc-tools-")
    links = Path(folder.name)
    (links / "ptxas").symlink_to(toolchain.ptxas)
    if toolchain.nvlink is not None:
        (links / "nvlink").symlink_to(toolchain.nvlink)
    return links, folder
