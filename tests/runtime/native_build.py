"""Build the C library for tests, with warnings as errors.

The variable PALLASC_NATIVE_TESTED names one that was built otherwise.
"""

import functools
import os
import tomllib
from pathlib import Path

from compiled import ROOT, compiled, compiler

SOURCES = ROOT / "runtime" / "native"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
FLAGS = (
    "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden",
    f'-DPALLASC_LIBRARY_VERSION="{VERSION}"',
)  # fmt: skip
_LINK = (
    *("-shared", "-Wl,-soname,libpallasc.so", "-Wl,--no-undefined", "-Wl,-z,nodelete"),
    *("-pthread", "-ldl"),
)
OF_PYTHON = {"python.c"}
"""Sources of the extension module; the library is built from all others."""


def why_not() -> str:
    """Return why there is no library here, "" where it is built already or can be."""
    if compiler() is not None or os.environ.get("PALLASC_NATIVE_TESTED"):
        return ""
    return "no C compiler (cc or gcc), so the C library cannot be built"


def sources(*without: str) -> list[Path]:
    """Return the library's sources, without some."""
    outside = {*OF_PYTHON, *without}
    return [path for path in SOURCES.glob("*.c") if path.name not in outside]


@functools.cache
def build() -> Path:
    """Return the library."""
    if made_elsewhere := os.environ.get("PALLASC_NATIVE_TESTED"):
        return Path(made_elsewhere)
    return compiled("libpallasc.so", FLAGS, sources(), link=_LINK, watched=SOURCES.rglob("*.h"))
