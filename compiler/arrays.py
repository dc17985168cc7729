"""Arrays of kernels: random numbers, .npy and .npz files, bytes in device memory, comparisons.

numpy is imported only when it is needed.

Random numbers are the same for the same seed on every machine. They are random bits, some of which
are fixed, so that every pattern is a number that kernels can compute with:

* floating point: either sign, magnitudes from 1/8 up to 2, neither infinity nor NaN. The magnitudes
  differ for types whose exponent has fewer than four bits or another bias
* integers of up to 8 bits: all values; wider integers, which are often counts or indices: 0 to 15
* `bool`: either

In files, types that numpy lacks are stored as their bits: bf16 as `<u2`, fp8 as `|u1`. The forms
that ml_dtypes writes, `<V2`, `<V1`, and `<f1`, can also be read. Types under eight bits take one
byte per element in the file, and are packed on the device, first element in the lowest bits.
"""

from __future__ import annotations

import io
import math
import random
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pallasc.errors import ArgumentError, SpecError, ToolError
from pallasc.specs.arrays import parse_dtype
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.spec import Tolerance

_LONGEST_HEAD_BYTES = 1 << 14
"""Larger than any header that numpy accepts."""
_OWN = re.compile(r"bool|[iu](8|16|32|64)|f(16|32|64)|c(64|128)")
"""Short names of the types that numpy has."""
_EIGHT_BIT_FLOAT = re.compile(rb"'[<|]f1'")
"""Type in the header of a .npy file for 8-bit floats of ml_dtypes; numpy cannot read it."""


def read_input(path: Path, name: str, dtype: str, shape: tuple[int, ...], what: str) -> bytes:
    """Return the bytes of an input as in device memory, row-major.

    Args:
        path: a .npy file, or a .npz file that contains an array with this name.
        name: the input's name.
        dtype: short name of the required element type.
        shape: the required shape.
        what: the kernel's name in messages.

    Raises:
        SpecError: the file cannot be read, or is damaged.
        ArgumentError: the array has a different type or shape.
        ToolError: numpy is not installed.
    """
    array, shown = _loaded(path, name, dtype, shape, what)
    bits = parse_dtype(dtype).bits
    data: bytes = array.tobytes()
    packed = data if bits >= 8 else _packed(data, bits, array.dtype.kind)
    if packed is None:
        raise ArgumentError(f"{what}: {shown} holds numbers that are not {dtype}.")
    return packed


def check_input(path: Path, name: str, dtype: str, shape: tuple[int, ...], what: str) -> None:
    """Check dtype and shape of the array that `read_input` would read.

    Raises:
        SpecError, ArgumentError, ToolError: as `read_input`.
    """
    _loaded(path, name, dtype, shape, what)


def names_in(path: Path) -> list[str]:
    """Return the names of the arrays in a .npz file.

    Raises:
        SpecError: the file cannot be read, or is not a .npz archive.
    """
    with _reading(path):
        import zipfile

        names = zipfile.ZipFile(path).namelist()
    return sorted(name.removesuffix(".npy") for name in names if name.endswith(".npy"))


def named_with_devices(name: str, count: int) -> str:
    """Return a kernel's name for messages about files, whose first dimension is the devices."""
    return f"{name} on {count} devices (the first dimension in files)" if count > 1 else name


