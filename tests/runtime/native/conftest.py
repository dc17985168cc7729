"""The C library on the stand-in driver."""

from collections.abc import Iterator
from pathlib import Path

import native_build
import pytest
import standin as control

from pallasc.runtime.native.library import Library, open_library


@pytest.fixture(scope="session")
def native_file() -> Path:
    """Return the library's file."""
    if reason := native_build.why_not():
        pytest.skip(reason)
    return native_build.build()


@pytest.fixture
def native(native_file: Path, runtime: control.Standin) -> Iterator[Library]:
    """Yield the library; its driver is not open yet."""
    library = open_library(native_file)
    library.functions.pallasc_forget()
    yield library
    library.functions.pallasc_forget()
