"""Make XLA and Mosaic GPU use the toolchain's assembler and device library, and no others.

If libnvJitLink can be loaded, newer versions of XLA assemble inside the process and do not start
ptxas. XLA has an option against this (`compile_module`). Mosaic GPU's assembler pass has none: it
asks the library for its version, and uses it from 12.5 on. NVIDIA's math libraries link against it,
so it must stay loadable, for example for `import torch` in a kernel's module. So a library made by
this module is loaded first, under the name of libnvJitLink. It reports no version, and names the
real library as its dependency, where the loader finds all other functions. The loader compares
names before it searches folders, so every later request for libnvJitLink gets this library. It is
64-bit ELF as in the System V ABI (gABI 4.1, chapters 4 and 5): a single function, mapped twice,
executable and writable for the loader.

Mosaic takes the device library from the first folder of a fixed list (`tsl::CandidateCudaRoots`)
that has one: `cuda_sdk_lib` in the current folder, folders next to the program, `/usr/local/cuda`,
`/opt/cuda`, then the wheels. In a Python process, TSL treats the first word of the command line
that is not an option as the program. A worker is started with `-X` and a path, which Python
ignores, and puts the toolchain next to that path. Other processes cannot do that; if an earlier
folder has a different library, XLA compiles in a separate process.
"""

from __future__ import annotations

import contextlib
import ctypes
import filecmp
import os
import platform
import re
import struct
import sys
from functools import cache
from pathlib import Path

from pallasc.compiler.toolchain.toolchain import (
    LIBDEVICE,
    find_nvjitlink,
    find_package,
    nvjitlink_name,
)

_VERSION = b"nvJitLinkVersion"
_CODE = {
    "x86_64": (62, bytes.fromhex("b801000000c3")),  # mov eax, 1; ret
    "aarch64": (183, bytes.fromhex("20008052c0035fd6")),  # mov w0, #1; ret
}
"""The ELF machine, and code of a function that returns 1, an error (nvJitLinkResult)."""

_PAGE = 1 << 16
"""The largest page size of these machines: both mappings begin at a multiple of it."""
_HEADER, _PROGRAM, _SYMBOL, _DYNAMIC = 64, 56, 24, 16
_LOAD, _DYNAMIC_PART, _STACK = 1, 2, 0x6474E551
_READ, _WRITE, _RUN = 4, 2, 1


@cache
def hide_nvjitlink() -> str:
    """Load a library in place of libnvJitLink, if XLA would find the real library.

    Returns:
        The path of the real library if this process has already loaded it, which is too late;
        otherwise "".
    """
    packages = ((cuda, find_package(f"jax-cuda{cuda}-pjrt")) for cuda in (13, 12))
    cuda, package = next((found for found in packages if found[1] is not None), (0, None))
    if package is None:
        return ""
    if before := loaded_nvjitlink(cuda):
        return before
    real = find_nvjitlink(cuda, package.root)
    if real is not None and platform.machine() in _CODE:
        # The loader identifies it by the name of the descriptor, so the descriptor stays open.
        descriptor = os.memfd_create(nvjitlink_name(cuda))
        os.write(descriptor, stand_in(nvjitlink_name(cuda), str(real)))
        with contextlib.suppress(OSError):
            ctypes.CDLL(f"/proc/self/fd/{descriptor}")
    return ""


def loaded_nvjitlink(cuda: int) -> str:
    """Return the path of the libnvJitLink that this process has loaded, "" for none."""
    pattern = rf"/(.*/)?{re.escape(nvjitlink_name(cuda))}[^/\n]*$"
    with contextlib.suppress(OSError):
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        if found := re.search(pattern, maps, re.MULTILINE):
            return found[0]
    return ""


