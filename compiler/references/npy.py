r"""Arrays in .npy files, read and written without numpy: a kernel takes bytes anyway.

Format `.npy`: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html

    file   := "\x93NUMPY" major minor length header data
    length := bytes of the header, 2 in version 1 and 4 in versions 2 and 3, little-endian
    header := Python literal {"descr": str, "fortran_order": bool, "shape": (int, ...)}

Types that numpy lacks are stored as their bits: bf16 as `<u2`, fp8 as `|u1`. What ml_dtypes makes
of them, `<V2`, `<V1` and `<f1`, is read too. Types under eight bits take one byte for each element
in the file, and are packed on the device, first element in the lowest bits.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pallasc.errors import ArgumentError, SpecError
from pallasc.specs.dtypes import parse_dtype

if TYPE_CHECKING:
    import zipfile

_MAGIC = b"\x93NUMPY"
_HEADER_UNIT = 64  # numpy aligns the data to it, so that they can be memory-mapped
_LONGEST_HEADER_BYTES = 1 << 16
LONGEST_HEAD_BYTES = _LONGEST_HEADER_BYTES + 64
_NUMPY = {"i": "int", "u": "uint", "f": "float", "c": "complex"}
_KINDS = {"bool": "b", "i": "i", "u": "u", "f": "f", "c": "c"}
_DESCRIPTION = re.compile(r"[<|>=][biufcV]\d{1,3}")
_OWN = re.compile(r"bool|[iu](8|16|32|64)|f(16|32|64)|c(64|128)")
"""What numpy has a type for."""


@dataclass(frozen=True, slots=True)
class Npy:
    """What a file holds: type in numpy's notation, shape, elements in row-major order."""

    descr: str
    shape: tuple[int, ...]
    data: bytes


def read_array(path: Path, dtype: str, shape: tuple[int, ...], what: str) -> bytes:
    """Return the bytes of an array as they lie in device memory.

    Args:
        path: the file.
        dtype: short name of the element type that it must have.
        shape: the shape that it must have.
        what: what the array is called in messages.

    Raises:
        SpecError: the file cannot be read, or is not a .npy file.
        ArgumentError: it holds another array.
    """
    with _refusing(path):
        data = path.read_bytes()
    return array_bytes(data, dtype, shape, what, name=str(path))


def array_bytes(data: bytes, dtype: str, shape: tuple[int, ...], what: str, *, name: str) -> bytes:
    """Return the bytes of an array as they lie in device memory.

    Args:
        data: the bytes of a .npy file.
        dtype: short name of the element type that it must have.
        shape: the shape that it must have.
        what: what the array is called in messages.
        name: what the file is called in messages.

    Raises:
        SpecError: it is not a .npy file.
        ArgumentError: it holds another array.
    """
    array = parse_npy(data, name)
    check_type(array.descr, array.shape, dtype, shape, what, name=name)
    descr = array.descr.replace("|", "<")
    bits = parse_dtype(dtype).bits
    if bits >= 8:
        return array.data
    if descr == "<i1" and array.data.translate(None, _values_of(bits)):
        raise ArgumentError(f"{what}: {name} holds numbers that are not {dtype}.")
    if descr == "<u1" and array.data and max(array.data) >> bits:
        raise ArgumentError(f"{what}: {name} holds numbers that are not {dtype}.")
    return pack(array.data, bits)


def check_type(
    descr: str,
    found: tuple[int, ...],
    dtype: str,
    shape: tuple[int, ...],
    what: str,
    *,
    name: str,
) -> None:
    """Check type and shape of an array in a file.

    Args:
        descr: its type, in numpy's notation.
        found: its shape.
        dtype: short name of the element type that it must have.
        shape: the shape that it must have.
        what: what the array is called in messages.
        name: what the file is called in messages.

    Raises:
        ArgumentError: they are others.
    """
    accepted = {kind.replace("|", "<") for kind in descriptions(dtype)}
    if found == tuple(shape) and descr.replace("|", "<") in accepted:
        return
    numpys = _numpy_name(descriptions(dtype)[0])
    bits = "" if _OWN.fullmatch(dtype) else f", for the bits of {dtype}"
    raise ArgumentError(
        f"{what}: {name} holds {_short_name(descr)}{list(found)}, and the kernel takes "
        f"{dtype}{list(shape)}.",
        hint=f"Save an array of shape {list(shape)} and of numpy's type {numpys}{bits}.",
    )


