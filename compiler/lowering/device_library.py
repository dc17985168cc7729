"""NVIDIA's device library: Mosaic GPU must take it from the toolchain of the record.

For its own kernels XLA has an option (`xla_compile`). Mosaic GPU has none: it takes the first
folder of a fixed list (`tsl::CandidateCudaRoots`) that holds a device library: `cuda_sdk_lib` in
the current folder, those beside the program, `/usr/local/cuda`, `/opt/cuda`, and then the wheels.

The program, where that is Python, is the first word of the command line that is no option of
Python's. A worker is started with `-X` and a path of its own there, which Python ignores, and puts
the toolchain beside it. In another process nothing can be put there; where the folders in front
hold another library, XLA compiles in a process of its own (`xla_process`).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

TOOLKIT = "toolkit"
"""What a worker's command line names, in the folder of its temporary files."""

_BESIDE = ("rules_ml_toolchain++cuda_redist_init_ext+cuda_nvcc", "cuda_nvcc")
"""What the folder beside the program is called, from JAX 0.12 on and before."""

_OF_THE_SYSTEM = (Path("/usr/local/cuda"), Path("/opt/cuda"))
_LIBRARY = Path("nvvm", "libdevice", "libdevice.10.bc")


def offer(toolkit: Path, folder: Path) -> None:
    """Put a toolkit where Mosaic looks first in a worker.

    Args:
        toolkit: the folder with `nvvm/libdevice`.
        folder: of the worker's temporary files, as its command line names it.
    """
    beside = folder / f"{TOOLKIT}.runfiles"
    beside.mkdir(exist_ok=True)
    for name in _BESIDE:
        with contextlib.suppress(FileExistsError):
            (beside / name).symlink_to(toolkit)


def other_library(toolkit: Path) -> str:
    """Return where the device library lies that Mosaic would take instead of `toolkit`'s, or ""."""
    for root in _roots():
        place = root / _LIBRARY
        if place.parent.is_dir():
            return "" if _contents(place) == _contents(toolkit / _LIBRARY) else str(place)
    return ""


def _roots() -> Iterator[Path]:
    """Yield the folders that come before the wheels, in Mosaic's order."""
    yield Path("cuda_sdk_lib")
    words = [word for word in sys.orig_argv[1:] if not word.startswith("-")]
    for name in _BESIDE:
        yield Path(f"{words[0] if words else ''}.runfiles", name)
    yield from _OF_THE_SYSTEM


def _contents(place: Path) -> bytes:
    try:
        status = os.stat(place)
        return _read(place, status.st_size, status.st_mtime_ns)
    except OSError:
        return b""


@lru_cache(maxsize=8)
def _read(place: Path, *state: int) -> bytes:
    """Return a file's bytes; `state` says which file it was."""
    return place.read_bytes()
