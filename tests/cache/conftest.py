"""What the tests of the store share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pallasc.cache.store import Store

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store in a folder that does not exist yet."""
    return Store(tmp_path / "store")


@pytest.fixture
def run_program() -> Callable[..., str]:
    """Return a function that runs a program of this folder and gives what it printed."""

    def run(name: str, *arguments: object) -> str:
        command = [sys.executable, str(PROGRAMS / name), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
