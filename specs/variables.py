"""Environment variables of compiling processes: the fixed ones, and those that may vary.

These tables are used by `compiler/toolchain/setup`, which assigns each variable to a group, and by
the `env` field of specs.
"""

from __future__ import annotations

FORCED = {"JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
FIXED = {
    "LC_ALL": "C.UTF-8",
    "LOGNAME": "pallasc",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "TERM": "dumb",
    "TZ": "UTC",
    "USER": "pallasc",
}
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
"""Search path of workers for programs, in addition to the assembler's folder."""
DROPPED = frozenset(
    {
        "BAZEL_TEST",
        "JAX_COMPILATION_CACHE_DIR",
        "JAX_ENABLE_COMPILATION_CACHE",
        "LANG",
        "LANGUAGE",
        "LOCALTIME",
        "MAKEFLAGS",
        # JAX sets these itself on import, so they are set if the caller imported JAX.
        "MOSAIC_GPU_CUDA_ROOT",
        "MOSAIC_GPU_NVSHMEM_BC_PATH",  # kernels that use it are rejected
        "MOSAIC_GPU_NVSHMEM_SO_PATH",
        "MOSAIC_GPU_RUNTIME_LIB_PATH",
        "NPROC",
        "PJRT_NPROC",
        "RUNFILES_DIR",
        "TF_CPP_MIN_LOG_LEVEL",
        "TPU_SKIP_MDS_QUERY",
    }
)
DROPPED_PREFIXES = (
    "CUDA_", "GOTO_", "INTEL_", "KMP_", "LC_", "MKL_", "NVIDIA_", "NVTX_", "OMP_", "OPENBLAS_",
    "PYTHON", "__PYVENV_",
)  # fmt: skip
WHERE_MODULES_LIE = frozenset(
    {
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONHOME",
        "PYTHONNOUSERSITE",
        "PYTHONPATH",
        "PYTHONPLATLIBDIR",
        "PYTHONPYCACHEPREFIX",
        "PYTHONUSERBASE",
    }
)
PLACES = WHERE_MODULES_LIE | {"LD_LIBRARY_PATH", "NIX_LD", "NIX_LD_LIBRARY_PATH"}
"""Variables that a worker's process needs and kernels cannot see."""

DECLARABLE = frozenset({"LOGNAME", "TERM", "USER"})
"""Variables with a fixed value that affect only kernels that read them."""

EXPECTED = frozenset(
    {
        "CLICOLOR", "CLICOLOR_FORCE", "COLORTERM", "COLUMNS", "FORCE_COLOR", "HOME", "LANG",
        "LANGUAGE", "LINES", "LNAME", "NO_COLOR", "PATH", "TEMP", "TMP", "TMPDIR", "USERNAME",
    }
)  # fmt: skip
EXPECTED_PREFIXES = ("LC_", "PYTHON")
"""Variables that describe the user, the terminal, and the language; the same for all kernels."""


def why_not_declared(name: str) -> str:
    """Return why a spec cannot declare a variable, or "" if it can."""
    if name in DECLARABLE:
        return ""
    if name in FORCED or name in FIXED or name in ("PATH", "TMPDIR"):
        return "has its own value in every compiling process"
    if name in PLACES:
        return "locates modules and libraries, whose contents are in every key already"
    if name in DROPPED or name.startswith(DROPPED_PREFIXES):
        return "never reaches a compiling process, where it would change Python or the toolchain"
    return ""