def _short_name(descr: str) -> str:
    """Return a type in numpy's notation as specs write it: `<f4` is f32."""
    kind, size = descr[1], int(descr[2:])
    name = "bool" if kind == "b" else f"V{size}" if kind == "V" else f"{kind}{8 * size}"
    return f"big-endian {name}" if descr[0] == ">" and size > 1 else name


def _numpy_name(descr: str) -> str:
    """Return what numpy calls a type: `<f4` is float32."""
    if descr[1] == "b":
        return "bool"
    return f"{_NUMPY[descr[1]]}{8 * int(descr[2:])}"


def npy_bytes(dtype: str, shape: tuple[int, ...], data: bytes) -> bytes:
    """Return the file of an array, whose bytes are given as they lie in device memory."""
    bits = parse_dtype(dtype).bits
    if bits < 8:
        data = unpack(data, bits, math.prod(shape), signed=dtype.startswith("i"))
    fields = {"descr": descriptions(dtype)[0], "fortran_order": False, "shape": tuple(shape)}
    header = repr(fields).encode()
    start = len(_MAGIC) + 4
    padding = -(start + len(header) + 1) % _HEADER_UNIT
    header += b" " * padding + b"\n"
    return _MAGIC + b"\x01\x00" + len(header).to_bytes(2, "little") + header + data


