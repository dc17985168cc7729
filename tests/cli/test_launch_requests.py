"""What is to be launched is checked, as far as that is possible before compiling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pallasc.cache.store import Store
from pallasc.cli.launching import Request
from pallasc.errors import ArgumentError, Location, SpecError
from pallasc.specs.arrays import ArraySpec
from pallasc.specs.gpus import resolve_target
from pallasc.specs.spec import Budget, Variant

ARRAY = ArraySpec("f32", (4,))


def _request(store: Path, *variants: tuple[str, int], args: Any) -> Request:
    made = [
        Variant(
            name=name,
            params=(("m", m),),
            target=resolve_target("h200"),
            entry="kernels:f",
            args=args,
            static={},
            reference=None,
            tolerance=None,
            budget=Budget(),
            files=(),
            location=Location("kernels.yaml"),
            base_dir="/",
        )
        for name, m in variants
    ]
    return Request(made, [], Store(store))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file that is there."""
    path = tmp_path / "x.npy"
    path.touch()
    return path


def test_arrays_within_others_have_their_names(tmp_path: Path, file: Path) -> None:
    args = {"x": ARRAY, "state": {"w": [ARRAY, None, ARRAY]}, "none": None}
    request = _request(tmp_path, ("f", 1), ("f", 2), args=args)
    request.check_inputs({"x": file, "state.w.0": file, "state.w.2": file})
    for wrong in ("state", "state.w.1", "none"):
        with pytest.raises(ArgumentError, match=f"^f has no input '{wrong}'"):
            request.check_inputs({wrong: file})


def test_names_that_only_compiling_tells_are_left_alone(tmp_path: Path, file: Path) -> None:
    _request(tmp_path, ("f", 1), args=[ARRAY]).check_inputs({"z": file})
    _request(tmp_path, ("f", 1), ("g", 1), args={"x": ARRAY}).check_inputs({"z": file})


def test_a_file_has_to_be_there_whatever_the_array_is_called(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none\.npy cannot be read: No such file or directory"):
        _request(tmp_path, ("f", 1), args=[ARRAY]).check_inputs({"z": tmp_path / "none.npy"})


def test_nothing_is_checked_of_nothing(tmp_path: Path) -> None:
    _request(tmp_path, args=[]).check_inputs({})
