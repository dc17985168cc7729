"""Cubins made by ptxas, and work in another thread."""

import functools
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

_CUDA_MAJOR = int(version("cuda-bindings").partition(".")[0])
NO_PARAMETERS = (None,) if _CUDA_MAJOR >= 13 else ()
"""First argument of `cuCtxCreate`, which it has since CUDA 13."""


@functools.cache
def ptxas() -> Path:
    from pallasc.compiler.toolchain.toolchain import find_toolchain
    from pallasc.errors import PallascError

    try:
        return find_toolchain().ptxas
    except PallascError as error:
        pytest.skip(f"no ptxas to make cubins with: {error.message}")


def assemble(entries: str, arch: str) -> bytes:
    """Return a cubin for `arch` ("sm_90a") with these entries."""
    number = int(arch.removeprefix("sm_").rstrip("af"))
    version = "9.0" if number >= 100 else "8.8" if number >= 90 else "8.0"
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "kernels.ptx", Path(folder) / "kernels.cubin"
        source.write_text(f".version {version}\n.target {arch}\n.address_size 64\n{entries}")
        subprocess.run([ptxas(), "-arch", arch, source, "-o", made], check=True)
        return made.read_bytes()


def in_thread(work: Callable[[], Any]) -> Any:
    """Return what something returns in a thread of its own, or raise what it raises."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()