def descriptions(dtype: str) -> tuple[str, ...]:
    """Return the types in numpy's notation that stand for an element type; the first is written.

    Raises:
        ArgumentError: files have none for it.
    """
    bits = parse_dtype(dtype).bits
    size = max(1, bits // 8)
    order = "|" if size == 1 else "<"
    if _OWN.fullmatch(dtype):
        return (f"{order}{_KINDS['bool' if dtype == 'bool' else dtype[0]]}{size}",)
    if 8 % bits and bits < 8:
        raise ArgumentError(f".npy files have no type for {dtype}.")
    kind = "i" if dtype.startswith("i") else "u"
    names = f"{order}{kind}{size}", f"{order}V{size}"
    return (*names, "|f1") if dtype.startswith("f8") else names


def parse_npy(data: bytes, name: str) -> Npy:
    """Return what a file holds.

    Args:
        data: its bytes.
        name: what it is called in messages.

    Raises:
        SpecError: it is not a NumPy file, is cut off, or its array is not row-major.
    """
    descr, shape, end = parse_head(data, name)
    array = Npy(descr, shape, data[end:])
    expected = math.prod(shape) * int(descr[2:])
    if len(array.data) != expected:
        raise SpecError(f"{name} is damaged: {len(array.data)} bytes instead of {expected}.")
    return array


def parse_head(data: bytes, name: str) -> tuple[str, tuple[int, ...], int]:
    """Return type and shape of an array, and where its data begin.

    Raises:
        SpecError: as `parse_npy`.
    """
    if not data.startswith(_MAGIC) or len(data) < len(_MAGIC) + 4:
        raise SpecError(f"{name} is not a .npy file.", hint="Write it with numpy.save.")
    width = 2 if data[len(_MAGIC)] == 1 else 4
    start = len(_MAGIC) + 2 + width
    end = start + int.from_bytes(data[start - width : start], "little")
    fields = _header(data[start:end]) if end - start <= _LONGEST_HEADER_BYTES else None
    if fields is None or end > len(data):
        raise SpecError(
            f"{name} holds no array of plain numbers: its header cannot be read.",
            hint="Write it with numpy.save from an array without objects, text or fields.",
        )
    descr, fortran, shape = fields
    if fortran and sum(size != 1 for size in shape) > 1:
        raise SpecError(
            f"{name} holds its array column by column.",
            hint="Save numpy.ascontiguousarray of it.",
        )
    return descr, shape, end


def _header(text: bytes) -> tuple[str, bool, tuple[int, ...]] | None:
    """Return type, order and shape; None where these are not plain numbers."""
    try:
        fields: Any = ast.literal_eval(text.decode("latin-1").strip())
        descr, fortran, shape = (fields[key] for key in ("descr", "fortran_order", "shape"))
    except (SyntaxError, ValueError, TypeError, KeyError, RecursionError, MemoryError):
        return None
    is_plain = isinstance(descr, str) and _DESCRIPTION.fullmatch(descr) is not None
    is_shape = isinstance(shape, tuple) and all(type(size) is int and size >= 0 for size in shape)
    return (descr, bool(fortran), shape) if is_plain and is_shape else None


def _values_of(bits: int) -> bytes:
    """Return the bytes that signed numbers of so many bits take in a file."""
    half = 1 << (bits - 1)
    return bytes(number & 0xFF for number in range(-half, half))


def pack(data: bytes, bits: int) -> bytes:
    """Return elements of a byte each as they lie in device memory; high bits are dropped."""
    per_byte = 8 // bits
    data += bytes(-len(data) % per_byte)
    low = bytes(number & ((1 << bits) - 1) for number in range(256))
    size = len(data) // per_byte
    together = 0
    for at in range(per_byte):
        part = data[at::per_byte].translate(low)
        together |= int.from_bytes(part, "little") << (at * bits)
    return together.to_bytes(size, "little")


def unpack(data: bytes, bits: int, count: int, *, signed: bool) -> bytes:
    """Return packed elements with a byte for each."""
    per_byte = 8 // bits
    elements = bytearray(len(data) * per_byte)
    for at in range(per_byte):
        table = bytes(_value(byte >> (at * bits), bits, signed) for byte in range(256))
        elements[at::per_byte] = data.translate(table)
    return bytes(elements[:count])


def _value(byte: int, bits: int, signed: bool) -> int:
    low = byte & ((1 << bits) - 1)
    return (low - (1 << bits)) & 0xFF if signed and low >> (bits - 1) else low


def read_input(path: Path, name: str, dtype: str, shape: tuple[int, ...], what: str) -> bytes:
    """Return the bytes of an input: `read_named` of an archive, `read_array` of another file."""
    if _is_archive(path):
        return read_named(path, name, dtype, shape, what)
    return read_array(path, dtype, shape, f"{what}: {name}")


def check_input(path: Path, name: str, dtype: str, shape: tuple[int, ...], what: str) -> None:
    """Check what `read_input` would find, by the head of the file: neither numbers nor its end.

    Raises:
        SpecError: the file cannot be read, or holds no such array.
        ArgumentError: it holds another array.
    """
    if _is_archive(path):
        shown = f"{name} in {path}"
        with _archive(path) as archive, archive.open(f"{name}.npy") as file:
            head = file.read(LONGEST_HEAD_BYTES)
    else:
        shown, what = str(path), f"{what}: {name}"
        with _refusing(path), path.open("rb") as file:
            head = file.read(LONGEST_HEAD_BYTES)
    descr, found, _ = parse_head(head, shown)
    check_type(descr, found, dtype, shape, what, name=shown)


def named_with_devices(name: str, count: int) -> str:
    """Return a kernel's name in messages about files, which have the devices in front."""
    return f"{name}, whose files have its {count} devices in front" if count > 1 else name


def _is_archive(path: Path) -> bool:
    with _refusing(path), path.open("rb") as file:
        return file.read(2) == b"PK"


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror or error}.") from error


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive."""
    import zipfile
    import zlib

    damage = (zipfile.BadZipFile, zlib.error, LookupError, RuntimeError, ValueError, EOFError)
    try:
        with _refusing(path), zipfile.ZipFile(path) as archive:
            yield archive
    except damage as error:
        raise SpecError(
            f"{path} is not a .npz file, or is damaged: {error}.",
            hint="Write it with numpy.savez, each array under the name of its input.",
        ) from error


def read_named(path: Path, name: str, dtype: str, shape: tuple[int, ...], what: str) -> bytes:
    """Return the bytes of an array of a .npz file, as `read_array` does.

    Args:
        path: the file, a zip archive of .npy files.
        name: the array's name.
        dtype: short name of the element type that it must have.
        shape: the shape that it must have.
        what: the array's name in messages.

    Raises:
        SpecError: the file cannot be read, or is not such an archive.
        ArgumentError: it holds another array under this name.
    """
    most = LONGEST_HEAD_BYTES + 16 * math.prod(shape)
    with _archive(path) as archive, archive.open(f"{name}.npy") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ArgumentError(f"{what}: {name} in {path} is larger than {dtype}{list(shape)}.")
    return array_bytes(data, dtype, shape, what, name=f"{name} in {path}")


def names_in(path: Path) -> list[str]:
    """Return the names of the arrays in a .npz file.

    Raises:
        SpecError: the file cannot be read, or is not such an archive.
    """
    with _archive(path) as archive:
        return sorted(n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy"))
