"""The extension `_native`, where it was built for this Python."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from pallasc.runtime.native import is_clone

FOLDER = Path(__file__).resolve().parent
SOURCES = ("cuda_abi.h", "python.c", "steps.c", "steps.h")
"""What the extension is built from."""

_PER_THREAD_STREAM = "CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM"


@cache
def extension() -> Any | None:
    """Return the extension, None where launches go through Python.

    That is where it was not built, or before its sources changed; where PALLASC_NATIVE is 0; and
    where cuda-bindings was told to take the default stream for one of each thread: the extension
    calls the driver as it is.
    """
    if os.environ.get("PALLASC_NATIVE") == "0":
        return None
    if os.environ.get(_PER_THREAD_STREAM, "0") not in ("", "0"):
        return None
    try:
        module = import_module("pallasc.runtime.native._native")
    except (ImportError, ValueError):  # of a path that this locale cannot say
        return None
    return module if not is_clone(FOLDER) or _sources_digest() == module.SOURCES else None


def _sources_digest() -> str:
    """Return the digest of the sources, "" where they are not all there to be read."""
    digest = hashlib.sha256()
    for file in (FOLDER / name for name in SOURCES):
        try:
            digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
        except OSError:
            return ""
    return digest.hexdigest()
