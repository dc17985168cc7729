"""Modules and a store that the tests of the emulator share."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from pallasc.cache.store import Store

sys.path.insert(0, str(Path(__file__).parent))

import arithmetic  # noqa: F401  (tests import it by its bare name)
import arithmetic_patterns  # noqa: F401  (as arithmetic)
import blackwell  # noqa: F401  (as arithmetic)
import compiled_plans  # noqa: F401  (as arithmetic)
import float_formats  # noqa: F401  (as arithmetic)
import opcode_cases  # noqa: F401  (as arithmetic)
import opcode_cases_copies  # noqa: F401  (as arithmetic)
import opcode_cases_lanes  # noqa: F401  (as arithmetic)
import opcode_cases_matrices  # noqa: F401  (as arithmetic)
import opcode_cases_memory  # noqa: F401  (as arithmetic)
import opcode_patterns  # noqa: F401  (as arithmetic)
import small_kernels  # noqa: F401  (as arithmetic)

sys.path.pop(0)


@pytest.fixture(scope="module")
def store(warm_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Return a new store that knows the digests of the toolchain."""
    return Store(Path(shutil.copytree(warm_store.root, tmp_path_factory.mktemp("s") / "store")))
