"""The extension `_native`, if it was built for this Python."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from pallasc.runtime.native import is_clone

FOLDER = Path(__file__).resolve().parent
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
