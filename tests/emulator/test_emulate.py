"""`pallasc.emulate` takes the arguments of the compiled function and returns its results."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pallasc
from pallasc.cache.store import Store
from pallasc.emulator.emulate import inputs_of
from pallasc.errors import ArgumentError, CompileError, UnsupportedError
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


AROUND = """
from pallasc.specs.library.elementwise import add

def around(x):
    return add(x * 2, x, block_size=1024) + 1
"""


@pytest.fixture
def around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a module with a function that XLA makes kernels of, too."""
    (tmp_path / "around_add.py").write_text(AROUND)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "around_add", raising=False)
    return import_module("around_add")


def test_what_xla_makes_around_a_kernel_is_found_once_and_executed(
    around: Any, x: np.ndarray, tmp_path: Path
) -> None:
    store = Store(tmp_path / "store")
    made = pallasc.compile(around.around, "f32[2, 1024]", isolated=True, store=store)
    assert "xla" in {kernel.origin for kernel in made.kernels}
    np.testing.assert_array_equal(pallasc.emulate(made, x), x * 3 + 1)
    (tmp_path / "around_add.py").write_text(AROUND.replace("x * 2", "x * 5"))
    np.testing.assert_array_equal(pallasc.emulate(made, x), x * 3 + 1)


def test_source_that_has_changed_is_told(around: Any, x: np.ndarray, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    made = pallasc.compile(around.around, "f32[2, 1024]", isolated=True, store=store)
    (tmp_path / "around_add.py").write_text(AROUND.replace("x * 2", "jnp.sin(x)"))
    with pytest.raises(CompileError, match="the PTX of XLA's kernels cannot be had"):
        pallasc.emulate(made, x)


CLOSURE = """
import numpy
import pallasc
from pallasc.specs.library.elementwise import add

factor = 3.0
x = numpy.arange(2048, dtype=numpy.float32).reshape(2, 1024)
made = pallasc.compile(lambda x: add(x * factor, x, block_size=1024) + 1, x)
assert "xla" in {kernel.origin for kernel in made.kernels}
numpy.testing.assert_array_equal(pallasc.emulate(made, x), x * (factor + 1) + 1)
"""


def test_a_closure_that_this_process_compiled_is_executed(tmp_path: Path) -> None:
    environment = {**os.environ, "PALLASC_CACHE_DIR": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-P", "-c", CLOSURE], check=True, env=environment)


def test_what_the_store_holds_lacks_the_ptx_of_xla(
    around: Any, x: np.ndarray, tmp_path: Path
) -> None:
    store = Store(tmp_path / "store")
    made = pallasc.compile(around.around, "f32[2, 1024]", isolated=True, store=store)
    stored = pallasc.Artifact(made.record, made.blob)
    with pytest.raises(UnsupportedError, match=r"no PTX of the kernel \w+") as told:
        pallasc.emulate(stored, x)
    assert told.value.hint is not None
    assert "a kernel of XLA's" in told.value.hint


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
        ([0], ("a", "b"), {}, "the call needs 1 argument; got 2"),
        ([[0, 1]], (3,), {}, r"\[0\] needs 2 arguments; got int"),
        ([0], ("a",), {"y": "b"}, "no arguments by name; got y"),
        ({"x": 0}, (), {"y": "b"}, "the function takes x; got 0 arguments by position and y"),
        ([None], ("a",), {}, r"\[0\] must be None"),
        ([0], (None,), {}, r"\[0\] must be an array"),
    ],
)
def test_a_call_that_does_not_fit_is_refused(
    tree: Any, arrays: Sequence[Any], named: dict[str, Any], complaint: str
) -> None:
    plan: Any = SimpleNamespace(input_tree=tree, parameters=())
    with pytest.raises(ArgumentError, match=complaint):
        inputs_of(plan, arrays, named)
