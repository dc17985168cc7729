"""NumPy arrays as bytes of device memory and back, in the layout that a plan specifies.

Elements of fewer than eight bits are packed, the first in the low bits. Arrays passed by a caller
are checked against the kernel's signature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from pallasc.errors import ArgumentError
from pallasc.specs.arrays import DTYPES, array_text
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.spelling import an


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """Return NumPy's dtype for a dtype of a plan; small dtypes come from ml_dtypes."""
    known = DTYPES[name].jax_name.rstrip("_")
    return np.dtype(getattr(ml_dtypes, known) if hasattr(ml_dtypes, known) else known)


def to_bytes(array: npt.ArrayLike, binding: Binding) -> npt.NDArray[np.uint8]:
    """Convert an array to the bytes passed to a kernel.

    Raises:
        ArgumentError: its dtype or shape differs from the binding's.
    """
    values = np.asarray(array)
    dtype = numpy_dtype(binding.dtype)
    if values.dtype != dtype or values.shape != binding.shape:
        raise ArgumentError(
            f"{binding.path}: got {values.dtype}{list(values.shape)}, "
            f"needs {dtype}{list(binding.shape)}"
        )
    if binding.layout is not None:
        values = values.transpose(binding.layout[::-1])
    flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    bits = DTYPES[binding.dtype].bits
    return flat if bits >= 8 else _packed(flat, bits)


def from_bytes(data: npt.NDArray[np.uint8], binding: Binding) -> npt.NDArray[np.generic]:
    """Return the array stored in these bytes, as a copy."""
    dtype = numpy_dtype(binding.dtype)
    count = math.prod(binding.shape)
    bits = DTYPES[binding.dtype].bits
    if bits >= 8:
        values = data[: count * dtype.itemsize].copy().view(dtype)
    else:
        values = _unpacked(data, bits, count).view(dtype)
    if binding.layout is None:
        return values.reshape(binding.shape)
    stored = tuple(binding.shape[d] for d in binding.layout[::-1])
    back = np.argsort(binding.layout[::-1])
    return np.ascontiguousarray(values.reshape(stored).transpose(back))


def of_devices(binding: Binding, count: int) -> Binding:
    """Return a binding for the joined arrays of all devices, with the device as first dimension."""
    if count <= 1:
        return binding
    layout = None if binding.layout is None else (*(d + 1 for d in binding.layout), 0)
    return replace(binding, shape=(count, *binding.shape), layout=layout)


def split(array: npt.NDArray[np.generic], count: int) -> list[npt.NDArray[np.generic]]:
    """Split an array that holds the arrays of all devices."""
    return list(array) if count > 1 else [array]


def joined(arrays: Sequence[npt.NDArray[np.generic]]) -> npt.NDArray[np.generic]:
    """Join the arrays of all devices; the array of a single device is returned unchanged."""
    return np.stack(arrays) if len(arrays) > 1 else arrays[0]


def join_bytes(parts: Sequence[bytes], binding: Binding) -> bytes:
    """Join the bytes of each device's array into the bytes of one array; see `of_devices`."""
    arrays = [from_bytes(np.frombuffer(part, np.uint8), binding) for part in parts]
    return to_bytes(joined(arrays), of_devices(binding, len(parts))).tobytes()


def _packed(flat: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    if 8 % bits:
        raise ArgumentError(f"elements of {bits} bits cannot be packed")
    per_byte = 8 // bits
    padded = np.zeros(-(-flat.size // per_byte) * per_byte, np.uint8)
    padded[: flat.size] = flat & ((1 << bits) - 1)
    parts = padded.reshape(-1, per_byte) << (bits * np.arange(per_byte, dtype=np.uint8))
    packed: npt.NDArray[np.uint8] = np.bitwise_or.reduce(parts, axis=1).astype(np.uint8)
    return packed


def _unpacked(data: npt.NDArray[np.uint8], bits: int, count: int) -> npt.NDArray[np.uint8]:
    shifts = bits * np.arange(8 // bits, dtype=np.uint8)
    return ((data[:, None] >> shifts) & ((1 << bits) - 1)).reshape(-1)[:count].astype(np.uint8)


_HINTS = {
    "torch": "Pass {0}.detach().cpu().numpy(), or for bfloat16, "
    "{0}.detach().cpu().view(torch.uint16).numpy().view(ml_dtypes.bfloat16).",
    "jax": "Pass numpy.asarray({0}), outside of jit: inside, its numbers are not known yet.",
    "jaxlib": "Pass numpy.asarray({0}).",
    "cupy": "Pass cupy.asnumpy({0}).",
}
_OTHERWISE = "Pass a NumPy array, or an object that numpy.asarray can convert to one."


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
