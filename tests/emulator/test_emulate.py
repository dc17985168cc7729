"""`pallasc.emulate` takes the arguments of the compiled function and returns its results."""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from compiled_plans import artifacts

import pallasc
from pallasc.cache.store import Store
from pallasc.errors import ArgumentError, CompileError, UnsupportedError
from pallasc.specs.library.elementwise import add

ADD = {"entry": "pallasc.specs.library.elementwise:add", "targets": ["sm_90a"]}
POINTS = [(1024, 512), (1024, 1024), (2048, 1024)]
KERNELS = [
    {**ADD, "name": "rows", "args": ["f32[2, 1024]"] * 2, "static": {"block_size": 1024}},
    *(
        {**ADD, "name": f"add_{n}_{b}", "args": [f"f32[{n}]"] * 2, "static": {"block_size": b}}
        for n, b in POINTS
    ),
]


@pytest.fixture(scope="module")
def made(store: Store) -> dict[str, pallasc.Artifact]:
    """Compile one function for several arrays; return the artifacts by name."""
    return artifacts(KERNELS, store)


@pytest.fixture(scope="module")
def artifact(made: dict[str, pallasc.Artifact]) -> pallasc.Artifact:
    return made["rows"]


@pytest.fixture
def x() -> np.ndarray:
    return np.arange(2048, dtype=np.float32).reshape(2, 1024)


def test_results_are_those_of_the_function(artifact: pallasc.Artifact, x: np.ndarray) -> None:
    np.testing.assert_array_equal(pallasc.emulate(artifact, x, x), x + x)


Compile = Callable[..., tuple[Any, pallasc.Artifact]]


@pytest.fixture
def compile_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Store) -> Compile:
    """Return a function that compiles one of a module, in a worker."""

    def compiled(name: str, text: str, *args: Any) -> tuple[Any, pallasc.Artifact]:
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, name, raising=False)
        function = getattr(import_module(name), name)
        return function, pallasc.compile(function, *args, isolated=True, store=store)

    return compiled


AROUND = """
from pallasc.specs.library.elementwise import add

def around(x):
    return add(x * 2, x, block_size=1024) + 1
"""


def test_what_xla_makes_around_a_kernel_is_found_once_and_executed(
    x: np.ndarray, tmp_path: Path, compile_text: Compile, store: Store
) -> None:
    function, made = compile_text("around", AROUND, "f32[2, 1024]")
    assert "xla" in {kernel.origin for kernel in made.kernels}
    changed = pallasc.compile(function, "f32[2, 1024]", isolated=True, store=store)
    np.testing.assert_array_equal(pallasc.emulate(made, x), x * 3 + 1)
    (tmp_path / "around.py").write_text(AROUND.replace("x * 2", "jnp.sin(x)"))
    np.testing.assert_array_equal(pallasc.emulate(made, x), x * 3 + 1)
    with pytest.raises(CompileError, match="cannot recover the PTX of XLA's kernels"):
        pallasc.emulate(changed, x)
    stored = pallasc.Artifact(made.record, made.blob)
    with pytest.raises(UnsupportedError, match=r"no PTX of the kernel \w+") as told:
        pallasc.emulate(stored, x)
    assert "a kernel of XLA's" in (told.value.hint or "")


TREES = """
from typing import NamedTuple
from pallasc.specs.library.elementwise import add

class Pair(NamedTuple):
    z: object
    a: object

def trees(x, pairs, nothing=None):
    first, second = pairs["l"]
    return {"sums": (add(x, first, block_size=1024), [add(x, second, block_size=1024)]),
            "pair": Pair(add(first, second, block_size=1024), x), "none": None}
"""


