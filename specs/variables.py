"""Environment variables of compiling processes: those with a value of their own, and what may vary.

The tables serve `compiler/toolchain/setup`, which says what becomes of each variable, and the
field `env` of a spec.
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
"""Where a worker looks for programs, the assembler's folder aside."""
DROPPED = frozenset(
    {
        "BAZEL_TEST",
        "JAX_COMPILATION_CACHE_DIR",
        "JAX_ENABLE_COMPILATION_CACHE",
        "LANG",
        "LANGUAGE",
        "LOCALTIME",
        "MAKEFLAGS",
        # JAX sets these itself when it is imported, so they are there where the caller has done so.
        "MOSAIC_GPU_CUDA_ROOT",
        "MOSAIC_GPU_NVSHMEM_BC_PATH",  # kernels that use it are refused
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
"""What a worker's process needs, and kernels do not see."""

DECLARABLE = frozenset({"LOGNAME", "TERM", "USER"})
"""Variables with a fixed value that decide nothing but what kernels make of them."""

EXPECTED = frozenset(
    {
        "CLICOLOR", "CLICOLOR_FORCE", "COLORTERM", "COLUMNS", "FORCE_COLOR", "HOME", "LANG",
        "LANGUAGE", "LINES", "LNAME", "NO_COLOR", "PATH", "TEMP", "TMP", "TMPDIR", "USERNAME",
    }
)  # fmt: skip
EXPECTED_PREFIXES = ("LC_", "PYTHON")
"""Who uses it, in which terminal and which language: that is the same for every kernel."""


def why_not_declared(name: str) -> str:
    """Return why a spec cannot declare a variable, "" if it can."""
    if name in DECLARABLE:
        return ""
    if name in FORCED or name in FIXED or name in ("PATH", "TMPDIR"):
        return "has a value of its own in every compiling process"
    if name in PLACES:
        return "says where modules and libraries lie, whose contents count already"
    if name in DROPPED or name.startswith(DROPPED_PREFIXES):
        return "never reaches a compiling process, where it would change Python or the toolchain"
    return ""
