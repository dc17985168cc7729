"""The C library that launches flat plans (`flat_plan`), and the extension `_native`, its caller.

Both are next to this module if pallasc was installed with a C compiler available, or from a wheel
for this platform; everything works without them. The environment variable PALLASC_NATIVE selects
another library, or disables both if `0`.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from pallasc.errors import (
    ArgumentError,
    CorruptError,
    DeviceError,
    DriverError,
    NotCachedError,
    OutOfMemoryError,
    PallascError,
    ToolError,
)
from pallasc.version import UNKNOWN, installed_version

FOLDER = Path(__file__).resolve().parent
"""Folder of the library, its header (`include/`) and its pkg-config file (`pkgconfig/`)."""


def is_clone(folder: Path) -> bool:
    """Return True if a folder with the C sources is in a clone, where they may change."""
    return (folder.resolve().parents[1] / "setup.py").is_file()


def _digest_of(names: Iterable[str]) -> str:
    """Return the digest of source files, "" if not all of them can be read."""
    digest = hashlib.sha256()
    for path in (FOLDER / name for name in names):
        try:
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        except OSError:
            return ""
    return digest.hexdigest()


# ---- the extension

SOURCES = ("python.c",)
"""Sources of the extension."""

_NAME = "_native"
_PER_THREAD_STREAM = "CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM"


def has_thread_streams() -> bool:
    """Return True if cuda-bindings is set to use per-thread default streams.

    C code calls the driver's regular functions, for which handle 0 is the context's default stream.
    """
    return os.environ.get(_PER_THREAD_STREAM, "0") not in ("", "0")


@cache
def extension() -> Any | None:
    """Return the extension, None if launches go through Python.

    Launches go through Python if the extension was not built, or was built before its sources
    changed; if PALLASC_NATIVE is 0; or if cuda-bindings is set to use per-thread default streams.
    """
    return _look()[0]


def why_not() -> str:
    """Return why launches go through Python, "" if they go through the extension."""
    return _look()[1]


def _look() -> tuple[Any | None, str]:
    """Return the extension and "", or None and the reason."""
    if os.environ.get("PALLASC_NATIVE") == "0":
        return None, "the extension is switched off: PALLASC_NATIVE is 0"
    if has_thread_streams():
        told = f"{_PER_THREAD_STREAM} is {os.environ[_PER_THREAD_STREAM]!r}"
        return None, f"the extension does not support per-thread default streams, and {told}"
    try:
        module = import_module(f"{__package__}.{_NAME}")
    except ModuleNotFoundError:
        return None, "the extension was not built for this Python"
    except (ImportError, ValueError) as error:  # ValueError: a path that this locale cannot encode
        return None, f"the extension cannot be loaded: {error}"
    if is_clone(FOLDER) and _digest_of(SOURCES) != module.SOURCES:
        told = "the extension was built before its sources changed"
        return None, f"{told}, install pallasc again: pip install -e ."
    return module, ""


# ---- the library


_FILE = "libpallasc.so"
_VARIABLE = "PALLASC_NATIVE"
_ARGUMENT, _CORRUPT, _DEVICE, _DRIVER, _MEMORY, _NOT_FOUND = range(1, 7)
_KINDS: Mapping[int, type[PallascError]] = {
    _ARGUMENT: ArgumentError,
    _CORRUPT: CorruptError,
    _DEVICE: DeviceError,
    _NOT_FOUND: NotCachedError,
}


def library_file() -> Path:
    """Return the library's file.

    Raises:
        ToolError: the library is disabled or missing.
    """
    chosen = os.environ.get(_VARIABLE)
    if chosen == "0":
        raise ToolError(f"the C library is switched off: {_VARIABLE} is 0.", hint="Unset it.")
    file = Path(chosen).absolute() if chosen else FOLDER / _FILE
    if not file.is_file():
        raise ToolError(
            f"{_VARIABLE} names {file}, which is not a file."
            if chosen
            else "pallasc was installed without its C library.",
            hint=f"Unset {_VARIABLE}, or let it name a library."
            if chosen
            else "Install pallasc where a C compiler is on the PATH, or a wheel for this platform.",
        )
    return file


@functools.cache
def open_library(file: Path | None = None) -> Library:
    """Load the library and return it.

    Args:
        file: the library; None for `library_file()`.

    Raises:
        ToolError: the library is missing, cannot be loaded, or belongs to another version of
            pallasc.
    """
    place = library_file() if file is None else file
    try:
        functions = ctypes.CDLL(str(place))
        if place == FOLDER / _FILE:
            _check_sources(functions)
        library = Library(functions)
    except (OSError, AttributeError) as error:
        raise ToolError(f"the C library cannot be loaded: {error}.") from error
    if (own := installed_version()) not in (library.version, UNKNOWN):
        raise ToolError(
            f"the C library {place} is of pallasc {library.version}, and this is pallasc {own}.",
            hint=f"Unset {_VARIABLE}, or let it name a library of this version."
            if place != FOLDER / _FILE
            else "Install pallasc again.",
        )
    return library


def _check_sources(functions: Any) -> None:
    """Check, in a clone, that the library was built from the current sources.

    Raises:
        ToolError: the sources have changed since the build.
    """
    if not is_clone(FOLDER):
        return
    files = [*FOLDER.glob("*.[ch]"), *FOLDER.glob("include/*.h")]
    names = sorted(path.relative_to(FOLDER).as_posix() for path in files)
    functions.pallasc_sources.restype = ctypes.c_char_p
    if functions.pallasc_sources().decode() != _digest_of(names):
        raise ToolError(
            "the C library was built before its sources changed.",
            hint="Install pallasc again: pip install -e .",
        )


class Library:
    """The loaded library.

    Args:
        functions: the shared library, as opened by ctypes.
    """

    def __init__(self, functions: ctypes.CDLL) -> None:
        self.functions: Any = functions
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        for name, answer, *arguments in (
            ("version", ctypes.c_char_p),
            ("last_error", ctypes.c_char_p),
            ("last_driver_result", ctypes.c_int),
            ("forget", None),
            ("open", ctypes.c_int, ctypes.c_char_p, size, pointer, pointer, pointer),
            ("close", None, pointer),
            ("prepare", ctypes.c_int, pointer, ctypes.c_int),
            ("launch", ctypes.c_int, pointer, ctypes.c_int, pointer, size, pointer, pointer),
        ):
            function = getattr(self.functions, f"pallasc_{name}")
            function.restype, function.argtypes = answer, arguments

    @property
    def version(self) -> str:
        """The library's version."""
        return str(self.functions.pallasc_version().decode())

    def open(self, data: bytes) -> NativePlan:
        """Open a flat plan that contains its cubins and constants.

        Raises:
            CorruptError: the plan is damaged.
        """
        handle = ctypes.c_void_p()
        self.check(self.functions.pallasc_open(data, len(data), None, None, ctypes.byref(handle)))
        return NativePlan(self, handle)

    def check(self, status: int) -> None:
        """Raise this thread's last error if a function returned a failure status."""
        if not status:
            return
        told = self.functions.pallasc_last_error().decode("utf-8", "replace")
        message, _, hint = told.partition("\n  ")
        if status in _KINDS:
            raise _KINDS[status](message, hint=hint or None)
        kind = OutOfMemoryError if status == _MEMORY else DriverError
        code = int(self.functions.pallasc_last_driver_result())
        raise kind(message, code=code, hint=hint or None)