@contextmanager
def needing_numpy(problem: str) -> Iterator[None]:
    """Raise a `ToolError` that begins with `problem` if numpy or ml_dtypes is not installed."""
    try:
        yield
    except ImportError as error:
        raise ToolError(
            f"{problem}: {error}.",
            hint="Run pip install 'pallasc[emulate]', which brings numpy and ml_dtypes.",
        ) from error


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn errors from reading a file, which may be a damaged archive, into a `SpecError`."""
    try:
        yield
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror or error}.") from error
    except Exception as error:  # whatever zipfile raises for a damaged archive
        raise SpecError(
            f"{path} is not a .npz file, or is damaged: {error}.",
            hint="Write it with numpy.savez, each array under the name of its input.",
        ) from error


def _loaded(
    path: Path, name: str, dtype: str, shape: tuple[int, ...], what: str
) -> tuple[Any, str]:
    """Return the array of an input, and its name in messages."""
    with needing_numpy(f"{path} cannot be read"):
        import numpy as np
    import zipfile

    with _reading(path):
        data, shown = path.read_bytes(), f"{name}: {path}"
        if data.startswith(b"PK"):
            data = zipfile.ZipFile(io.BytesIO(data)).read(f"{name}.npy")
            shown = f"{name} in {path}"
    head = data[:_LONGEST_HEAD_BYTES]
    file = io.BytesIO(_EIGHT_BIT_FLOAT.sub(b"'|u1'", head, count=1) + data[len(head) :])
    try:
        with warnings.catch_warnings(action="ignore"):
            found = np.lib.format.read_array(file, allow_pickle=False)
        is_plain = found.dtype.kind in "biufcV" and not found.dtype.fields
    except Exception:  # noqa: BLE001 - whatever numpy raises for a damaged file
        is_plain = False
    if not is_plain:
        raise SpecError(
            f"{what}: {shown} is not a .npy file of plain numbers, or is damaged.",
            hint="Write it with numpy.save from an array without objects, text or fields.",
        )
    saved, kind = _saved_dtype(dtype), found.dtype
    is_bits = kind.kind == "V" and kind.itemsize == saved.itemsize and not _OWN.fullmatch(dtype)
    if found.shape != tuple(shape) or not (kind == saved or is_bits):
        of_bits = "" if _OWN.fullmatch(dtype) else f", for the bits of {dtype}"
        raise ArgumentError(
            f"{what}: {shown} holds {kind}{list(found.shape)}, and the kernel takes "
            f"{dtype}{list(shape)}.",
            hint=f"Save an array of shape {list(shape)} and of numpy's type {saved.name}{of_bits}.",
        )
    return found, shown


def _saved_dtype(dtype: str) -> Any:
    """Return the numpy dtype of an element type in a file; an integer if numpy lacks the type.

    Raises:
        ArgumentError: files cannot store the type.
    """
    import numpy as np

    bits = parse_dtype(dtype).bits
    if _OWN.fullmatch(dtype):
        return np.dtype(parse_dtype(dtype).jax_name.rstrip("_"))
    if 8 % bits and bits < 8:
        raise ArgumentError(f".npy files have no type for {dtype}.")
    return np.dtype(f"{'i' if dtype.startswith('i') else 'u'}{max(1, bits // 8)}")


def npy_bytes(dtype: str, shape: tuple[int, ...], data: bytes) -> bytes:
    """Return the .npy file of an array whose bytes are given as in device memory.

    Raises:
        ArgumentError: files cannot store the type.
        ToolError: numpy is not installed.
    """
    with needing_numpy("results cannot be written"):
        import numpy as np
    saved = _saved_dtype(dtype)
    array = np.frombuffer(data, np.uint8)
    if (bits := parse_dtype(dtype).bits) < 8:
        array = _unpacked(array, bits, math.prod(shape), signed=saved.kind == "i")
    file = io.BytesIO()
    np.save(file, array.view(saved).reshape(shape))
    return file.getvalue()


def _packed(data: bytes, bits: int, kind: str) -> bytes | None:
    """Pack one-byte elements as in device memory; return None if one has more than `bits` bits."""
    import numpy as np

    elements = np.frombuffer(data, np.uint8)
    if kind == "i":
        fits = np.isin(elements.view(np.int8) >> (bits - 1), (0, -1))
    else:
        fits = elements >> bits == 0
    if kind != "V" and not fits.all():
        return None
    columns = np.unpackbits(elements[:, None], axis=1, count=bits, bitorder="little")
    return np.packbits(columns, bitorder="little").tobytes()


def _unpacked(data: Any, bits: int, count: int, *, signed: bool) -> Any:
    """Unpack elements to one byte each, as an array of uint8 or int8."""
    import numpy as np

    columns = np.unpackbits(data, bitorder="little")[: count * bits].reshape(count, bits)
    elements = np.packbits(columns, axis=1, bitorder="little").reshape(-1)[:count]
    if not signed:
        return elements
    half = 1 << (bits - 1)
    return (elements.astype(np.int8) ^ half) - half


def array_of(
    data: Any, dtype: str, shape: Sequence[int], layout: Sequence[int] | None = None
) -> Any:
    """Return a numpy array made from bytes in device memory, given as an array of uint8.

    Args:
        data: the bytes.
        dtype: short name.
        shape: sizes of the dimensions.
        layout: dimensions, minor to major; None for row-major.

    Raises:
        SpecError: numpy has no such type.
    """
    import numpy as np

    kind, bits = numpy_dtype(dtype), parse_dtype(dtype).bits
    if bits < 8:
        elements = _unpacked(data, bits, math.prod(shape), signed=dtype.startswith("i"))
        return (elements.view if dtype.startswith("f") else elements.astype)(kind).reshape(shape)
    order = list(range(len(shape))) if layout is None else list(reversed(layout))
    return data.view(kind).reshape([shape[dim] for dim in order]).transpose(np.argsort(order))


def bytes_in_layout(data: bytes, shape: Sequence[int], layout: Sequence[int]) -> bytes:
    """Return the bytes of a row-major array in a layout, which lists dimensions minor first.

    Raises:
        ToolError: numpy is not installed.
    """
    with needing_numpy("an array that is not row-major cannot be read"):
        import numpy as np
    items = np.frombuffer(data, f"V{len(data) // max(1, math.prod(shape))}").reshape(shape)
    return items.transpose(tuple(reversed(layout))).tobytes()


def numpy_dtype(dtype: str) -> Any:
    """Return the numpy dtype for a short name.

    Raises:
        SpecError: neither numpy nor ml_dtypes has it.
    """
    import ml_dtypes
    import numpy as np

    name = parse_dtype(dtype).jax_name
    kind = getattr(np, name, None) or getattr(ml_dtypes, name, None)
    if kind is None:
        raise SpecError(f"numpy has no type for {dtype}.", hint="Upgrade ml_dtypes.")
    return np.dtype(kind)


_CHUNK_BYTES = 3 << 18
"""A multiple of every element size, including six bits."""
_WIDEST_OF_ANY_VALUE = 8
_SMALL = 0xF
_FREE_EXPONENT_BITS = 2
_SMALL_FLOAT = re.compile(r"f\de(\d)m(\d)\w*")
_EXPONENT_AND_MANTISSA_BITS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}


def random_bytes(dtype: str, size: int, *, seed: int, name: str) -> bytes:
    """Return random bytes for an array, as in device memory.

    Args:
        dtype: short name of the element type.
        size: number of bytes.
        seed: seed of the numbers.
        name: name of the array; arrays with different names get different numbers.
    """
    return b"".join(_chunks(dtype, size, random.Random(f"{seed} {name} {dtype}")))


def names_by_device(name: str, count: int) -> list[str]:
    """Return the names to pass to `random_bytes` for an array on each of several devices."""
    return [name, *(f"{name} of device {device}" for device in range(1, count))]


def _chunks(dtype: str, size: int, source: random.Random) -> Iterator[bytes]:
    free, fixed = (_repeated(pattern, dtype) for pattern in _bit_patterns(dtype))
    for start in range(0, size, _CHUNK_BYTES):
        bits = int.from_bytes(source.randbytes(_CHUNK_BYTES), "little")
        chunk = (bits & free | fixed).to_bytes(_CHUNK_BYTES, "little")
        yield chunk[: min(size - start, _CHUNK_BYTES)]


def _repeated(pattern: int, dtype: str) -> int:
    """Repeat the pattern of one element to a number that covers a whole chunk."""
    bits = parse_dtype(_part(dtype)).bits
    unit_bytes = math.lcm(bits, 8) // 8
    unit = sum(pattern << at for at in range(0, 8 * unit_bytes, bits))
    repeated = unit.to_bytes(unit_bytes, "little") * (_CHUNK_BYTES // unit_bytes)
    return int.from_bytes(repeated, "little")


def _part(dtype: str) -> str:
    """Return the type of an element, or of its real part if it is complex."""
    return {"c64": "f32", "c128": "f64"}.get(dtype, dtype)


def _bit_patterns(dtype: str) -> tuple[int, int]:
    """Return masks of the random bits and of the set bits of an element, or of its real part."""
    bits = parse_dtype(_part(dtype)).bits
    if dtype == "bool":
        return 1, 0
    if dtype[0] in "iu":
        return ((1 << bits) - 1 if bits <= _WIDEST_OF_ANY_VALUE else _SMALL), 0
    small = _SMALL_FLOAT.match(dtype)
    exponent, mantissa = (
        map(int, small.groups()) if small else _EXPONENT_AND_MANTISSA_BITS[_part(dtype)]
    )
    # The exponent bits of 1.0 are 0111…1. They and the three next smaller exponents differ only in
    # the last two bits.
    first = ((1 << (exponent - 1)) - 1) >> _FREE_EXPONENT_BITS << _FREE_EXPONENT_BITS
    sign = (1 << (bits - 1)) if bits > exponent + mantissa else 0
    free = sign | (((1 << _FREE_EXPONENT_BITS) - 1) << mantissa) | ((1 << mantissa) - 1)
    return free, first << mantissa


# ---- comparison


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The index of an element, its value, and the reference's value, both as text."""

    index: tuple[int, ...]
    got: str
    wanted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The differences of an output from the reference, as `--json` prints them.

    See `compare_arrays`.

    Attributes:
        count: number of elements.
        mismatches: number of elements that differ by more than is allowed.
        rtol, atol: the allowed difference.
        max_abs, max_rel: the largest differences, None without finite numbers.
        first: the first mismatch, None without any.
    """

    count: int
    mismatches: int
    rtol: float
    atol: float
    max_abs: float | None
    max_rel: float | None
    first: Mismatch | None

    def to_json(self) -> dict[str, object]:
        """Return the fields that `--json` prints."""
        return asdict(self)


_SLICE = 1 << 22
"""Number of elements compared at a time, to bound the copies in double precision."""
_ULPS = 4


def settle_tolerance(tolerance: Tolerance | None, dtype: str) -> tuple[float, float]:
    """Return `rtol` and `atol` for results of a type.

    A missing field is 0. Without a tolerance, floating-point numbers may differ by four units in
    the last place, relative to their size or to 1.
    """
    if tolerance is not None:
        return tolerance.rtol or 0.0, tolerance.atol or 0.0
    limit = _ULPS * epsilon(dtype)
    return limit, limit


def epsilon(dtype: str) -> float:
    """Return the distance from 1 to the next number of a type, 0 for integer types."""
    import ml_dtypes

    if dtype == "bool" or dtype[0] in "iu":
        return 0.0
    limits: Any = ml_dtypes.finfo
    return float(limits(numpy_dtype(dtype)).eps)


def compare_arrays(actual: Any, expected: Any, *, rtol: float, atol: float) -> Comparison:
    """Return the differences between two arrays of the same shape.

    Elements match if `|actual - expected| <= atol + rtol * |expected|`, or if both are NaN or the
    same infinity. `max_abs` and `max_rel` cover finite pairs, and are None if there are none;
    `max_rel` skips zeros of the reference.
    """
    import numpy as np

    result, reference = actual.reshape(-1), expected.reshape(-1)
    mismatches, first = 0, None
    max_abs: float | None = None
    max_rel: float | None = None
    for start in range(0, result.size, _SLICE):
        raw = [array[start : start + _SLICE] for array in (result, reference)]
        a, b = map(_widened, raw)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            distance, size = np.abs(a - b), np.abs(b)
            if all(array.dtype.kind in "iu" for array in raw):
                # Adjacent 64-bit integers may be equal in double precision.
                distance[(raw[0] != raw[1]) & (distance == 0)] = 1
            finite = np.isfinite(a) & np.isfinite(b)
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            wrong = np.where(finite, distance > atol + rtol * size, ~same)
            relative = distance[finite & (size > 0)] / size[finite & (size > 0)]
        mismatches += int(np.count_nonzero(wrong))
        if wrong.any() and first is None:
            at = start + int(np.argmax(wrong))
            index = tuple(map(int, np.unravel_index(at, actual.shape)))
            first = Mismatch(index, str(result[at]), str(reference[at]))
        max_abs = _largest(max_abs, distance[finite])
        max_rel = _largest(max_rel, relative)
    return Comparison(
        count=int(result.size),
        mismatches=mismatches,
        rtol=rtol,
        atol=atol,
        max_abs=max_abs,
        max_rel=max_rel,
        first=first,
    )


def _widened(array: Any) -> Any:
    return array.astype("c16" if array.dtype.kind == "c" else "f8")


def _largest(largest: float | None, values: Any) -> float | None:
    if not values.size:
        return largest
    # The distance between two large numbers may be infinite, which JSON cannot express.
    return max(min(float(values.max()), sys.float_info.max), largest or 0.0)


def compare_samples(
    binding: Binding,
    data: bytes,
    positions: Sequence[int],
    values: Sequence[float],
    tolerance: tuple[float, float],
) -> Comparison:
    """Compare some elements of an output with their expected values.

    Args:
        binding: the output.
        data: its bytes.
        positions: indices of the elements in row-major order.
        values: the expected values.
        tolerance: `rtol` and `atol`.

    Raises:
        ToolError: numpy or ml_dtypes is not installed.
    """
    with needing_numpy("results cannot be compared"):
        import numpy as np

        actual = bound_array(binding, data).reshape(-1)[np.array(positions)]
        rtol, atol = tolerance
        compared = compare_arrays(actual, np.array(values, np.float64), rtol=rtol, atol=atol)
        if compared.first is None:
            return compared
        place = np.unravel_index(positions[compared.first.index[0]], binding.shape)
        first = replace(compared.first, index=tuple(map(int, place)))
        return replace(compared, first=first)


def compare_outputs(
    binding: Binding, data: bytes, wanted: bytes, tolerance: tuple[float, float] | None
) -> Comparison:
    """Compare an output with another output of the same type and shape.

    Args:
        binding: the output.
        data: its bytes.
        wanted: the bytes of the other output.
        tolerance: `rtol` and `atol`; None if the kernels may add numbers in different orders.

    Raises:
        ToolError: numpy or ml_dtypes is not installed.
    """
    with needing_numpy("results cannot be compared"):
        actual, expected = bound_array(binding, data), bound_array(binding, wanted)
        rtol, atol = tolerance or _loose_tolerance(expected, binding.dtype)
        return compare_arrays(actual, expected, rtol=rtol, atol=atol)


def bound_array(binding: Binding, data: bytes) -> Any:
    """Return the numpy array of an input or output from its bytes in device memory."""
    import numpy as np

    flat = np.frombuffer(data, np.uint8)
    return array_of(flat, binding.dtype, binding.shape, binding.layout)


def _loose_tolerance(expected: Any, dtype: str) -> tuple[float, float]:
    """Return `rtol` and `atol` that compare half of the digits, for sums in another order.

    `rtol` is the square root of `epsilon`, and `atol` is `rtol` times the root mean square of the
    elements. Integers must be equal.
    """
    import numpy as np

    digits = math.sqrt(epsilon(dtype))
    if not digits:
        return 0.0, 0.0
    wide = np.abs(_widened(expected))
    finite = wide[np.isfinite(wide)]
    return digits, digits * math.sqrt(float(np.mean(finite**2))) if finite.size else 0.0
