"""The C library on the stand-in driver."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import fake_xla  # noqa: F401  (tests import it by its bare name)
import native_build
import native_fuzz  # noqa: F401  (as fake_xla)
import standin as control

sys.path.pop(0)
sys.path.pop(0)

from pallasc.runtime.native.library import Library, open_library


@pytest.fixture(scope="session")
def native_file() -> Path:
    """Give the library's file."""
    if reason := native_build.why_not():
        pytest.skip(reason)
    return native_build.build()


@pytest.fixture
def native(native_file: Path, runtime: control.Standin) -> Iterator[Library]:
    """Give the library in a process that has opened no driver yet."""
    library = open_library(native_file)
    library.forget()
    yield library
    library.forget()
