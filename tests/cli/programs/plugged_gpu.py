"""The stand-in driver of tests/runtime for tests of the command line, in this process."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "runtime"))

import made
import standin

sys.path.pop(0)

H100 = standin.Device("9.0", name="NVIDIA H100 80GB HBM3")


@contextmanager
def plugged_in() -> Iterator[standin.Standin]:
    """Give the driver as after process start, to a runtime that has not opened it."""
    if reason := standin.why_not():
        pytest.skip(reason)
    driver = standin.load()
    driver.reset()
    driver.devices(H100)
    made.forget()
    yield driver
    made.forget()
    driver.check()
    driver.reset()


def add_kernel(change: Callable[[Any], None] | None = None, *, rows: int = 1024) -> Any:
    """Return what the library's `add` does on the GPU, once for a whole launch.

    Args:
        change: is given the result, to spoil it.
        rows: of 4096 elements.
    """
    from pallasc.runtime.adapters.numpy_arrays import numpy_dtype

    def add(launch: Any) -> None:
        # The stand-in does not know the dtype; the size of the memory tells it.
        address = launch.pointer(0)
        size = standin.load().allocation(address)[1]
        dtype = numpy_dtype("f32" if size == 4 * rows * 4096 else "bf16")
        x, y, out = (_view(launch.pointer(n), size, dtype, rows) for n in range(3))
        out[...] = (x.astype("float32") + y.astype("float32")).astype(dtype)
        if change is not None:
            change(out)

    return add


def _view(address: int, size: int, dtype: Any, rows: int) -> Any:
    import ctypes

    import numpy as np

    memory = (ctypes.c_ubyte * size).from_address(address)
    return np.frombuffer(memory, dtype).reshape(rows, 4096)
