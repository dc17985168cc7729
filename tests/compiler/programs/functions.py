"""Functions around kernels whose plans are looked at step by step."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from constants import CONSTANTS
from jax.experimental.pallas import mosaic_gpu as plgpu


def k(x: Any) -> Any:
    """Add one, in a Mosaic kernel."""

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + jnp.asarray(1, x_ref.dtype)

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def total(x: Any, y: Any) -> Any:
    """Give the sum of what one Mosaic kernel adds and subtracts."""

    def body(x_ref: Any, y_ref: Any, s_ref: Any, d_ref: Any) -> None:
        s_ref[...] = x_ref[...] + y_ref[...]
        d_ref[...] = x_ref[...] - y_ref[...]

    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return plgpu.kernel(body, out_type=(out, out))(x, y)[0]


class Pair(NamedTuple):
    """Two arrays."""

    left: Any
    right: Any


def around(x: Any) -> Any:
    return k(jnp.sin(k(x) * 2).T) + 3


def zeros_and_constant(x: Any) -> Any:
    return k(x) + jnp.zeros((128, 128), jnp.float32), jnp.array([1.0, 2.0, 3.0]) + 0


def numbers() -> Any:
    return jnp.asarray(np.arange(128 * 128, dtype=np.float32).reshape(128, 128))


def outputs(x: Any, y: Any, e: Any) -> Any:
    total = k(x)
    return y, total, total, e, jnp.zeros((0, 3), jnp.float32)


def nested(x: Any, more: Any) -> Any:
    first, (second, _) = more["first"], more["rest"]
    return {"b": k(x), "a": [first + 1, (second * 2, None)], "c": Pair(x + 1, first)}


def constants(x: Any) -> Any:
    # Looked up by index, so that the constants must lie in memory.
    return {
        name: jax.lax.dynamic_index_in_dim(jnp.asarray(value), x, keepdims=False)
        for name, value in CONSTANTS.items()
    }


_X = "f32[128, 128]"
_DTYPES = (
    "bool", "i4", "u4", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32",
    "f64", "c64", "c128", "f8e4m3fn", "f8e5m2",
)  # fmt: skip
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "around": (around, {"x": _X}, {}),
    "zeros_and_constant": (zeros_and_constant, {"x": _X}, {}),
    "zeroed_kernel_input": (lambda x: total(x, jnp.zeros((128, 128))), {"x": _X}, {}),
    "constant_kernel_input": (lambda x: total(x, numbers()), {"x": _X}, {}),
    "transposed_constant": (lambda x: total(x, numbers().T), {"x": _X}, {}),
    "aligned_slice": (lambda x: k(x[64:]), {"x": _X}, {}),
    "misaligned_slice": (lambda x: k(x[1:65]), {"x": "f32[128, 32]"}, {}),
    "slice_of_result": (lambda x: k(x)[3:5], {"x": _X}, {}),
    "matmul": (lambda x, y: x @ y, {"x": "f16[4096, 4096]", "y": "f16[4096, 4096]"}, {}),
    "sort": (lambda x: jnp.sort(k(x), axis=-1), {"x": _X}, {}),
    "unused": (lambda x, y: k(x), {"x": _X, "y": "i32[7]"}, {}),
    "outputs": (outputs, {"x": _X, "y": "i32[7]", "e": "f32[0, 4]"}, {}),
    "only_empty": (lambda e: e * 2, {"e": "f32[0, 4]"}, {}),
    "nested": (nested, {"x": _X, "more": {"rest": ["f32[3]", None], "first": "f32[2]"}}, {}),
    "by_position": (lambda a, b: k(a) + b, [_X, "f32[]"], {}),
    "all_dtypes": (
        lambda **arrays: {name: array[::-1] for name, array in arrays.items()},
        {name: f"{name}[8, 4]" for name in _DTYPES},
        {},
    ),
    "constants": (constants, {"x": "i64[]"}, {}),
}
