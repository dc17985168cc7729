"""Views of references: transforms of shared memory, transposed, out of bounds, shared by two."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from architectures import EVERYWHERE, SINCE_HOPPER
from covering import covers, plan, ptx, same_artifact
from forms import absent, lane, like, maps, plus_one, same, smem_bytes, vector
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallasc


def turned(x: Any) -> Any:
    return x.transpose(1, 0, 2)


@covers(
    "plgpu.TilingTransform",
    "plgpu.SwizzleTransform",
    "plgpu.Transform",
    looks=[
        plan("a swizzle of 128 bytes", lambda plan: maps(plan)[0].swizzle == 128),
        plan("a tiled tensor map", lambda plan: len(maps(plan)[0].dims) == 4),
    ],
)
@pallasc.kernel(args={"x": "f16[64, 128]"}, targets=SINCE_HOPPER, reference=plus_one)
def tiled_and_swizzled(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, x_smem: Any, loaded: Any) -> None:
        plgpu.copy_gmem_to_smem(x_gmem, x_smem, loaded)
        plgpu.barrier_wait(loaded)
        x_smem[...] = x_smem[...] + 1
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(x_smem, out_gmem)
        plgpu.wait_smem_to_gmem(0)

    transforms = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
    assert all(plgpu.Transform in type(transform).__mro__ for transform in transforms)
    scratch = [plgpu.SMEM((64, 128), jnp.float16, transforms=transforms), plgpu.Barrier()]
    return plgpu.kernel(body, out_type=like(x), scratch_types=scratch, compiler_params=lane())(x)


@covers(
    "plgpu.find_swizzle",
    "plgpu.TilingTransform",
    looks=[plan("a swizzle of 64 bytes", lambda plan: maps(plan)[0].swizzle == 64)],
)
@pallasc.kernel(args={"x": "f16[64, 32]"}, targets=SINCE_HOPPER, reference=same)
def found_swizzle(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, x_smem: Any, loaded: Any) -> None:
        plgpu.copy_gmem_to_smem(x_gmem, x_smem, loaded)
        plgpu.barrier_wait(loaded)
        plgpu.copy_smem_to_gmem(x_smem, out_gmem)
        plgpu.wait_smem_to_gmem(0)

    swizzle = plgpu.find_swizzle(32 * 16)
    transforms = (plgpu.TilingTransform((8, swizzle // 2)), plgpu.SwizzleTransform(swizzle))
    scratch = [plgpu.SMEM((64, 32), jnp.float16, transforms=transforms), plgpu.Barrier()]
    return plgpu.kernel(body, out_type=like(x), scratch_types=scratch, compiler_params=lane())(x)


@covers(
    "plgpu.TransposeTransform",
    gaps=dict.fromkeys(
        ("0.10", "0.12"),
        "module 'jax.experimental.pallas.mosaic_gpu' has no attribute 'TransposeTransform'",
    ),
    note="`Ref.transpose` took its place, see `transposed_reference`",
)
@pallasc.kernel(args={"x": "f16[64, 128]"}, targets=EVERYWHERE)
def transpose_transform(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        out_gmem[...] = x_gmem[...]

    spec = plgpu.BlockSpec(transforms=[plgpu.TransposeTransform((1, 0))])
    return pl.pallas_call(body, out_shape=like(x), in_specs=[spec])(x)


@covers(
    "plgpu.TransposeTransform",
    looks=[ptx(r"cp\.async\.bulk\.tensor\.3d\.shared::(cluster|cta)\.global")],
    uninterpreted={"0.10": "Unsupported transform: TransposeTransform"},
)
@pallasc.kernel(args={"x": "f32[2, 2, 64]"}, targets=SINCE_HOPPER, reference=turned)
def transposed_reference(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, x_smem: Any, loaded: Any) -> None:
        order = (1, 0, 2)
        view = plgpu.transpose_ref(x_smem, order) if old else x_smem.transpose(order)
        plgpu.copy_gmem_to_smem(x_gmem, view, loaded)
        plgpu.barrier_wait(loaded)
        plgpu.copy_smem_to_gmem(x_smem, out_gmem)
        plgpu.wait_smem_to_gmem(0)

    old = jax.__version_info__ < (0, 12)
    scratch = [plgpu.SMEM(x.shape, jnp.float32), plgpu.Barrier()]
    return plgpu.kernel(body, out_type=like(x), scratch_types=scratch)(x)


@covers(
    "plgpu.transpose_ref",
    looks=[same_artifact("transposed_reference")],
    gaps={"0.12": "The 'memory_space' attribute is not available on traced array"},
    uninterpreted={"0.10": "Unsupported transform: TransposeTransform"},
    note="deprecated in 0.12; `Ref.transpose` takes its place, see `transposed_reference`",
)
@pallasc.kernel(args={"x": "f32[2, 2, 64]"}, targets=SINCE_HOPPER, reference=turned)
def transposed_by_a_function(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, x_smem: Any, loaded: Any) -> None:
        plgpu.copy_gmem_to_smem(x_gmem, plgpu.transpose_ref(x_smem, (1, 0, 2)), loaded)
        plgpu.barrier_wait(loaded)
        plgpu.copy_smem_to_gmem(x_smem, out_gmem)
        plgpu.wait_smem_to_gmem(0)

    scratch = [plgpu.SMEM(x.shape, jnp.float32), plgpu.Barrier()]
    return plgpu.kernel(body, out_type=like(x), scratch_types=scratch)(x)


def window_with_zeros(start: Any, x: Any) -> Any:
    return np.concatenate([x, np.zeros((128,), x.dtype)])[start : start + 128]


@covers(
    "plgpu.OOBFillMode",
    looks=[
        ptx(r"cp\.async\.bulk\.tensor\.1d"),
        plan("a map that ends with the array", lambda plan: maps(plan)[0].dims == (208,)),
    ],
)
@pallasc.kernel(
    args={"start": "i32[]", "x": "i8[208]"}, targets=SINCE_HOPPER, reference=window_with_zeros
)
def copy_out_of_bounds(start: jax.Array, x: jax.Array) -> jax.Array:
    def body(start_gmem: Any, x_gmem: Any, out_gmem: Any, x_smem: Any, loaded: Any) -> None:
        window = x_gmem.at[pl.ds(start_gmem[...], 128)]
        mode = plgpu.OOBFillMode.ZEROS
        plgpu.copy_gmem_to_smem(window, x_smem, loaded, oob_mode=mode)
        plgpu.barrier_wait(loaded)
        out_gmem[...] = x_smem[...]

    scratch = [plgpu.SMEM((128,), jnp.int8), plgpu.Barrier()]
    return plgpu.kernel(body, out_type=vector(dtype=jnp.int8), scratch_types=scratch)(start, x)


def first_of_windows(x: Any) -> Any:
    """Return the value at the upper left of each window of 3 x 3."""
    return np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))[0, :8, :8].reshape(64, 64)


@covers(
    "plgpu.im2col_ref",
    looks=[
        ptx(r"cp\.async\.bulk\.tensor\.4d\.shared::(cluster|cta)\.global\.im2col"),
        plan("an im2col tensor map", lambda plan: maps(plan)[0].im2col is not None),
    ],
    gaps=absent("im2col_ref"),
    uninterpreted={"0.12": "Interpret mode does not support im2col copies."},
)
@pallasc.kernel(args={"x": "f16[1, 8, 8, 64]"}, targets=SINCE_HOPPER, reference=first_of_windows)
def im2col(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, x_smem: Any, loaded: Any) -> None:
        view = plgpu.im2col_ref(x_gmem, window_shape=(3, 3), padding=((1, 1), (1, 1)))
        plgpu.copy_gmem_to_smem(view.at[pl.ds(0, 64), 0, 0, :], x_smem, loaded)
        plgpu.barrier_wait(loaded)
        plgpu.copy_smem_to_gmem(x_smem, out_gmem)
        plgpu.wait_smem_to_gmem(0)

    out = jax.ShapeDtypeStruct((64, 64), jnp.float16)
    scratch = [plgpu.SMEM((64, 64), jnp.float16), plgpu.Barrier()]
    return plgpu.kernel(body, out_type=out, scratch_types=scratch, compiler_params=lane())(x)


@covers(
    "plgpu.RefUnion",
    looks=[plan("one buffer for both", lambda plan: smem_bytes(plan) < 2 * 32768)],
    uninterpreted={"0.10": "Unsupported transform: ExtractAliasedRef"},
)
@pallasc.kernel(args={"x": "f32[64, 128]"}, targets=SINCE_HOPPER, reference=same)
def two_references_to_one_place(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, union: Any) -> None:
        first, second = union
        first[...] = x_gmem[...]
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(first, out_gmem)
        plgpu.wait_smem_to_gmem(0)
        second[...] = jnp.zeros((64, 128), jnp.int32)

    one, other = (plgpu.SMEM((64, 128), dtype) for dtype in (jnp.float32, jnp.int32))
    return plgpu.kernel(body, out_type=like(x), scratch_types=[plgpu.RefUnion(one, other)])(x)
