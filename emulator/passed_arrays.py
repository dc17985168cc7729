"""Arrays passed by a caller: converted with NumPy, and checked against the kernel's signature."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pallasc.emulator.arrays import numpy_dtype, of_devices
from pallasc.errors import ArgumentError
from pallasc.specs.arrays import DTYPES, array_text
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.spelling import an

_HINTS = {
    "torch": "Pass {0}.detach().cpu().numpy(); of a bfloat16 tensor that of "
    "{0}.view(torch.uint16), with .view(ml_dtypes.bfloat16) behind it.",
    "jax": "Pass numpy.asarray({0}), outside of jit: inside, its numbers are not known yet.",
    "jaxlib": "Pass numpy.asarray({0}).",
    "cupy": "Pass cupy.asnumpy({0}).",
}
_OTHERWISE = "Pass an array of NumPy, or something that numpy.asarray makes one of."


def passed_array(value: Any, binding: Binding, kernel: str, devices: int) -> npt.NDArray[Any]:
    """Convert an argument to the NumPy array that a kernel takes.

    Args:
        value: the argument.
        binding: the array that it is passed for.
        kernel: the kernel's name in messages.
        devices: number of devices that run the kernel together; with several, the first dimension
            of the array is the device.

    Raises:
        ArgumentError: it cannot be read as an array, or has another dtype or shape.
    """
    what = f"{kernel}: {binding.path or 'the argument'}"
    array = _read(value, what, binding.path or "x")
    needed = of_devices(binding, devices)
    taken = array_text(needed.dtype, needed.shape)
    kind = numpy_dtype(needed.dtype)
    if array.dtype != kind:
        own = "ml_dtypes" if kind.isbuiltin == 2 else "numpy"
        raise ArgumentError(
            f"{what} has dtype {_short(array.dtype)}, and the kernel takes {taken}.",
            hint=f"Convert it: numpy.asarray({binding.path or 'x'}, {own}.{kind.name}).",
        )
    if array.shape != needed.shape:
        of_all = f"The first dimension is the {devices} devices that run the kernel together."
        raise ArgumentError(
            f"{what} has shape {list(array.shape)}, and the kernel takes {taken}.",
            hint=of_all if devices > 1 else "Compile the function for this shape.",
        )
    return array


def _read(value: Any, what: str, name: str) -> npt.NDArray[Any]:
    kind = type(value)
    hint = _HINTS.get(kind.__module__.partition(".")[0], _OTHERWISE).format(name)
    if value is None or isinstance(value, str | bytes):
        article = "None" if value is None else an(kind.__name__)
        raise ArgumentError(f"{what} must be an array, not {article}.", hint=hint)
    try:
        array: npt.NDArray[Any] = np.asarray(value)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ArgumentError(
            f"{what} is {an(kind.__name__)} that NumPy cannot read: {reason}.", hint=hint
        ) from error
    if array.dtype.hasobject:
        raise ArgumentError(f"{what} must be an array, not {an(kind.__name__)}.", hint=hint)
    return array


def _short(dtype: np.dtype[Any]) -> str:
    """Return the short name of a NumPy dtype, or its own name if there is none."""
    return next((name for name in DTYPES if numpy_dtype(name) == dtype), str(dtype))
