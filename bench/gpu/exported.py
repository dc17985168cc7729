"""A process that launches what was exported: `exported.py jax|c FILE FOLDER [BUNDLE]`.

FILE is of `jax.export`, opened with the runtime alone, or the library that `pallasc bundle export
--c` wrote. FOLDER has inputs, 0.npy and 1.npy, and gets result.npy. BUNDLE is opened before.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

_LONGEST_S = 120


def launched(
    way: str, file: Path, folder: Path, inputs: Sequence[Any], bundle: Path | None = None
) -> tuple[Any, str]:
    """Return the result of a fresh process, or None, and what it said."""
    for number, array in enumerate(inputs):
        np.save(folder / f"{number}.npy", array)
    result = folder / "result.npy"
    result.unlink(missing_ok=True)
    path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-P", __file__, way, file, folder, *([bundle] if bundle else [])],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
        capture_output=True,
        text=True,
        check=False,
        timeout=_LONGEST_S,
    )
    found = np.load(result) if done.returncode == 0 and result.exists() else None
    return found, done.stderr


def _by_jax(file: Path, inputs: Sequence[Any]) -> Any:
    from jax import export

    import pallasc

    pallasc.register_jax_handlers()
    return np.asarray(export.deserialize(bytearray(file.read_bytes())).call(*inputs))


class _Tensor(ctypes.Structure):
    """`pallasc_tensor` of the header that is exported."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("rank", ctypes.c_size_t),
    )


def _by_c(file: Path, inputs: Sequence[Any]) -> Any:
    """Launch by the exported library, in memory of pallasc; the result is like the first input."""
    from arrays import device_arrays, from_device

    library = ctypes.CDLL(str(file))
    library.kernels_last_error.restype = ctypes.c_char_p
    named = {str(number): array for number, array in enumerate(inputs)}
    arrays = [*device_arrays({**named, "out": np.zeros_like(inputs[0])}).values()]
    passed = (_Tensor * len(arrays))()
    for tensor, array in zip(passed, arrays, strict=True):
        sizes = (ctypes.c_int64 * len(array.shape))(*array.shape)
        tensor.data, tensor.dtype = array.pointer, array.dtype.encode()
        tensor.shape, tensor.rank = sizes, len(array.shape)
    size = ctypes.c_size_t()
    status = library.kernels_add_prepare(0, passed, len(arrays), ctypes.byref(size))
    if not status:
        status = library.kernels_add(0, passed, len(arrays), None, ctypes.c_size_t(0), None)
    if status or size.value:
        raise SystemExit(f"status {status}: {library.kernels_last_error().decode()}")
    return from_device(arrays[-1])


def main() -> None:
    """Launch once, and write the result."""
    import pallasc

    way, file, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    opened = [pallasc.open_bundle(bundle) for bundle in sys.argv[4:]]
    inputs = [np.load(folder / f"{number}.npy") for number in range(2)]
    np.save(folder / "result.npy", {"jax": _by_jax, "c": _by_c}[way](file, inputs))
    del opened  # a bundle is open as long as somebody has it


if __name__ == "__main__":
    main()
