"""What the tests of the library share: the digests that are recorded of its artifacts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import digests

sys.path.pop(0)


@pytest.fixture(scope="session")
def check_digests() -> Callable[[Iterable[Any]], None]:
    """Return what compares artifacts with the recorded ones, where the toolchain is the same."""

    def check(results: Iterable[Any]) -> None:
        results, recorded = list(results), digests.recorded()
        if digests.toolchain(results) != recorded["toolchain"]:
            names = digests.toolchain(results)["versions"] | {
                "ptxas": digests.toolchain(results)["ptxas"]
            }
            pytest.skip(f"{digests.FILE.name} is of another toolchain than the one here: {names}")
        found = digests.digests(results)
        changed = [name for name, digest in found.items() if recorded["digests"][name] != digest]
        assert changed == [], (
            "other bytes: tests/library/digests.py records them, if they are meant"
        )

    return check
