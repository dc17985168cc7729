"""Every library kernel, interpreted on the CPU, gives what its reference gives.

The interpreter carries out TMA copies and wgmma where they are issued. It finds wrong indices,
races between warpgroups and deadlocks, but not every missing wait for an asynchronous operation.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

# Private, but the only place that has the switch, the races and the reset in 0.10 and 0.12 alike.
_INTERPRETER = "jax._src.pallas.mosaic_gpu.interpret"
_TYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16, "i8": jnp.int8}


@dataclass(frozen=True, slots=True)
class Case:
    """A library kernel at a size that the interpreter gets through in a second."""

    name: str
    kernel: str
    arrays: Sequence[tuple[str, tuple[int, ...]]]
    static: dict[str, object] = field(default_factory=dict)


def _rowwise(dtype: str) -> list[Case]:
    return [
        Case("elementwise", "add", [(dtype, (8, 256)), (dtype, (8, 256))], {"block_size": 512}),
        Case("softmax", "softmax", [(dtype, (8, 384))], {"rows_per_block": 2}),
        Case("rms_norm", "rms_norm", [(dtype, (8, 384)), (dtype, (384,))], {"rows_per_block": 2}),
        Case("reduction", "row_sum", [(dtype, (6, 512))], {"chunk_size": 128}),
    ]


def _fused(activation: str) -> Case:
    arrays = [("bf16", (128, 192)), ("bf16", (192, 128)), ("f32", (128,))]
    static = {"activation": activation, "tile_m": 64, "tile_n": 64, "max_concurrent_steps": 2}
    return Case("fused_matmul", "matmul_bias_activation", arrays, static)


_SMALL_TILES = {"tile_n": 64, "max_concurrent_steps": 2}
CASES = [
    *_rowwise("f32"),
    *_rowwise("bf16"),
    # Several tiles of rows and of columns.
    Case("hopper_matmul", "matmul", [("f16", (256, 192)), ("f16", (192, 128))], _SMALL_TILES),
    *map(_fused, ("relu", "gelu")),
    Case(
        "dequant_matmul",
        "dequant_matmul",
        [("bf16", (128, 192)), ("i8", (192, 128)), ("f32", (128,))],
        {"tile_m": 64, **_SMALL_TILES},
    ),
    Case("blackwell_matmul", "matmul", [("bf16", (256, 192)), ("bf16", (192, 128))], _SMALL_TILES),
]

# What a JAX version's interpreter cannot run yet, with JAX's own words. No library kernel is
# refused by 0.11 or later.
REFUSED = {("0.10", "blackwell_matmul"): "Unsupported memory space: tmem"}


def _case_id(case: Case) -> str:
    dtype = case.arrays[0][0]
    detail = case.static.get("activation")
    return "-".join(str(part) for part in (case.name, detail, dtype) if part)


@pytest.fixture
def interpreter() -> Iterator[ModuleType]:
    """Interpret every kernel traced in the test, looking for races; give the interpreter."""
    params = importlib.import_module(f"{_INTERPRETER}.params")
    interpreter = importlib.import_module(f"{_INTERPRETER}.interpret_pallas_call")
    with params.force_gpu_interpret_mode(params.InterpretGPUParams(detect_races=True)):
        yield interpreter
    # After a kernel that failed half-way, the interpreter refuses the next one without this.
    interpreter.reset_gpu_interpret_mode_state()


@pytest.mark.parametrize("case", CASES, ids=_case_id)
def test_interpreted_kernel_gives_its_reference(case: Case, interpreter: ModuleType) -> None:
    module = importlib.import_module(f"pallasc.specs.library.{case.name}")
    kernel = getattr(module, case.kernel)
    inputs = _random_inputs(case)
    _skip_where_the_interpreter_refuses(case, kernel, inputs)

    result = np.asarray(kernel(*inputs, **case.static))

    assert not interpreter.get_races().races_found
    expected = _reference(module, case)(*inputs, **case.static)
    assert result.dtype == expected.dtype
    assert result.shape == expected.shape
    np.testing.assert_allclose(
        result.astype(np.float32), np.asarray(expected, np.float32), **_tolerance(case.name)
    )


@pytest.mark.parametrize("case", CASES, ids=_case_id)
def test_reference_distinguishes_its_inputs(case: Case) -> None:
    """A reference that ignored an input would let a wrong kernel through."""
    module = importlib.import_module(f"pallasc.specs.library.{case.name}")
    reference, inputs = _reference(module, case), _random_inputs(case)
    result = np.asarray(reference(*inputs, **case.static), np.float32)
    for position, changed in enumerate(_random_inputs(case, seed=1)):
        others = [*inputs[:position], changed, *inputs[position + 1 :]]
        other = np.asarray(reference(*others, **case.static), np.float32)
        assert not np.allclose(result, other, **_tolerance(case.name))


def _skip_where_the_interpreter_refuses(
    case: Case, kernel: Callable[..., jax.Array], inputs: Sequence[jax.Array]
) -> None:
    version = ".".join(jax.__version__.split(".")[:2])
    words = REFUSED.get((version, case.name))
    if words is None:
        return
    # It must still refuse: once it no longer does, the entry in REFUSED has to go.
    with pytest.raises(NotImplementedError) as refusal:
        kernel(*inputs, **case.static)
    assert str(refusal.value) == words
    pytest.skip(f"the interpreter of JAX {jax.__version__} says: {words}")


def _random_inputs(case: Case, *, seed: int = 0) -> list[jax.Array]:
    random = np.random.default_rng(seed)
    return [_random_array(random, _TYPES[dtype], shape) for dtype, shape in case.arrays]


def _random_array(random: np.random.Generator, dtype: type, shape: tuple[int, ...]) -> jax.Array:
    if dtype is jnp.int8:
        return jnp.asarray(random.integers(-128, 128, shape), dtype)
    return jnp.asarray(random.standard_normal(shape), dtype)


def _declaration(name: str) -> dict[str, object]:
    text = resources.files("pallasc.specs.library").joinpath(f"{name}.yaml").read_text("utf-8")
    (declaration,) = yaml.safe_load(text)["kernels"]
    return declaration


def _reference(module: ModuleType, case: Case) -> Callable[..., jax.Array]:
    declaration = _declaration(case.name)
    assert declaration["entry"] == f"{module.__name__}:{case.kernel}"
    owner, _, function = str(declaration["reference"]).partition(":")
    assert owner == module.__name__
    return getattr(module, function)


def _tolerance(name: str) -> dict[str, float]:
    return _declaration(name)["tolerance"]


A = np.zeros((128, 128), jnp.bfloat16)
BIAS = np.zeros((128,), jnp.float32)
WRONG = [
    ("elementwise", "add", (A, A[:64]), {}, r"y is bfloat16\[64, 128\]"),
    ("elementwise", "add", (A, A), {"block_size": 100}, r"block_size=100 must be a multiple"),
    ("elementwise", "add", (A, A), {"block_size": 128 * 100}, r"x has 16384 elements"),
    ("softmax", "softmax", (A[0],), {}, r"x must be a matrix \[M, N\]"),
    ("softmax", "softmax", (A,), {"rows_per_block": 3}, r"m=128 rows must be a multiple"),
    ("softmax", "softmax", (A[:, :100],), {}, r"n=100 columns must be a multiple of 128"),
    ("rms_norm", "rms_norm", (A, A[0, :64]), {}, r"weight has shape \[64\], but x has 128"),
    ("reduction", "row_sum", (A,), {"chunk_size": 256}, r"n=128 columns must be a positive"),
    ("hopper_matmul", "matmul", (A, A[:64]), {}, r"expected \[M, K\] and \[K, N\]"),
    ("hopper_matmul", "matmul", (A, A), {"tile_m": 64}, r"tile_m=64 must be a multiple of 128"),
    ("hopper_matmul", "matmul", (A, A), {"tile_n": 96}, r"n=128 must be a multiple of tile_n=96"),
    ("hopper_matmul", "matmul", (BIAS, BIAS), {}, r"must both be bf16 or f16, but are float32"),
    ("fused_matmul", "matmul_bias_activation", (A, A, BIAS[:64]), {}, r"must be float32\[128\]"),
    (
        "fused_matmul",
        "matmul_bias_activation",
        (A, A, BIAS),
        {"activation": "swish"},
        r"activation='swish' must be one of gelu, none, relu",
    ),
    ("dequant_matmul", "dequant_matmul", (A, A, BIAS), {}, r"weights must be int8"),
    ("blackwell_matmul", "matmul", (A, A), {"tile_m": 64}, r"tile_m=64 must be 128"),
    ("blackwell_matmul", "matmul", (A, A), {"tile_n": 96}, r"tile_n=96 must be 32, 64, 128"),
]


@pytest.mark.parametrize(("name", "kernel", "inputs", "static", "message"), WRONG)
def test_kernel_names_what_does_not_fit(
    name: str, kernel: str, inputs: Sequence[np.ndarray], static: dict[str, int], message: str
) -> None:
    module = importlib.import_module(f"pallasc.specs.library.{name}")
    with pytest.raises(ValueError, match=message):
        getattr(module, kernel)(*inputs, **static)