def test_arguments_and_results_are_trees_as_in_the_function(compile_text: Compile) -> None:
    kind = "f32[1024]"
    _, made = compile_text("trees", TREES, kind, {"l": (kind, kind)})
    x, y, z = (np.full(1024, n, np.float32) for n in (1, 2, 4))
    found = pallasc.emulate(made, x, pairs={"l": [y, z]})
    assert found.keys() == {"sums", "pair", "none"}
    first, (second,) = found["sums"]
    assert isinstance(found["sums"], tuple)
    assert [a[0] for a in (first, second, found["pair"].z, found["pair"].a)] == [3, 5, 6, 1]
    assert found["none"] is None
    with pytest.raises(ArgumentError, match="pairs must be a mapping with the keys l"):
        pallasc.emulate(made, x, {"m": [y, z]})


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        (
            lambda x: x[0],
            "x has shape [1024], and the kernel takes f32[2, 1024].",
            "Compile the function for this shape.",
        ),
        (
            lambda x: x.astype(np.float64),
            "x has dtype f64, and the kernel takes f32[2, 1024].",
            "Convert it: numpy.asarray(x, numpy.float32).",
        ),
        (
            lambda x: x.astype(ml_dtypes.bfloat16),
            "x has dtype bf16, and the kernel takes f32[2, 1024].",
            "Convert it: numpy.asarray(x, numpy.float32).",
        ),
        (lambda x: "x.npy", "x must be an array, not a str.", "Pass a NumPy array"),
        (lambda x: object(), "x must be an array, not an object.", "Pass a NumPy array"),
        (lambda x: [[1], [2, 3]], "x is a list that NumPy cannot read: ", "Pass a NumPy array"),
    ],
)
def test_what_is_not_the_array_that_is_needed_is_refused(
    change: Any, message: str, hint: str, artifact: pallasc.Artifact, x: np.ndarray
) -> None:
    with pytest.raises(ArgumentError) as told:
        pallasc.emulate(artifact, change(x), x)
    assert f": {message}" in told.value.message
    assert hint in (told.value.hint or "")


def test_arrays_of_torch_are_read_from_the_cpu(artifact: pallasc.Artifact, x: np.ndarray) -> None:
    torch = pytest.importorskip("torch")
    given = torch.from_numpy(x)
    np.testing.assert_array_equal(pallasc.emulate(artifact, given, x), x + x)
    with pytest.raises(ArgumentError, match=r"a Tensor that NumPy cannot read: .*detach"):
        pallasc.emulate(artifact, given.requires_grad_(), x)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_arguments_is_told_with_what_it_takes(
    count: int, artifact: pallasc.Artifact, x: np.ndarray
) -> None:
    with pytest.raises(ArgumentError) as told:
        pallasc.emulate(artifact, *[x] * count)
    given = "was given 3 arguments by position" if count > 2 else f"was not given {'xy'[count]}"
    assert f" {given}." in told.value.message
    assert told.value.hint == "It takes x: f32[2, 1024], y: f32[2, 1024]."


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (None, "None"),
        (7, "an int"),
        ("k.pallasc", "a str"),
        (add, "a function"),
        (pallasc.Kernels(), "a Kernels"),
    ],
)
def test_what_is_neither_artifact_nor_kernel_is_refused(given: Any, what: str) -> None:
    with pytest.raises(ArgumentError) as told:
        pallasc.emulate(given)
    assert told.value.message == f"emulate takes an artifact or a kernel, not {what}."
    assert "pallasc.open_bundle(path)[name]" in (told.value.hint or "")


@pytest.fixture(scope="module")
def tiles(made: dict[str, pallasc.Artifact]) -> Any:
    """Return variants of one kernel: two for the same arrays, one for others."""
    return pallasc.Kernels(("add", {"block": b}, made[f"add_{n}_{b}"]) for n, b in POINTS)["add"]


def test_of_a_kernel_the_variant_is_executed_that_takes_the_arrays(tiles: Any) -> None:
    x = np.arange(2048, dtype=np.float32)
    np.testing.assert_array_equal(pallasc.emulate(tiles, x, x), x + x)
    half = x[:1024]
    np.testing.assert_array_equal(pallasc.emulate(tiles, half, half, block=512), half + half)
    with pytest.raises(ArgumentError, match="several variants of add take these") as told:
        pallasc.emulate(tiles, half, half)
    assert "add[block=512]" in told.value.message
    assert "Name the parameters that they differ in" in (told.value.hint or "")
    with pytest.raises(ArgumentError, match=r"no variant of add takes these.* has shape \[7\]"):
        pallasc.emulate(tiles, x[:7], x[:7])
