"""The C library that launches flat plans, and the extension `_native` that calls it.

Both are next to this module if pallasc was installed with a C compiler available, or from a wheel
for this platform; everything works without them. The environment variable PALLASC_NATIVE selects
another library, or disables both if `0`.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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


def is_clone(folder: Path) -> bool:
    """Return True if a folder with the C sources is in a clone, where they may change."""
    return (folder.resolve().parents[1] / "setup.py").is_file()


# ---- the extension

SOURCES = ("python.c",)
"""Sources of the extension."""

_NAME = "_native"
_PER_THREAD_STREAM = "CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM"


def has_thread_streams() -> bool:
    """Return True if cuda-bindings is set to use per-thread default streams.

    C code calls the driver's regular functions, for which handle 0 is another stream.
    """
    return os.environ.get(_PER_THREAD_STREAM, "0") not in ("", "0")


@cache
def extension() -> Any | None:
    """Return the extension, None if launches go through Python.

    That is the case if it was not built, or was built before its sources changed; if PALLASC_NATIVE
    is 0; or if cuda-bindings is set to use per-thread default streams.
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
        return None, f"the extension knows no default streams of threads, and {told}"
    try:
        module = import_module(f"{__package__}.{_NAME}")
    except ModuleNotFoundError:
        return None, "the extension was not built for this Python"
    except (ImportError, ValueError) as error:  # ValueError: a path that this locale cannot encode
        return None, f"the extension cannot be loaded: {error}"
    if is_clone(FOLDER) and _sources_digest() != module.SOURCES:
        told = "the extension was built before its sources changed"
        return None, f"{told}, install pallasc again: pip install -e ."
    return module, ""


def _sources_digest() -> str:
    """Return the digest of the sources, "" if not all of them can be read."""
    digest = hashlib.sha256()
    for file in (FOLDER / name for name in SOURCES):
        try:
            digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
        except OSError:
            return ""
    return digest.hexdigest()


FOLDER = Path(__file__).resolve().parent
"""Folder of the library, its header (`include/`) and its pkg-config file (`pkgconfig/`)."""

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
_NO_STEP = ctypes.c_size_t(-1).value

_FIND = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_size_t),
)


