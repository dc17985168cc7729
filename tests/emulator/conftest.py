"""The store of the tests of the emulator."""

import shutil
from pathlib import Path

import pytest

from pallasc.cache.store import Store


@pytest.fixture(scope="module")
def store(warm_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Return a new store that has the digests of the toolchain."""
    return Store(Path(shutil.copytree(warm_store.root, tmp_path_factory.mktemp("s") / "store")))
