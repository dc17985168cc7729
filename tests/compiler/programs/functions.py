"""Functions around kernels whose plans are looked at step by step."""

from typing import Any

import jax
import jax.numpy as jnp
from constants import CONSTANTS
from jax.experimental.pallas import mosaic_gpu as plgpu


def k(x: Any) -> Any:
    """Add one, in a Mosaic kernel."""

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + jnp.asarray(1, x_ref.dtype)

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def around(x: Any) -> Any:
    return k(jnp.sin(k(x) * 2).T) + 3


def zeros_and_constant(x: Any) -> Any:
    return k(x) + jnp.zeros((128, 128), jnp.float32), jnp.array([1.0, 2.0, 3.0]) + 0


def constants(x: Any) -> Any:
    # Looked up by index, so that the constants must lie in memory.
    return {
        name: jax.lax.dynamic_index_in_dim(jnp.asarray(value), x, keepdims=False)
        for name, value in CONSTANTS.items()
    }


_X = "f32[128, 128]"
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "around": (around, {"x": _X}, {}),
    "zeros_and_constant": (zeros_and_constant, {"x": _X}, {}),
    "aligned_slice": (lambda x: k(x[64:]), {"x": _X}, {}),
    "misaligned_slice": (lambda x: k(x[1:65]), {"x": "f32[128, 32]"}, {}),
    "slice_of_result": (lambda x: k(x)[3:5], {"x": _X}, {}),
    "constants": (constants, {"x": "i64[]"}, {}),
}
