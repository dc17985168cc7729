"""Clusters of dask for tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "programs"))
sys.path.insert(0, str(Path(__file__).parents[1] / "building" / "programs"))
from clusters import Cluster, cluster


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a cluster of two workers with a thread each."""
    with cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made