class _RawArray(ctypes.Structure):
    """`pallasc_array` of pallasc.h."""

    _fields_ = (
        ("path", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        *((name, ctypes.c_size_t) for name in ("rank", "bits", "bytes", "alignment", "buffer")),
        ("flags", ctypes.c_int),
    )


@dataclass(frozen=True, slots=True)
class NativeArray:
    """An array that a plan takes or returns; `buffer` is its index among a launch's buffers.

    `flags`: 1 input, 2 result, 4 updated in place.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    bits: int
    size_bytes: int
    alignment: int
    buffer: int
    flags: int


def library_file() -> Path:
    """Return the library's file.

    Raises:
        ToolError: it is disabled or missing.
    """
    chosen = os.environ.get(_VARIABLE)
    if chosen == "0":
        raise ToolError(f"the C library is switched off: {_VARIABLE} is 0.", hint="Unset it.")
    file = Path(chosen).absolute() if chosen else FOLDER / _FILE
    if not file.is_file():
        raise ToolError(
            f"{_VARIABLE} names {file}, which is no file."
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
        ToolError: it is missing, cannot be loaded, or belongs to another version of pallasc.
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
        ToolError: they have changed since.
    """
    if not is_clone(FOLDER):
        return
    digest = hashlib.sha256()
    files = [*FOLDER.glob("*.[ch]"), *FOLDER.glob("include/*.h")]
    for name in sorted(path.relative_to(FOLDER).as_posix() for path in files):
        path = FOLDER / name
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    functions.pallasc_sources.restype = ctypes.c_char_p
    if functions.pallasc_sources().decode() != digest.hexdigest():
        raise ToolError(
            "the C library was built before its sources changed.",
            hint="Install pallasc again: pip install -e .",
        )


class Library:
    """The loaded library.

    Args:
        functions: its functions.
    """

    def __init__(self, functions: ctypes.CDLL) -> None:
        self.functions: Any = functions
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        for name, answer, *arguments in (
            ("version", ctypes.c_char_p),
            ("last_error", ctypes.c_char_p),
            ("last_driver_result", ctypes.c_int),
            ("forget", None),
            ("open", ctypes.c_int, ctypes.c_char_p, size, _FIND, pointer, pointer),
            ("close", None, pointer),
            ("prepare", ctypes.c_int, pointer, ctypes.c_int),
            ("name", ctypes.c_char_p, pointer),
            ("arch", ctypes.c_char_p, pointer),
            ("workspace_bytes", size, pointer),
            ("buffer_count", size, pointer),
            ("output_count", size, pointer),
            ("buffer", ctypes.c_int, pointer, size, pointer),
            ("output", ctypes.c_int, pointer, size, pointer),
            (
                *("launch_from", ctypes.c_int, pointer, ctypes.c_int, pointer, size, pointer),
                *(pointer, size, pointer),
            ),
        ):
            function = getattr(self.functions, f"pallasc_{name}")
            function.restype, function.argtypes = answer, arguments

    @property
    def version(self) -> str:
        """The library's version."""
        return str(self.functions.pallasc_version().decode())

    def open(self, data: bytes, find: Callable[[str], bytes | None] | None = None) -> NativePlan:
        """Open a flat plan.

        Args:
            data: its bytes.
            find: returns the cubin or constant with a digest, or None.

        Raises:
            CorruptError: it is damaged.
            NotCachedError: a cubin or constant that it names by digest was not found.
        """
        handle = ctypes.c_void_p()
        asked = _FIND() if find is None else _FIND(_Finder(find))
        self.check(self.functions.pallasc_open(data, len(data), asked, None, ctypes.byref(handle)))
        return NativePlan(self, handle)

    def forget(self) -> None:
        """Forget the driver and everything that was loaded; see the header."""
        self.functions.pallasc_forget()

    def check(self, status: int) -> None:
        """Raise this thread's last error if a function returned a failure status."""
        if status:
            raise self._error(status)

    def _error(self, status: int) -> PallascError:
        told = self.functions.pallasc_last_error().decode("utf-8", "replace")
        message, _, hint = told.partition("\n  ")
        if status in _KINDS:
            return _KINDS[status](message, hint=hint or None)
        kind = OutOfMemoryError if status == _MEMORY else DriverError
        code = int(self.functions.pallasc_last_driver_result())
        return kind(message, code=code, hint=hint or None)


class _Finder:
    """Callback through which C finds a blob; the bytes stay alive until the next call."""

    def __init__(self, find: Callable[[str], bytes | None]) -> None:
        self._find = find
        self._held = b""

    def __call__(self, _: Any, digest: bytes, data: Any, size: Any) -> int:
        try:
            found = self._find(digest.decode())
        except (PallascError, OSError):
            found = None
        if found is None:
            return 1
        self._held = found
        data[0] = ctypes.cast(ctypes.c_char_p(found), ctypes.c_void_p)
        size[0] = len(found)
        return 0


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

    @property
    def name(self) -> str:
        """Name of the plan in messages."""
        return str(self._functions.pallasc_name(self.handle).decode())

    @property
    def arch(self) -> str:
        """The architecture that it was compiled for."""
        return str(self._functions.pallasc_arch(self.handle).decode())

    @property
    def workspace_bytes(self) -> int:
        """Total size of its temporaries."""
        return int(self._functions.pallasc_workspace_bytes(self.handle))

    @property
    def buffers(self) -> list[NativeArray]:
        """The arrays that a launch takes."""
        return self._arrays("buffer")

    @property
    def outputs(self) -> list[NativeArray]:
        """The arrays that a launch returns."""
        return self._arrays("output")

    def _arrays(self, kind: str) -> list[NativeArray]:
        count = getattr(self._functions, f"pallasc_{kind}_count")(self.handle)
        describe, raw = getattr(self._functions, f"pallasc_{kind}"), _RawArray()
        found = []
        for number in range(count):
            self._library.check(describe(self.handle, number, ctypes.byref(raw)))
            found.append(
                NativeArray(
                    raw.path.decode(),
                    raw.dtype.decode(),
                    tuple(raw.shape[: raw.rank]),
                    tuple(raw.strides[: raw.rank]),
                    raw.bits,
                    raw.bytes,
                    raw.alignment,
                    raw.buffer,
                    raw.flags,
                )
            )
        return found

    def prepare(self, ordinal: int) -> None:
        """Load the plan on a device.

        Raises:
            DeviceError, CorruptError: as for the runtime's `Program`.
        """
        self._library.check(self._functions.pallasc_prepare(self.handle, ordinal))

    def launch(
        self,
        pointers: Sequence[int],
        *,
        device: int = 0,
        workspace: int = 0,
        stream: int = 0,
        first_step: int = 0,
    ) -> None:
        """Enqueue all steps in a stream.

        Args:
            pointers: addresses of the inputs, then of the outputs that are not inputs.
            device: the device that the plan was prepared on.
            workspace: address of `workspace_bytes` for temporaries.
            stream: the stream's handle.
            first_step: the step to start with.

        Raises:
            ArgumentError: an address is not valid.
            DriverError: the driver refuses a step; its number is the error's `step`, None if
                nothing was enqueued.
        """
        failed = ctypes.c_size_t()
        buffers = (ctypes.c_void_p * max(1, len(pointers)))(*pointers)
        status = self._functions.pallasc_launch_from(
            self.handle, device, buffers, len(pointers), workspace, stream, first_step,
            ctypes.byref(failed),
        )  # fmt: skip
        if status:
            error: Any = self._library._error(status)
            error.step = None if failed.value == _NO_STEP else failed.value
            raise error