class NativePlan:
    """An open plan.

    Args:
        library: the library that opened it.
        handle: the `pallasc_plan`.
    """

    def __init__(self, library: Library, handle: ctypes.c_void_p) -> None:
        self._library = library
        self._functions = library.functions
        self.handle = handle

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Free the plan; it cannot be used afterwards."""
        handle, self.handle = self.handle, ctypes.c_void_p()
        self._functions.pallasc_close(handle)

    def prepare(self, ordinal: int) -> None:
        """Load the plan on a device.

        Raises:
            DeviceError, CorruptError: as for the runtime's `Program`.
        """
        self._library.check(self._functions.pallasc_prepare(self.handle, ordinal))

    def launch(
        self, pointers: Sequence[int], *, device: int = 0, workspace: int = 0, stream: int = 0
    ) -> None:
        """Enqueue all steps in a stream.

        Args:
            pointers: addresses of the inputs, then of the outputs that are not inputs.
            device: the device that the plan was prepared on.
            workspace: address of the plan's workspace, which no other launch uses at the same time.
            stream: the stream's handle.

        Raises:
            ArgumentError: an address is not valid.
            DriverError: the driver refuses a step.
        """
        buffers = (ctypes.c_void_p * max(1, len(pointers)))(*pointers)
        status = self._library.functions.pallasc_launch(
            self.handle, device, buffers, len(pointers), workspace, stream
        )
        self._library.check(status)
