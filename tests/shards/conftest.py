"""What the tests of shards share: parts that are written for them, a store to merge into."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pallasc.cache.store import Store

sys.path.insert(0, str(Path(__file__).parent))

import made_parts
import merge_kills  # noqa: F401

sys.path.pop(0)


@pytest.fixture
def parts(tmp_path: Path) -> made_parts.Parts:
    return made_parts.Parts(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return the store that parts are merged into."""
    return Store(tmp_path / "merged")
