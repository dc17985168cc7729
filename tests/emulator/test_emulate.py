"""`pallasc.emulate` takes the arguments of the compiled function and returns its results."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pallasc
from pallasc.cache.store import Store
from pallasc.emulator.emulate import inputs_of
from pallasc.errors import ArgumentError
from pallasc.specs.library.elementwise import add


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> pallasc.Artifact:
    store = Store(tmp_path_factory.mktemp("store"))
    specs = ("f32[2, 1024]", "f32[2, 1024]")
    return pallasc.compile(
        add, *specs, target="sm_90a", isolated=True, store=store, block_size=1024
    )


@pytest.fixture
def x() -> np.ndarray:
    return np.arange(2048, dtype=np.float32).reshape(2, 1024)


def test_results_are_those_of_the_function(artifact: pallasc.Artifact, x: np.ndarray) -> None:
    np.testing.assert_array_equal(pallasc.emulate(artifact, x, x), x + x)


def test_arguments_of_another_shape_or_dtype_are_refused(
    artifact: pallasc.Artifact, x: np.ndarray
) -> None:
    with pytest.raises(ArgumentError, match=r"got float32\[1024\], needs float32\[2, 1024\]"):
        pallasc.emulate(artifact, x[0], x)
    with pytest.raises(ArgumentError, match=r"got float64"):
        pallasc.emulate(artifact, x, x.astype(np.float64))


def test_an_argument_that_is_missing_is_named(artifact: pallasc.Artifact, x: np.ndarray) -> None:
    with pytest.raises(ArgumentError, match="got 1"):
        pallasc.emulate(artifact, x)


@pytest.mark.parametrize(
    ("tree", "parameters", "arrays", "named", "expected"),
    [
        ([0, 1], (), ("a", "b"), {}, ["a", "b"]),
        ([0, [1, 2]], (), ("a", ["b", "c"]), {}, ["a", "b", "c"]),
        ({"x": 1, "y": 0}, (), ("a", "b"), {}, ["a", "b"]),
        ({"x": 1, "y": 0}, ("x", "y"), ("a", "b"), {}, ["b", "a"]),
        ({"x": 0, "y": 1}, ("x", "y"), ("a",), {"y": "b"}, ["a", "b"]),
        ({"x": 0, "y": None}, ("x", "y"), ("a", None), {}, ["a"]),
    ],
)
def test_arrays_are_put_in_the_order_of_the_plan(
    tree: Any,
    parameters: tuple[str, ...],
    arrays: Sequence[Any],
    named: dict[str, Any],
    expected: list[str],
) -> None:
    plan: Any = SimpleNamespace(input_tree=tree, parameters=parameters)
    assert inputs_of(plan, arrays, named) == expected


@pytest.mark.parametrize(
    ("tree", "arrays", "named", "complaint"),
    [
        ([0], ("a", "b"), {}, "the call needs 1 arguments; got 2"),
        ([[0, 1]], (3,), {}, r"\[0\] needs 2 arguments; got int"),
        ([0], ("a",), {"y": "b"}, "no arguments by name; got y"),
        ({"x": 0}, (), {"y": "b"}, "the function takes x; got 0 arguments by position and y"),
        ([None], ("a",), {}, r"\[0\] must be None"),
        ([0], (None,), {}, r"\[0\] is None"),
    ],
)
def test_a_call_that_does_not_fit_is_refused(
    tree: Any, arrays: Sequence[Any], named: dict[str, Any], complaint: str
) -> None:
    plan: Any = SimpleNamespace(input_tree=tree, parameters=())
    with pytest.raises(ArgumentError, match=complaint):
        inputs_of(plan, arrays, named)