def stand_in(name: str, needed: str) -> bytes:
    """Return the bytes of the shared library to load as `name`.

    Args:
        name: the name by which others request it (DT_SONAME).
        needed: the library that has all other functions (DT_NEEDED).
    """
    machine, code = _CODE[platform.machine()]
    programs = 4
    at_code = _HEADER + programs * _PROGRAM
    at_dynamic = at_code + 16
    entries = 8
    at_symbols = at_dynamic + entries * _DYNAMIC
    at_hash = at_symbols + 2 * _SYMBOL
    at_strings = at_hash + 24
    strings = b"\0" + _VERSION + b"\0" + name.encode() + b"\0" + os.fsencode(needed) + b"\0"
    at_name = 2 + len(_VERSION)
    at_needed = at_name + len(name) + 1
    dynamic = [
        (14, at_name),  # DT_SONAME
        (1, at_needed),  # DT_NEEDED
        (4, _PAGE + at_hash),  # DT_HASH
        (5, _PAGE + at_strings),  # DT_STRTAB
        (6, _PAGE + at_symbols),  # DT_SYMTAB
        (10, len(strings)),  # DT_STRSZ
        (11, _SYMBOL),  # DT_SYMENT
        (0, 0),
    ]
    size = at_strings + len(strings)
    parts = [
        (_LOAD, _READ | _RUN, 0, 0, size, _PAGE),
        (_LOAD, _READ | _WRITE, 0, _PAGE, size, _PAGE),
        (_DYNAMIC_PART, _READ | _WRITE, at_dynamic, _PAGE, entries * _DYNAMIC, 8),
        (_STACK, _READ | _WRITE, 0, 0, 0, 16),
    ]
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, machine, 1, 0, _HEADER, 0, 0, _HEADER, _PROGRAM, programs, 64, 0, 0
    )
    return b"".join(
        (
            head,
            *(_program(*part) for part in parts),
            code.ljust(16, b"\0"),
            *(struct.pack("<qQ", *entry) for entry in dynamic),
            bytes(_SYMBOL),
            struct.pack("<IBBHQQ", 1, 0x12, 0, 1, at_code, len(code)),  # a global function
            struct.pack("<6I", 1, 2, 1, 0, 0, 0),  # one bucket, two symbols, of which one is named
            strings,
        )
    )


def _program(kind: int, flags: int, offset: int, page: int, size: int, alignment: int) -> bytes:
    address = page + offset
    return struct.pack("<IIQQQQQQ", kind, flags, offset, address, address, size, size, alignment)


TOOLKIT = "toolkit"
"""The name in a worker's command line, in the folder of its temporary files."""

_BESIDE = ("rules_ml_toolchain++cuda_redist_init_ext+cuda_nvcc", "cuda_nvcc")
"""Names of the folder next to the program: from JAX 0.12 on, and before."""

_OF_THE_SYSTEM = (Path("/usr/local/cuda"), Path("/opt/cuda"))


def offer_library(toolkit: Path, folder: Path) -> None:
    """Link a toolkit into the folder where Mosaic looks first in a worker.

    Args:
        toolkit: the folder with `nvvm/libdevice`.
        folder: the folder of the worker's temporary files, as in its command line.
    """
    beside = folder / f"{TOOLKIT}.runfiles"
    beside.mkdir(exist_ok=True)
    for name in _BESIDE:
        with contextlib.suppress(FileExistsError):
            (beside / name).symlink_to(toolkit)


def other_library(toolkit: Path) -> str:
    """Return the device library that Mosaic would use instead of `toolkit`'s, "" for none."""
    words = [word for word in sys.orig_argv[1:] if not word.startswith("-")]
    beside = [Path(f"{words[0] if words else ''}.runfiles", name) for name in _BESIDE]
    for root in (Path("cuda_sdk_lib"), *beside, *_OF_THE_SYSTEM):
        place = root / LIBDEVICE
        if os.path.isdir(place.parent):  # the text of `python -c` is no path, and may be too long
            is_same = place.is_file() and filecmp.cmp(place, toolkit / LIBDEVICE, shallow=False)
            return "" if is_same else str(place)
    return ""
