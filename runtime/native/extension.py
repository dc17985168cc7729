"""The extension `_native`, where it was built for this Python."""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from typing import Any

_PER_THREAD_STREAM = "CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM"


@cache
def extension() -> Any | None:
    """Return the extension, None where launches go through Python.

    That is where it was not built, where PALLASC_NATIVE is 0, and where cuda-bindings was told to
    take the default stream for one of each thread: the extension calls the driver as it is.
    """
    if os.environ.get("PALLASC_NATIVE") == "0":
        return None
    if os.environ.get(_PER_THREAD_STREAM, "0") not in ("", "0"):
        return None
    try:
        return import_module("pallasc.runtime.native._native")
    except ImportError:
        return None
