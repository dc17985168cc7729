"""What a wrapper of kernels may compute beside them, for XLA to make kernels of.

Each is a function of arrays; `ARGUMENTS` has their dtypes and shapes. JAX on the CPU gives the
numbers that are right.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

ARGUMENTS: dict[str, tuple[str, ...]] = {
    "of_a_matrix": ("f32[48, 80]", "i32[20]"),
    "reductions": ("f32[40, 300]", "f32[300, 40]", "i32[4000]", "i32[700]"),
    "integers": ("u32[2]", "i32[8]", "i32[100]", "i32[100]", "u8[300]"),
    "floats": ("f32[512]", "f32[4, 100]", "f32[32, 64]", "f32[64, 32]", "c64[100]"),
    "product": ("f16[64, 64]", "f16[64, 64]"),
    "doubles": ("f64[100]",),
}


def of_a_matrix(x: Any, rows: Any) -> Any:
    of_it = (arithmetic, casts, transposed, place_of_the_largest, padded_and_joined, softmax)
    return [each(x) for each in of_it], gathered(x, rows), scattered(x, rows)


def reductions(by_row: Any, by_column: Any, whole: Any, running: Any) -> Any:
    sums = row_sums(by_row), column_sums(by_column), running_sum(running)
    return sums, most_and_least(whole)


def integers(key: Any, sizes: Any, x: Any, y: Any, small: Any) -> Any:
    found = random_numbers(key), offsets_of_groups(sizes), whole_numbers(x, y)
    return found, bytes_and_bits(small)


def floats(x: Any, rows: Any, left: Any, right: Any, pairs: Any) -> Any:
    found = small_floats(x), sorted_rows(rows), product_of_floats(left, right)
    return found, complex_numbers(pairs)


def arithmetic(x: Any) -> Any:
    return jnp.sin(x) * jnp.exp(-x) + jnp.tanh(x) / (1 + x * x), jnp.log(jnp.abs(x)), x**3


def casts(x: Any) -> Any:
    return x.astype(jnp.bfloat16), x.astype(jnp.float16), (x * 100).astype(jnp.int8), x > 0


def small_floats(x: Any) -> Any:
    narrow = x.astype(jnp.float8_e4m3fn)
    return narrow, jax.lax.reduce_precision(x, 4, 3), x.astype(jnp.float8_e5m2)


def transposed(x: Any) -> Any:
    return x.T, x.reshape(6, 8, 80).transpose(1, 2, 0)


def row_sums(x: Any) -> Any:
    return x.sum(1), (x * x).mean(1)


def column_sums(x: Any) -> Any:
    return x.sum(0)


def most_and_least(x: Any) -> Any:
    return x.max(), x.min(), x.sum()


def place_of_the_largest(x: Any) -> Any:
    return jnp.argmax(x, axis=1)


def padded_and_joined(x: Any) -> Any:
    return jnp.concatenate([jnp.pad(x, ((1, 2), (3, 0)), constant_values=7), jnp.ones((4, 83))])


def running_sum(x: Any) -> Any:
    return jnp.cumsum(x)


def sorted_rows(x: Any) -> Any:
    return jnp.sort(x, axis=1), jnp.argsort(x, axis=1)


def gathered(x: Any, rows: Any) -> Any:
    return x[rows], jnp.take_along_axis(x, jnp.zeros((48, 1), jnp.int32) + rows[0], axis=1)


def scattered(x: Any, rows: Any) -> Any:
    return x.at[rows].add(1.0), x.at[rows, 3].set(5.0)


def product(x: Any, y: Any) -> Any:
    return x @ y


def product_of_floats(x: Any, y: Any) -> Any:
    return jnp.dot(x, y, precision="highest")


def random_numbers(key: Any) -> Any:
    return jax.random.bits(jax.random.wrap_key_data(key), (64,))


def offsets_of_groups(sizes: Any) -> Any:
    ends = jnp.cumsum(sizes)
    return jnp.searchsorted(ends, jnp.arange(64), side="right"), ends - sizes


def whole_numbers(x: Any, y: Any) -> Any:
    divisor = y + 1
    return x // divisor, x % divisor, x << 3, jnp.bitwise_xor(x, y), jnp.clip(x, 3, 9)


def bytes_and_bits(x: Any) -> Any:
    return jax.lax.population_count(x), x.astype(jnp.int32).sum(), ~x, x.reshape(3, 100).max(1)


def softmax(x: Any) -> Any:
    return jax.nn.softmax(x, axis=1)


def doubles(x: Any) -> Any:
    return jnp.sqrt(jnp.abs(x)) + 1 / x, x.sum()


def complex_numbers(x: Any) -> Any:
    return x * jnp.conj(x) + x, jnp.abs(x)
