"""Build the C library for tests: with warnings as errors, once for each state of its sources.

The variable PALLASC_NATIVE_TESTED names one that was built otherwise.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "runtime" / "native"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
FLAGS = (
    "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden",
    f'-DPALLASC_LIBRARY_VERSION="{VERSION}"',
)  # fmt: skip
LINK = ("-shared", "-Wl,-soname,libpallasc.so", "-Wl,--no-undefined", "-Wl,-z,nodelete", "-pthread")
LIBRARIES = ("-ldl",)
OF_PYTHON = {"python.c"}
"""Sources of the extension module; the library is built from all others."""


def _compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc")


def why_not() -> str:
    """Return why there is no library here, "" where it is built already or can be."""
    if _compiler() is not None or os.environ.get("PALLASC_NATIVE_TESTED"):
        return ""
    return "no C compiler (cc or gcc), so the C library cannot be built"


@functools.cache
def build() -> Path:
    """Return the library, compiled where these sources were not compiled before."""
    if made_elsewhere := os.environ.get("PALLASC_NATIVE_TESTED"):
        return Path(made_elsewhere)
    cc = _compiler()
    if cc is None:
        raise RuntimeError("no C compiler: neither cc nor gcc is on the PATH")
    files = sorted(path for path in SOURCES.glob("*.c") if path.name not in OF_PYTHON)
    digest = hashlib.sha256(repr((FLAGS, LINK)).encode())
    for path in (*files, *sorted(SOURCES.rglob("*.h"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    folder = ROOT / "build" / "native" / digest.hexdigest()[:16]
    library = folder / "libpallasc.so"
    if not library.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            made = Path(scratch) / library.name
            command = [cc, *FLAGS, *map(str, files), "-o", str(made), *LINK, *LIBRARIES]
            subprocess.run(command, check=True)
            folder.mkdir(exist_ok=True)
            os.replace(made, library)
    return library
