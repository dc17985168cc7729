"""Functions around kernels, and what each kernel does in plain JAX.

Under `plain`, a function runs without kernels, which gives the right numbers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

_plain = False


@contextmanager
def plain() -> Iterator[None]:
    """Replace the kernels by plain JAX."""
    global _plain
    _plain = True
    try:
        yield
    finally:
        _plain = False


def like(*arrays: Any, dtype: Any = None) -> Any:
    """Return the types of results with the shapes of arrays."""
    types = [jax.ShapeDtypeStruct(array.shape, dtype or array.dtype) for array in arrays]
    return types[0] if len(types) == 1 else tuple(types)


def increment(x: Any) -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + jnp.asarray(1, x_ref.dtype)

    return x + 1 if _plain else plgpu.kernel(body, out_type=like(x))(x)


def pair(x: Any, y: Any) -> Any:
    def body(x_ref: Any, y_ref: Any, s_ref: Any, d_ref: Any) -> None:
        s_ref[...] = x_ref[...] + y_ref[...]
        d_ref[...] = x_ref[...] - y_ref[...]

    return (x + y, x - y) if _plain else plgpu.kernel(body, out_type=like(x, x))(x, y)


def doubled(x: Any) -> Any:
    """Double in shared memory, to and from which TMA copies."""

    def body(x_ref: Any, o_ref: Any, inside: Any, outside: Any, barrier: Any) -> None:
        plgpu.copy_gmem_to_smem(x_ref, inside, barrier)
        plgpu.barrier_wait(barrier)
        outside[...] = inside[...] * 2
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(outside, o_ref)
        plgpu.wait_smem_to_gmem(0)

    memory = plgpu.SMEM(x.shape, x.dtype)
    scratch = [memory, memory, plgpu.Barrier()]
    return x * 2 if _plain else plgpu.kernel(body, out_type=like(x), scratch_types=scratch)(x)


def signalled(x: Any) -> Any:
    """Triple; a semaphore that does not begin with zero never becomes 1."""

    def body(x_ref: Any, o_ref: Any, signal: Any) -> None:
        pl.semaphore_signal(signal, 1)
        o_ref[...] = x_ref[...] * 3
        pl.semaphore_wait(signal, 1)

    scratch = [plgpu.SemaphoreType.REGULAR]
    return x * 3 if _plain else plgpu.kernel(body, out_type=like(x), scratch_types=scratch)(x)


def _with_references(body: Any, *operands: Any, out_type: Any = ()) -> Any:
    """Call a kernel that changes references; with those, JAX 0.10 has `pl.kernel` alone."""
    mesh = plgpu.Mesh(grid=(1,), grid_names=("block",))
    params = plgpu.CompilerParams()
    return pl.kernel(body, out_type=out_type, mesh=mesh, compiler_params=params)(*operands)


def added(start: Any, *more: Any) -> Any:
    """Add to a reference that is passed, once for each array."""

    def body(x_ref: Any, ref: Any) -> None:
        ref[...] = ref[...] + x_ref[...]

    if _plain:
        return start + sum(more)
    ref = jax.new_ref(start)
    for x in more:
        _with_references(body, x, ref)
    return ref[...]


def closed_over(start: Any, x: Any, y: Any) -> Any:
    """Add to a reference that the body closes over, and return a product as well."""
    if _plain:
        return x * y, start + x
    ref = jax.new_ref(start)

    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * y_ref[...]
        ref[...] = ref[...] + x_ref[...]

    return _with_references(body, x, y, out_type=like(x)), ref[...]


def aliased(x: Any, y: Any) -> Any:
    """Triple and subtract; the result takes the place of the first operand.

    JAX gives `pl.pallas_call` to Mosaic before 0.11, to Triton from then on.
    """

    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 3 - y_ref[...]

    call = pl.pallas_call(body, out_shape=like(x), input_output_aliases={0: 0})
    return x * 3 - y if _plain else call(x, y)


def aliased_kept(x: Any, y: Any) -> Any:
    total, difference = pair(x, y)
    return aliased(total, y), total, difference


def tree_in_a_kernel(x: Any, left: Any, right: Any) -> Any:
    """Pass nested arrays to one kernel, which returns nested arrays of several types."""

    def body(x_ref: Any, more_ref: Any, out_ref: Any) -> None:
        out_ref["a"][0][...] = (x_ref[...] + more_ref["left"][...]).astype(jnp.bfloat16)
        out_ref["b"][...] = more_ref["rest"][0][...] * 2
        out_ref["a"][1][...] = jnp.sum(x_ref[...])

    if _plain:
        return {"a": ((x + left).astype(jnp.bfloat16), x.sum()), "b": right * 2}
    total = jax.ShapeDtypeStruct((), x.dtype)
    out = {"a": (like(x, dtype=jnp.bfloat16), total), "b": like(right)}
    return plgpu.kernel(body, out_type=out)(x, {"left": left, "rest": [right]})


class Both(NamedTuple):
    """Two results."""

    left: Any
    right: Any


def around(x: Any) -> Any:
    return increment(jnp.sin(increment(x) * 2).T) + 3


def zeroed(x: Any) -> Any:
    return pair(x, jnp.zeros(x.shape, x.dtype))


def transposed_constant(x: Any) -> Any:
    return pair(x, jnp.arange(x.size, dtype=jnp.float32).reshape(x.shape).T)[1]


def doubled_twice(x: Any) -> Any:
    return doubled(doubled(x) + 1)


def signalled_twice(x: Any) -> Any:
    return signalled(signalled(x))


def slices(x: Any) -> Any:
    return increment(x[64:]), pair(x[1:33], x[40:72]), increment(x)[3:5], increment(x[:, :16])


def written_slice(x: Any) -> Any:
    return jnp.zeros((256, *x.shape[1:]), x.dtype).at[128:].set(increment(x))


def counted(x: Any) -> Any:
    return lax.fori_loop(0, 5, lambda i, v: increment(v) * 2, x)


def scanned(x: Any, y: Any) -> Any:
    return lax.scan(lambda carry, row: (increment(carry) + row, increment(row)), x, y)


def nested_loops(x: Any, y: Any, z: Any) -> Any:
    def outer(i: Any, v: Any) -> Any:
        return lax.fori_loop(0, 2, lambda j, w: w + increment(y[i]) * increment(z[j]), v)

    return lax.fori_loop(0, 3, outer, x)


def tree(x: Any, more: Any) -> Any:
    first, (second, _) = more["first"], more["rest"]
    return {"b": increment(x), "a": [increment(first), (second * 2, None)], "c": Both(x, first)}


def passed_through(x: Any, y: Any, s: Any, e: Any) -> Any:
    return y, increment(x), increment(x), increment(x) * s, s + 1, e * 2


def product(x: Any, y: Any) -> Any:
    return increment(x @ y), increment(y).sum(axis=0)


@jax.custom_vjp
def weighted(x: Any, y: Any) -> Any:
    return doubled(x) + increment(y)


def _backward(kept: Any, slope: Any) -> Any:
    x, y = kept
    total, difference = pair(slope * x, slope * y)
    return increment(total), difference


weighted.defvjp(lambda x, y: (weighted(x, y), (x, y)), _backward)


def backward(x: Any, y: Any, slope: Any) -> Any:
    result, gradient = jax.vjp(weighted, x, y)
    return result, gradient(slope)


_M, _V, _S = "f32[128, 128]", "f32[128]", "f32[64, 64]"
CASES: dict[Callable[..., Any], list[Any]] = {
    around: [_M],
    zeroed: [_M],
    transposed_constant: [_M],
    doubled_twice: [_S],
    signalled_twice: [_V],
    added: [_M, _M, _M],
    closed_over: [_M, _M, _M],
    aliased_kept: [_V, _V],
    tree_in_a_kernel: [_V, _V, "f32[256]"],
    slices: ["f32[128, 32]"],
    written_slice: [_M],
    counted: [_V],
    scanned: [_V, "f32[4, 128]"],
    nested_loops: [_V, "f32[3, 128]", "f32[2, 128]"],
    tree: [_M, {"first": _M, "rest": [_M, None]}],
    passed_through: [_M, "i32[7]", "f32[]", "f32[0, 4]"],
    product: [_S, _S],
    backward: [_S, _S, _S],
}
"""The arrays of each function."""
