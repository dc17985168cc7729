"""Functions of the C library that C programs call, and Python does not."""

import ctypes
from collections.abc import Callable
from typing import Any

from pallasc.runtime.native.library import Library, NativePlan

_FIND = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_size_t),
)


def open_found(
    library: Library, data: bytes, find: Callable[[str], bytes | None] | None
) -> NativePlan:
    """Open a plan whose cubins and constants are found by digest."""
    held: list[Any] = []

    def answer(_: Any, digest: bytes, data: Any, size: Any) -> int:
        found = None if find is None else find(digest.decode())
        if found is None:
            return 1
        held[:] = [found]  # until the next call
        data[0] = ctypes.cast(ctypes.c_char_p(found), ctypes.c_void_p)
        size[0] = len(found)
        return 0

    handle, asked = ctypes.c_void_p(), None if find is None else _FIND(answer)
    library.check(
        library.functions.pallasc_open(data, len(data), asked, None, ctypes.byref(handle))
    )
    return NativePlan(library, handle)
