"""What a wrapper of kernels may compute beside them, for XLA to make kernels of.

`ARGUMENTS` has the dtypes and shapes. JAX on the CPU gives the right numbers.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

ARGUMENTS: dict[str, tuple[str, ...]] = {
    "of_a_matrix": ("f32[48, 80]", "i32[20]"),
    "reductions": ("f32[40, 300]", "f32[300, 40]", "i32[700]"),
    "integers": ("u32[2]", "i32[8]", "i32[100]", "i32[100]", "u8[300]"),
    "floats": ("f32[512]", "f32[4, 100]", "f32[32, 64]", "f32[64, 32]", "c64[100]"),
    "product": ("f16[64, 64]", "f16[64, 64]"),
    "doubles": ("f64[100]",),
}


def of_a_matrix(x: Any, rows: Any) -> Any:
    computed = jnp.sin(x) * jnp.exp(-x) + jnp.tanh(x) / (1 + x * x), jnp.log(jnp.abs(x)), x**3
    casts = x.astype(jnp.bfloat16), x.astype(jnp.float16), (x * 100).astype(jnp.int8), x > 0
    padded = jnp.pad(x, ((1, 2), (3, 0)), constant_values=7)
    moved = x.T, x.reshape(6, 8, 80).transpose(1, 2, 0), jnp.concatenate([padded, padded])
    gathered = x[rows], jnp.take_along_axis(x, jnp.zeros((48, 1), jnp.int32) + rows[0], axis=1)
    scattered = x.at[rows].add(1.0), x.at[rows, 3].set(5.0)
    return computed, casts, moved, gathered, scattered, jax.nn.softmax(x, axis=1)


def reductions(by_row: Any, by_column: Any, running: Any) -> Any:
    sums = by_row.sum(1), (by_row * by_row).mean(1), by_column.sum(0), jnp.cumsum(running)
    return sums, running.max(), running.min(), running.sum(), jnp.argmax(by_row, axis=1)


def integers(key: Any, sizes: Any, x: Any, y: Any, small: Any) -> Any:
    ends, divisor = jnp.cumsum(sizes), y + 1
    return (
        jax.random.bits(jax.random.wrap_key_data(key), (64,)),
        (jnp.searchsorted(ends, jnp.arange(64), side="right"), ends - sizes),
        (x // divisor, x % divisor, x << 3, jnp.bitwise_xor(x, y), jnp.clip(x, 3, 9)),
        (jax.lax.population_count(small), small.astype(jnp.int32).sum(), ~small),
    )


def floats(x: Any, rows: Any, left: Any, right: Any, pairs: Any) -> Any:
    narrow = x.astype(jnp.float8_e4m3fn), x.astype(jnp.float8_e5m2)
    ordered = jnp.sort(rows, axis=1), jnp.argsort(rows, axis=1)
    exact = jnp.dot(left, right, precision="highest"), jax.lax.reduce_precision(x, 4, 3)
    return narrow, ordered, exact, pairs * jnp.conj(pairs) + pairs, jnp.abs(pairs)


def product(x: Any, y: Any) -> Any:
    return x @ y


def doubles(x: Any) -> Any:
    return jnp.sqrt(jnp.abs(x)) + 1 / x, x.sum()
