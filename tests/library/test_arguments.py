"""Library kernels refuse arguments that do not fit, with a message that names them."""

import importlib
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import pytest

A = np.zeros((128, 128), jnp.bfloat16)
BIAS = np.zeros((128,), jnp.float32)
WRONG = [
    ("elementwise", "add", (A, A[:64]), {}, r"y is bfloat16\[64, 128\]"),
    ("elementwise", "add", (A, A), {"block_size": 100}, r"block_size=100 must be a multiple"),
    ("elementwise", "add", (A, A), {"block_size": 128 * 100}, r"x has 16384 elements"),
    ("rows", "softmax", (A[0],), {}, r"x must be a matrix \[M, N\]"),
    ("rows", "softmax", (A,), {"rows_per_block": 3}, r"m=128 rows must be a multiple"),
    ("rows", "softmax", (A[:, :100],), {}, r"n=100 columns must be a multiple of 128"),
    ("rows", "rms_norm", (A, A[0, :64]), {}, r"weight has shape \[64\], but x has 128"),
    ("rows", "row_sum", (A,), {"chunk_size": 256}, r"n=128 columns must be a positive"),
    ("hopper_matmul", "matmul", (A, A[:64]), {}, r"expected \[M, K\] and \[K, N\]"),
    ("hopper_matmul", "matmul", (A, A), {"tile_m": 64}, r"tile_m=64 must be a multiple of 128"),
    ("hopper_matmul", "matmul", (A, A), {"tile_n": 96}, r"n=128 must be a multiple of tile_n=96"),
    ("hopper_matmul", "matmul", (BIAS, BIAS), {}, r"must both be bf16 or f16, but are float32"),
    ("hopper_matmul", "matmul_bias_activation", (A, A, BIAS[:64]), {}, r"must be float32\[128\]"),
    (
        "hopper_matmul",
        "matmul_bias_activation",
        (A, A, BIAS),
        {"activation": "swish"},
        r"activation='swish' must be one of gelu, none, relu",
    ),
    ("hopper_matmul", "dequant_matmul", (A, A, BIAS), {}, r"weights must be int8"),
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
