"""Kernels in JAX on the CPU: handlers that copy arrays to the stand-in driver, and results back."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import native_build
from compiled import compiled

from pallasc.runtime.adapters.jax_handlers import TARGET
from pallasc.runtime.native.library import open_library

_SOURCE = Path(__file__).parent / "native" / "host_xla.c"


def register() -> None:
    """Let JAX run kernels on the CPU, in a process that finds the stand-in driver."""
    import jax.ffi

    flags = (*native_build.FLAGS, f"-I{native_build.SOURCES}")
    headers = native_build.SOURCES.glob("*.h")
    link = ["-shared", "-ldl"]
    shim = ctypes.CDLL(str(compiled("host_xla.so", flags, [_SOURCE], link=link, watched=headers)))
    handlers: dict[str, Any] = {}
    for stage in ("instantiate", "execute"):
        own = getattr(open_library().functions, f"pallasc_xla_cuda_{stage}")
        asked = ctypes.c_void_p.in_dll(shim, f"host_{stage}_by")
        asked.value = ctypes.cast(own, ctypes.c_void_p).value
        handlers[stage] = jax.ffi.pycapsule(getattr(shim, f"host_{stage}"))
    jax.ffi.register_ffi_target(TARGET, handlers, platform="cpu")
