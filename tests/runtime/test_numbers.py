"""Library kernels end to end on the stand-in, with their references as the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import processes
import pytest


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run kernels of each type of arrays, with pointers and tensor maps; give their folder."""
    folder = tmp_path_factory.mktemp("numbers")
    processes.run_program("library.py", folder)
    return folder


def test_the_numbers_are_right_from_numpy_jax_and_views(saved: Path) -> None:
    kernels = "add", "add_bf16", "hopper_matmul", "jax_hopper_mixed_type_matmul", "jax_ragged_dot"
    assert sorted(path.name for path in saved.iterdir()) == [*kernels]


def test_the_numbers_are_right_from_torch(saved: Path, torch_process: Any) -> None:
    torch_process("library_torch.py", saved, devices="9.0")
