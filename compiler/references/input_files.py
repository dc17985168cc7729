"""Inputs of kernels in files of the user's: .npy files and .npz archives."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pallasc.compiler.references.npy import (
    LONGEST_HEAD_BYTES,
    array_bytes,
    check_type,
    parse_head,
    read_array,
)
from pallasc.errors import ArgumentError, SpecError


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
        with _member(path, name) as file:
            head = file.read(LONGEST_HEAD_BYTES)
    else:
        shown, what = str(path), f"{what}: {name}"
        with _refusing(path), path.open("rb") as file:
            head = file.read(LONGEST_HEAD_BYTES)
    descr, found, _ = parse_head(head, shown)
    check_type(descr, found, dtype, shape, what, name=shown)


def named_with_devices(name: str, count: int) -> str:
    """Return what a kernel is called in messages about files, which have the devices in front."""
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
def _member(path: Path, name: str) -> Iterator[IO[bytes]]:
    """Open an array of an archive."""
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as file:
            yield file
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (zipfile.BadZipFile, KeyError, RuntimeError, NotImplementedError, EOFError) as error:
        raise _no_archive(path, str(error)) from error


def read_named(path: Path, name: str, dtype: str, shape: tuple[int, ...], what: str) -> bytes:
    """Return the bytes of an array of a .npz file, as `read_array` does.

    Args:
        path: the file, a zip archive of .npy files.
        name: the array's name.
        dtype: short name of the element type that it must have.
        shape: the shape that it must have.
        what: what the array is called in messages.

    Raises:
        SpecError: the file cannot be read, or is not such an archive.
        ArgumentError: it holds another array under this name.
    """
    import zipfile

    member = f"{name}.npy"
    try:
        with zipfile.ZipFile(path) as archive:
            size = archive.getinfo(member).file_size
            most = LONGEST_HEAD_BYTES + 16 * math.prod(shape)
            data = archive.read(member) if size <= most else b""
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (zipfile.BadZipFile, KeyError, RuntimeError, NotImplementedError, EOFError) as error:
        raise _no_archive(path, str(error)) from error
    if size > most:
        raise ArgumentError(f"{what}: {name} in {path} is larger than {dtype}{list(shape)}.")
    return array_bytes(data, dtype, shape, what, name=f"{name} in {path}")


def names_in(path: Path) -> list[str]:
    """Return the names of the arrays in a .npz file.

    Raises:
        SpecError: the file cannot be read, or is not such an archive.
    """
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            return sorted(n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy"))
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (zipfile.BadZipFile, ValueError) as error:
        raise _no_archive(path, str(error)) from error


def _no_archive(path: Path, reason: str) -> SpecError:
    return SpecError(
        f"{path} is not a .npz file, or is damaged: {reason}.",
        hint="Write it with numpy.savez, each array under the name of its input.",
    )
