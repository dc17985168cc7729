"""Clusters of dask for tests."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "programs"))
from clusters import Cluster, cluster

from pallasc.cache.store import Store


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, warm_store: Store) -> Iterator[Cluster]:
    """Yield a cluster of two workers with one thread each."""
    known = {"PALLASC_CACHE_DIR": str(warm_store.root)}  # which has the toolchain's digests
    with cluster(tmp_path_factory.mktemp("cluster"), known) as made:
        yield made
