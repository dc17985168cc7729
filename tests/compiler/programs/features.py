"""Small functions with what authors of kernels put into and around them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu


def like(x: Any, dtype: Any = None) -> Any:
    """Return the type of an array that is made as `x`."""
    return jax.ShapeDtypeStruct(x.shape, dtype or x.dtype)


def load(ref: Any, layout: Any) -> Any:
    """Load a reference in a layout; JAX 0.10 wants an index as well."""
    index: tuple[Any, ...] = ((),) if jax.__version_info__ < (0, 11) else ()
    return plgpu.load(ref, *index, layout=layout, optimized=False)


def increment(x: Any) -> Any:
    """Add one, in a Mosaic kernel."""

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + jnp.asarray(1, x_ref.dtype)

    return plgpu.kernel(body, out_type=like(x))(x)


def aliased(x: Any, y: Any) -> Any:
    """Add to the second operand, where it lies."""

    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + y_ref[...]

    aliases = {1: 0}
    return pl.pallas_call(body, out_shape=like(y), input_output_aliases=aliases)(x, y)


def in_place(x: Any, y: Any) -> Any:
    """Add twice to a reference."""

    def body(x_ref: Any, ref: Any) -> None:
        ref[...] = ref[...] + x_ref[...]

    ref = jax.new_ref(y)
    mesh = plgpu.Mesh(grid=(1,), grid_names=("block",))
    params = plgpu.CompilerParams()
    for _ in range(2):
        pl.kernel(body, out_type=(), mesh=mesh, compiler_params=params)(x, ref)
    return ref[...]


def tree(x: Any, more: Any) -> Any:
    """Take nested arrays into one kernel and give nested ones, of several types, from it."""

    def body(x_ref: Any, more_ref: Any, out_ref: Any) -> None:
        out_ref["a"][0][...] = (x_ref[...] + more_ref["left"][...]).astype(jnp.bfloat16)
        out_ref["b"][...] = more_ref["rest"][0][...] * 2
        out_ref["a"][1][...] = jnp.sum(x_ref[...])

    total = jax.ShapeDtypeStruct((), x.dtype)
    out = {"a": (like(x, jnp.bfloat16), total), "b": like(more["rest"][0])}
    return plgpu.kernel(body, out_type=out)(x, more)


def scalars(x: Any, factor: Any, row: Any) -> Any:
    """Read two scalars inside of a kernel, one of them as an index."""

    def body(x_ref: Any, factor_ref: Any, row_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[row_ref[...]] * factor_ref[...]

    out = jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
    return plgpu.kernel(body, out_type=out)(x, factor, row)


def empty(x: Any, nothing: Any) -> Any:
    """Take an array without elements into a kernel, and one out of it."""

    def body(x_ref: Any, nothing_ref: Any, o_ref: Any, empty_ref: Any) -> None:
        o_ref[...] = x_ref[...]

    return plgpu.kernel(body, out_type=(like(x), like(nothing)))(x, nothing)


def signalled(x: Any) -> Any:
    """Wait for a semaphore, twice."""

    def body(x_ref: Any, o_ref: Any, signal: Any) -> None:
        pl.semaphore_signal(signal, 1)
        o_ref[...] = x_ref[...] * 3
        pl.semaphore_wait(signal, 1)

    scratch = [plgpu.SemaphoreType.REGULAR]
    for _ in range(2):
        x = plgpu.kernel(body, out_type=like(x), scratch_types=scratch)(x)
    return x


def int4(x: Any) -> Any:
    """Widen packed integers."""

    def body(x_ref: Any, o_ref: Any) -> None:
        layout = plgpu.Layout.WG_STRIDED(x.shape, vec_size=8)
        o_ref[...] = load(x_ref, layout).astype(jnp.bfloat16)

    return plgpu.kernel(body, out_type=like(x, jnp.bfloat16))(x)


def float8(x: Any) -> Any:
    """Widen floats of 8 bits, and narrow them again."""

    def body(x_ref: Any, wide_ref: Any, narrow_ref: Any) -> None:
        value = x_ref[...].astype(jnp.float32)
        wide_ref[...] = value
        narrow_ref[...] = (value * 2).astype(x_ref.dtype)

    return plgpu.kernel(body, out_type=(like(x, jnp.float32), like(x)))(x)


def float8_product(x: Any, y: Any) -> Any:
    return increment(jnp.dot(x, y, preferred_element_type=jnp.float32))


def mapped(x: Any, y: Any) -> Any:
    """Run a kernel of vectors for each row of both operands, and for the rows of one alone."""

    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + y_ref[...]

    def one(x: Any, y: Any) -> Any:
        return plgpu.kernel(body, out_type=like(x))(x, y)

    return jax.vmap(one)(x, x), jax.vmap(one, in_axes=(0, None))(x, y)


def jitted(x: Any) -> Any:
    scaled = jax.jit(lambda v, n: increment(v) * n, static_argnames="n")
    return scaled(jax.jit(increment)(x), n=3)


@jax.custom_vjp
def squared(x: Any) -> Any:
    def forward_body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * x_ref[...]

    return plgpu.kernel(forward_body, out_type=like(x))(x)


def _squared_backward(x: Any, slope: Any) -> Any:
    def backward_body(x_ref: Any, slope_ref: Any, o_ref: Any) -> None:
        o_ref[...] = 2 * x_ref[...] * slope_ref[...]

    return (plgpu.kernel(backward_body, out_type=like(x))(x, slope),)


squared.defvjp(lambda x: (squared(x), x), _squared_backward)


def gradient(x: Any, slope: Any) -> Any:
    return jax.vjp(squared, x)[1](slope)[0]


def printing(x: Any) -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        pl.debug_print("x[0] is {}", x_ref[0])
        o_ref[...] = x_ref[...]

    return plgpu.kernel(body, out_type=like(x))(x)


_V, _M = "f32[128]", "f32[128, 128]"
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "aliased": (aliased, [_V, _V], {}),
    "in_place": (in_place, [_V, _V], {}),
    "tree": (tree, [_V, {"left": _V, "rest": ["f32[256]"]}], {}),
    "scalars": (scalars, [_M, "f32[]", "i32[]"], {}),
    "empty": (empty, [_V, "f32[0, 4]"], {}),
    "signalled": (signalled, [_V], {}),
    "int4": (int4, ["i4[64, 64]"], {}),
    "float8": (float8, ["f8e4m3fn[64, 64]"], {}),
    "float8_product": (float8_product, ["f8e4m3fn[128, 128]"] * 2, {}),
    "mapped": (mapped, [_M, _V], {}),
    "jitted": (jitted, [_V], {}),
    "forward": (squared, [_V], {}),
    "backward": (gradient, [_V, _V], {}),
    "printing": (printing, [_V], {}),
}
