"""Functions around kernels whose plans are looked at step by step."""

from __future__ import annotations

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


def pair(x: Any, y: Any) -> Any:
    """Give the sum and the difference, in one Mosaic kernel."""

    def body(x_ref: Any, y_ref: Any, s_ref: Any, d_ref: Any) -> None:
        s_ref[...] = x_ref[...] + y_ref[...]
        d_ref[...] = x_ref[...] - y_ref[...]

    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return plgpu.kernel(body, out_type=(out, out))(x, y)


class Pair(NamedTuple):
    """Two arrays."""

    left: Any
    right: Any


def around(x: Any) -> Any:
    return k(jnp.sin(k(x) * 2).T) + 3


def zeros_and_constant(x: Any) -> Any:
    return k(x) + jnp.zeros((128, 128), jnp.float32), jnp.array([1.0, 2.0, 3.0]) + 0


def zeroed_kernel_input(x: Any) -> Any:
    total, _ = pair(x, jnp.zeros((128, 128), jnp.float32))
    return total


def filled_kernel_input(x: Any) -> Any:
    total, _ = pair(x, jnp.full((128, 128), 1.5, jnp.float32))
    return total


def constant_kernel_input(x: Any) -> Any:
    total, _ = pair(x, jnp.asarray(np.arange(128 * 128, dtype=np.float32).reshape(128, 128)))
    return total


def transposed_constant(x: Any) -> Any:
    total, _ = pair(x, jnp.asarray(np.arange(128 * 128, dtype=np.float32).reshape(128, 128)).T)
    return total


def slices(x: Any) -> Any:
    return k(x[64:]) + 1, k(x[:, 0:64])


def aligned_slice(x: Any) -> Any:
    return k(x[64:])


def slice_of_result(x: Any) -> Any:
    return k(x)[3:5]


def matmul(x: Any, y: Any) -> Any:
    return k(x), y @ y


def several(x: Any, y: Any) -> Any:
    total, difference = pair(x, y)
    return total, difference, k(total)


def unused(x: Any, y: Any) -> Any:
    return k(x)


def passed_through(x: Any, y: Any) -> Any:
    return y, k(x)


def twice(x: Any) -> Any:
    y = k(x)
    return y, y


def scalars(x: Any, s: Any) -> Any:
    return k(x) * s, s + 1


def empty(x: Any, e: Any) -> Any:
    return k(x), e, jnp.zeros((0, 3), jnp.float32)


def only_empty(e: Any) -> Any:
    return e * 2


def updated(x: Any) -> Any:
    return jnp.zeros((256, 128), x.dtype).at[128:].set(k(x))


def dynamic(x: Any, start: Any) -> Any:
    return k(jax.lax.dynamic_slice(x, (start, 0), (64, 128)))


def nested(x: Any, more: Any) -> Any:
    first, (second, _) = more["first"], more["rest"]
    return {"b": k(x), "a": [first + 1, (second * 2, None)], "c": Pair(x + 1, first)}


def same(x: Any) -> Any:
    return x * 2


def sort(x: Any) -> Any:
    return jnp.sort(k(x), axis=-1)


def uniform(x: Any) -> Any:
    return k(x) + jax.random.uniform(jax.random.key(0), x.shape)


def cumulative(x: Any) -> Any:
    return jnp.cumsum(k(x), axis=0)


def top(x: Any) -> Any:
    return jax.lax.top_k(k(x), 4)


def argmax(x: Any) -> Any:
    return jnp.argmax(k(x), axis=-1)


def scatter(x: Any, i: Any) -> Any:
    return k(x).at[i].add(1.0)


def gather(x: Any, i: Any) -> Any:
    return k(x)[i]


def column_sum(x: Any) -> Any:
    return x.sum(axis=0)


def column_max(x: Any) -> Any:
    return x.max(axis=0)


def misaligned_slice(x: Any) -> Any:
    return k(x[1:65])


def big_matmul(x: Any, y: Any) -> Any:
    return x @ y


def batched_matmul(x: Any, y: Any) -> Any:
    return jnp.einsum("bij,bjk->bik", x, y)


def f64_matmul(x: Any, y: Any) -> Any:
    return x @ y


def i8_matmul(x: Any, y: Any) -> Any:
    return jnp.dot(x, y, preferred_element_type=jnp.int32)


