"""NVIDIA's device library: Mosaic GPU must take it from the toolchain of the record.

For its own kernels XLA has an option (`xla_compile`). Mosaic GPU has none: it takes the first
folder of a fixed list (`tsl::CandidateCudaRoots`) that holds a device library: `cuda_sdk_lib` in
the current folder, folders next to the program, `/usr/local/cuda`, `/opt/cuda`, then the wheels.

For Python, TSL takes the first word of the command line that is not an option for the program. A
worker is started with `-X` and a path of its own, which Python ignores, and puts the toolchain next
to that path. That is not possible in another process; if a folder that comes first holds another
library, XLA compiles in a process of its own (`xla_process`).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

TOOLKIT = "toolkit"
"""The name that a worker's command line gives, in the folder of its temporary files."""

_BESIDE = ("rules_ml_toolchain++cuda_redist_init_ext+cuda_nvcc", "cuda_nvcc")
"""The names of the folder next to the program, from JAX 0.12 on and before."""

_OF_THE_SYSTEM = (Path("/usr/local/cuda"), Path("/opt/cuda"))
_LIBRARY = Path("nvvm", "libdevice", "libdevice.10.bc")


def offer(toolkit: Path, folder: Path) -> None:
    """Link a toolkit to where Mosaic looks first in a worker.

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
    """Return the device library that Mosaic would take instead of `toolkit`'s, "" for none."""
    for root in _roots():
        place = root / _LIBRARY
        if os.path.isdir(place.parent):  # the text of `python -c` is no path, and may be too long
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
    """Return a file's bytes; `state` identifies the file."""
    return place.read_bytes()
