"""What a compiling process has in its environment."""

from __future__ import annotations

import os
from pathlib import Path

from pallasc.compiler.toolchain.environment import (
    compiler_variables,
    compiling_environment,
    tool_folder,
)
from pallasc.compiler.toolchain.toolchain import find_toolchain
from pallasc.specs.variables import SYSTEM_PATH


def test_jax_looks_for_no_gpu_and_finds_the_assembler_first() -> None:
    base = {"PATH": "/usr/bin", "JAX_PLATFORMS": "cuda", "HOME": "/home/x"}
    found = compiling_environment(base, Path("/tools"))
    assert found["PATH"] == f"/tools{os.pathsep}{SYSTEM_PATH}"
    assert found["JAX_PLATFORMS"] == "cpu"
    assert found["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] == "1"
    assert found["HOME"] == "/home/x"
    assert base["JAX_PLATFORMS"] == "cuda"


def test_jaxs_own_cache_is_left_out() -> None:
    base = {"JAX_COMPILATION_CACHE_DIR": "/c", "JAX_ENABLE_COMPILATION_CACHE": "1", "PATH": ""}
    assert not set(base) - {"PATH"} & set(compiling_environment(base, Path("/tools")))


def test_variables_that_reach_the_compiler_are_known_in_order() -> None:
    environment = {
        "XLA_FLAGS": "--x", "MOSAIC_GPU_DUMP_PTX": "1", "JAX_ENABLE_X64": "1", "HOME": "/",
        "JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": "/c", "TF_VAR_region": "eu",
    }  # fmt: skip
    found = compiler_variables(environment)
    assert list(found) == ["JAX_ENABLE_X64", "MOSAIC_GPU_DUMP_PTX", "XLA_FLAGS"]


def test_the_wheels_folder_serves_as_it_is() -> None:
    toolchain = find_toolchain()
    assert tool_folder(toolchain) == (toolchain.ptxas.parent, None)


def test_another_assembler_gets_a_folder_of_links(tmp_path: Path) -> None:
    other = tmp_path / "ptxas-13.0"
    other.write_text("")
    toolchain = find_toolchain()._replace(ptxas=other)
    folder, keep = tool_folder(toolchain)
    assert keep is not None
    assert (folder / "ptxas").resolve() == other
    assert toolchain.nvlink is None or (folder / "nvlink").resolve() == toolchain.nvlink.resolve()
    keep.cleanup()
    assert not folder.exists()