def rbg(x: Any) -> Any:
    return k(x) + jax.random.uniform(jax.random.key(0, impl="rbg"), x.shape)


def constant(name: str) -> Any:
    def function(x: Any) -> Any:
        # Looked up by index, so that the constant must lie in memory.
        return jax.lax.dynamic_index_in_dim(jnp.asarray(CONSTANTS[name]), x, keepdims=False)

    return function


def fill(value: float, dtype: str) -> Any:
    def function() -> Any:
        return jnp.full((128, 64), value, dtype)

    return function


_X, _T = "f32[128, 128]", "f32[64, 64]"
_DTYPES = (
    "bool", "i4", "u4", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32",
    "f64", "c64", "c128", "f8e4m3fn", "f8e5m2",
)  # fmt: skip
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "around": (around, {"x": _X}, {}),
    "zeros_and_constant": (zeros_and_constant, {"x": _X}, {}),
    "zeroed_kernel_input": (zeroed_kernel_input, {"x": _X}, {}),
    "filled_kernel_input": (filled_kernel_input, {"x": _X}, {}),
    "constant_kernel_input": (constant_kernel_input, {"x": _X}, {}),
    "transposed_constant": (transposed_constant, {"x": _X}, {}),
    "slices": (slices, {"x": _X}, {}),
    "aligned_slice": (aligned_slice, {"x": _X}, {}),
    "slice_of_result": (slice_of_result, {"x": _X}, {}),
    "matmul": (matmul, {"x": _X, "y": _T}, {}),
    "several": (several, {"x": _X, "y": _X}, {}),
    "unused": (unused, {"x": _X, "y": "i32[7]"}, {}),
    "passed_through": (passed_through, {"x": _X, "y": "i32[7]"}, {}),
    "twice": (twice, {"x": _X}, {}),
    "scalars": (scalars, {"x": _X, "s": "f32[]"}, {}),
    "empty": (empty, {"x": _X, "e": "f32[0, 4]"}, {}),
    "only_empty": (only_empty, {"e": "f32[0, 4]"}, {}),
    "updated": (updated, {"x": _X}, {}),
    "dynamic": (dynamic, {"x": _X, "start": "i32[]"}, {}),
    "nested": (nested, {"x": _X, "more": {"rest": ["f32[3]", None], "first": "f32[2]"}}, {}),
    "sort": (sort, {"x": _X}, {}),
    "uniform": (uniform, {"x": _X}, {}),
    "cumulative": (cumulative, {"x": _X}, {}),
    "top": (top, {"x": _X}, {}),
    "argmax": (argmax, {"x": _X}, {}),
    "scatter": (scatter, {"x": _X, "i": "i32[4]"}, {}),
    "gather": (gather, {"x": _X, "i": "i32[4]"}, {}),
    "column_sum": (column_sum, {"x": "f32[65536, 128]"}, {}),
    "column_max": (column_max, {"x": "f32[65536, 128]"}, {}),
    "misaligned_slice": (misaligned_slice, {"x": "f32[128, 32]"}, {}),
    "big_matmul": (big_matmul, {"x": "f16[4096, 4096]", "y": "f16[4096, 4096]"}, {}),
    "batched_matmul": (batched_matmul, {"x": "f32[8, 512, 512]", "y": "f32[8, 512, 512]"}, {}),
    "f64_matmul": (f64_matmul, {"x": "f64[512, 512]", "y": "f64[512, 512]"}, {}),
    "i8_matmul": (i8_matmul, {"x": "i8[512, 512]", "y": "i8[512, 512]"}, {}),
    "rbg": (rbg, {"x": _X}, {}),
    "by_position": (lambda a, b: k(a) + b, [_X, _X], {}),
    "static": (lambda x, *, n: k(x) * n, {"x": _X}, {"n": 3}),
    "all_dtypes": (
        lambda **arrays: {name: array[::-1] for name, array in arrays.items()},
        {name: f"{name}[8, 4]" for name in _DTYPES},
        {},
    ),
    **{f"constant_{name}": (constant(name), {"x": "i64[]"}, {}) for name in CONSTANTS},
    "fill_zero": (fill(0, "float32"), {}, {}),
    "fill_word": (fill(1.5, "float32"), {}, {}),
    "fill_half": (fill(1.5, "float16"), {}, {}),
    "fill_long": (fill(1, "int32"), {}, {}),
}
