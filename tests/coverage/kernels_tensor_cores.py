"""Tensor cores of Hopper and Blackwell, accumulators, and tensor memory."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from architectures import HOPPER, TENSOR_MEMORY
from covering import covers, kernel, plan, sass
from forms import NEAR, array, fetch, lane, load, plus_one, product, same, store, warpgroup
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallasc

OUT = array(64, 64)


@covers(
    ["plgpu.wgmma", "plgpu.wgmma_wait", "plgpu.ACC", "plgpu.WGMMAAccumulatorRef"],
    looks=[
        r"wgmma\.mma_async\.sync\.aligned\.m64n64k16\.f32\.f16\.f16",
        r"wgmma\.wait_group\.sync\.aligned\s+1",
        r"wgmma\.wait_group\.sync\.aligned\s+0",
        sass(r"HGMMA\.64x64x16\.F32"),
    ],
    expected=product,
)
@pallasc.kernel(args={"a": "f16[64, 64]", "b": "f16[64, 64]"}, targets=HOPPER, tolerance=NEAR)
def wgmma(a: jax.Array, b: jax.Array) -> jax.Array:
    def body(a_gmem: Any, b_gmem: Any, out_gmem: Any, a_smem: Any, b_smem: Any, ready: Any) -> None:
        fetch(ready, (a_gmem, a_smem), (b_gmem, b_smem))

        def multiply(acc: Any) -> Any:
            plgpu.wgmma(acc, a_smem, b_smem)
            plgpu.wgmma_wait(1)
            return acc[...]

        out_gmem[...] = pl.run_scoped(multiply, plgpu.ACC((64, 64), jnp.float32))

    assert plgpu.ACC is plgpu.WGMMAAccumulatorRef
    return plgpu.kernel(
        body,
        out_type=OUT,
        scratch_types=[
            plgpu.SMEM((64, 64), jnp.float16),
            plgpu.SMEM((64, 64), jnp.float16),
            plgpu.Barrier(num_arrivals=2),
        ],
        compiler_params=warpgroup(),
    )(a, b)


@covers(
    "plgpu.wgmma",
    looks=[r"wgmma\.mma_async\.sync\.aligned\.m64n64k32\.f32\.e4m3\.e4m3"],
    expected=lambda a, b: product(a, b.T),
)
@kernel(
    {"a": "f8e4m3fn[64, 64]", "b": "f8e4m3fn[64, 64]"},
    HOPPER,
    tolerance=NEAR,
    out_type=OUT,
    scratch=[
        plgpu.SMEM((64, 64), jnp.float8_e4m3fn),
        plgpu.SMEM((64, 64), jnp.float8_e4m3fn),
        plgpu.Barrier(num_arrivals=2),
    ],
    compiler_params=warpgroup(),
)
def wgmma_of_fp8(
    a_gmem: Any, b_gmem: Any, out_gmem: Any, a_smem: Any, b_smem: Any, ready: Any
) -> None:
    fetch(ready, (a_gmem, a_smem), (b_gmem, b_smem))
    columns = b_smem.T if hasattr(b_smem, "T") else plgpu.transpose_ref(b_smem, (1, 0))

    def multiply(acc: Any) -> Any:
        plgpu.wgmma(acc, a_smem, columns)
        return acc[...]

    out_gmem[...] = pl.run_scoped(multiply, plgpu.ACC((64, 64), jnp.float32))


# An accumulator that begins with a value.
@covers(
    ["plgpu.wgmma_accumulator_load", "plgpu.ACC"],
    looks=[r"wgmma\.mma_async", r"wgmma\.wait_group\.sync\.aligned\s+0"],
    expected=lambda a, b, c: product(a, b) + c,
)
@kernel(
    {"a": "f16[64, 64]", "b": "f16[64, 64]", "c": "f32[64, 64]"},
    HOPPER,
    tolerance=NEAR,
    out_type=OUT,
    scratch=[
        plgpu.SMEM((64, 64), jnp.float16),
        plgpu.SMEM((64, 64), jnp.float16),
        plgpu.Barrier(num_arrivals=2),
    ],
    compiler_params=warpgroup(),
)
def wgmma_onto_a_value(
    a_gmem: Any, b_gmem: Any, c_gmem: Any, out_gmem: Any, a_smem: Any, b_smem: Any, ready: Any
) -> None:
    fetch(ready, (a_gmem, a_smem), (b_gmem, b_smem))
    first = load(c_gmem, layout=plgpu.Layout.WGMMA, optimized=False)

    def multiply(acc: Any) -> None:
        plgpu.wgmma(acc, a_smem, b_smem)
        out_gmem[...] = plgpu.wgmma_accumulator_load(acc, wait_n=0)

    pl.run_state(multiply)(plgpu.ACC.init(first))


F32 = array(128, 128)


def turned(ref: Any) -> Any:
    return ref.T if hasattr(ref, "T") else plgpu.transpose_ref(ref, (1, 0))


def tiles(dtype: Any, swizzle: int = 128) -> Any:
    """Return the transforms of a tile that the tensor core reads."""
    bits = jnp.finfo(dtype).bits
    return (plgpu.TilingTransform((8, 8 * swizzle // bits)), plgpu.SwizzleTransform(swizzle))


@covers(
    [
        "plgpu.tcgen05_mma",
        "plgpu.async_load_tmem",
        "plgpu.TMEM",
        "plgpu.MemorySpace",
        "plgpu.Barrier",
    ],
    looks=[
        r"tcgen05\.alloc",
        r"tcgen05\.mma\.cta_group::1\.kind::f16",
        r"tcgen05\.commit\.cta_group::1\.mbarrier::arrive",
        r"tcgen05\.ld\.sync\.aligned",
        sass(r"UTCHMMA"),
    ],
    expected=product,
)
@kernel(
    {"a": "f16[128, 64]", "b": "f16[64, 128]"},
    TENSOR_MEMORY,
    tolerance=NEAR,
    out_type=F32,
    scratch=[
        plgpu.SMEM((128, 64), jnp.float16),
        plgpu.SMEM((64, 128), jnp.float16),
        plgpu.TMEM((128, 128), jnp.float32),
        plgpu.Barrier(num_arrivals=2),
        plgpu.Barrier(orders_tensor_core=True),
    ],
    compiler_params=warpgroup(),
)
def tensor_core(
    a_gmem: Any, b_gmem: Any, out_gmem: Any, a_smem: Any, b_smem: Any, acc: Any, ready: Any,
    done: Any,
) -> None:  # fmt: skip
    fetch(ready, (a_gmem, a_smem), (b_gmem, b_smem))
    plgpu.tcgen05_mma(acc, a_smem, b_smem, done, accumulate=False)
    plgpu.barrier_wait(done)
    out_gmem[...] = plgpu.async_load_tmem(acc)


@covers(
    [
        "plgpu.async_store_tmem",
        "plgpu.async_load_tmem",
        "plgpu.commit_tmem",
        "plgpu.wait_load_tmem",
    ],
    looks=[
        r"tcgen05\.st\.sync\.aligned",
        r"tcgen05\.wait::st\.sync\.aligned",
        r"tcgen05\.ld\.sync\.aligned",
        r"tcgen05\.wait::ld\.sync\.aligned",
    ],
    expected=plus_one,
)
@kernel(
    {"x": "f32[128, 64]"},
    TENSOR_MEMORY,
    out_type=array(128, 64),
    scratch=[plgpu.TMEM((128, 64), jnp.float32)],
    compiler_params=warpgroup(),
)
def tensor_memory(x_gmem: Any, out_gmem: Any, tmem: Any) -> None:
    value = load(x_gmem, layout=plgpu.Layout.TCGEN05, optimized=False)
    plgpu.async_store_tmem(tmem, value + 1)
    plgpu.commit_tmem()
    out_gmem[...] = plgpu.async_load_tmem(tmem)
    plgpu.wait_load_tmem()


@covers(
    "plgpu.async_load_tmem",
    looks=[r"tcgen05\.ld\.red\.sync\.aligned"],
    gaps={"0.10": "async_load_tmem() got an unexpected keyword argument 'reduce'"},
    expected=lambda x: (x, x.max(axis=1)),
)
@kernel(
    {"x": "f32[128, 64]"},
    ["sm_103a", "sm_110a"],
    out_type=(array(128, 64), array(128)),
    scratch=[plgpu.TMEM((128, 64), jnp.float32)],
)
def load_that_reduces(x_gmem: Any, out_gmem: Any, most_gmem: Any, tmem: Any) -> None:
    layout = plgpu.Layout.TCGEN05_TMEM_NATIVE
    plgpu.async_store_tmem(tmem, load(x_gmem, layout=layout, optimized=False))
    plgpu.commit_tmem()
    value, most = plgpu.async_load_tmem(tmem, layout=layout, reduce="max")
    store(out_gmem, value)
    store(most_gmem, most)


@covers(
    ["plgpu.tcgen05_mma", "plgpu.kernel(cluster)"],
    looks=[
        r"tcgen05\.mma\.cta_group::2\.kind::f16",
        r"tcgen05\.alloc\.cta_group::2",
        plan("a cluster of 2", lambda plan: plan.launches[0].cluster == (2, 1, 1)),
    ],
    expected=product,
)
@kernel(
    {"a": "f16[256, 64]", "b": "f16[64, 128]"},
    TENSOR_MEMORY,
    tolerance=NEAR,
    out_type=array(256, 128),
    scratch=[
        plgpu.SMEM((128, 64), jnp.float16),
        plgpu.SMEM((64, 64), jnp.float16),
        plgpu.TMEM((128, 128), jnp.float32, collective=True),
        plgpu.Barrier(num_arrivals=2),
        plgpu.Barrier(orders_tensor_core=True),
        plgpu.ClusterBarrier(collective_axes=("c",)),
    ],
    cluster=(2,),
    compiler_params=warpgroup(),
)
def tensor_cores_of_two_blocks(
    a_gmem: Any, b_gmem: Any, out_gmem: Any, a_smem: Any, b_smem: Any, acc: Any, ready: Any,
    done: Any, both: Any,
) -> None:  # fmt: skip
    block = lax.axis_index("c")
    rows, columns = pl.ds(block * 128, 128), pl.ds(block * 64, 64)
    fetch(ready, (a_gmem.at[rows], a_smem), (b_gmem.at[:, columns], b_smem))
    plgpu.barrier_arrive(both)
    plgpu.barrier_wait(both)
    plgpu.tcgen05_mma(acc, a_smem, b_smem, done, accumulate=False, collective_axis="c")
    plgpu.barrier_wait(done)
    out_gmem[rows, :] = plgpu.async_load_tmem(acc, layout=plgpu.Layout.TCGEN05)


def scales_of_rows(scale: Any) -> Any:
    """Return the scale of each value of 128 rows of 128, from the order that the hardware wants.

    Row r and its block k of 32 values have theirs at [r % 32, r // 32 * 4 + k].
    """
    blocks = np.asarray(scale, np.float32).reshape(32, 4, 4).transpose(1, 0, 2).reshape(128, 4)
    return np.repeat(blocks, 32, axis=1)


def product_of_scaled(a: Any, b: Any, a_scale: Any, b_scale: Any) -> Any:
    # Exact, as sums in f32 differ between processors by more than is allowed.
    left = np.asarray(a, np.float64) * scales_of_rows(a_scale)
    right = np.asarray(b, np.float64) * scales_of_rows(b_scale)
    return left @ right.T


def powers_of_two(scale: Any) -> Any:
    """Return scales between 1/8 and 4, in an order of their own."""
    exponents = np.arange(scale.size).reshape(scale.shape) * 5 % 6 - 3
    return np.exp2(exponents).astype(scale.dtype)


@covers(
    ["plgpu.async_copy_scales_to_tmem", "plgpu.TMEMLayout", "plgpu.tcgen05_mma"],
    looks=[
        r"tcgen05\.cp\.cta_group::1\.32x128b\.warpx4",
        r"tcgen05\.mma\.cta_group::1\.kind::mxf8f6f4\.block_scale",
    ],
    given={"a_scale": powers_of_two, "b_scale": powers_of_two},
    expected=product_of_scaled,
)
@kernel(
    {
        "a": "f8e4m3fn[128, 128]",
        "b": "f8e4m3fn[128, 128]",
        "a_scale": "f8e8m0fnu[1, 1, 32, 16]",
        "b_scale": "f8e8m0fnu[1, 1, 32, 16]",
    },
    TENSOR_MEMORY,
    out_type=F32,
    scratch=[
        plgpu.SMEM((128, 128), jnp.float8_e4m3fn, transforms=tiles(jnp.float8_e4m3fn)),
        plgpu.SMEM((128, 128), jnp.float8_e4m3fn, transforms=tiles(jnp.float8_e4m3fn)),
        plgpu.SMEM((1, 1, 32, 16), jnp.float8_e8m0fnu),
        plgpu.SMEM((1, 1, 32, 16), jnp.float8_e8m0fnu),
        plgpu.TMEM((128, 4), jnp.float8_e8m0fnu, layout=plgpu.TMEMLayout.SCALES_LAYOUT),
        plgpu.TMEM((128, 4), jnp.float8_e8m0fnu, layout=plgpu.TMEMLayout.SCALES_LAYOUT),
        plgpu.TMEM((128, 128), jnp.float32),
        plgpu.Barrier(num_arrivals=4),
        plgpu.Barrier(orders_tensor_core=True),
    ],
    compiler_params=lane(),
)
def scaled_product(
    a_gmem: Any, b_gmem: Any, a_scale_gmem: Any, b_scale_gmem: Any, out_gmem: Any, a_smem: Any,
    b_smem: Any, a_scale_smem: Any, b_scale_smem: Any, a_scale_tmem: Any, b_scale_tmem: Any,
    acc: Any, ready: Any, done: Any,
) -> None:  # fmt: skip
    fetch(
        ready,
        (a_gmem, a_smem),
        (b_gmem, b_smem),
        (a_scale_gmem, a_scale_smem),
        (b_scale_gmem, b_scale_smem),
    )
    plgpu.async_copy_scales_to_tmem(a_scale_smem, a_scale_tmem)
    plgpu.async_copy_scales_to_tmem(b_scale_smem, b_scale_tmem)
    plgpu.tcgen05_mma(
        acc, a_smem, turned(b_smem), a_scale=a_scale_tmem, b_scale=b_scale_tmem, accumulate=False
    )
    plgpu.tcgen05_commit_arrive(done)
    plgpu.barrier_wait(done)
    out_gmem[...] = plgpu.async_load_tmem(acc)  # fmt: skip


def product_of_sparse(a: Any, b: Any, places: Any) -> Any:
    """Return the product with `a` spread out: two of four values, at `places`."""
    groups = np.zeros((128, 32, 4), np.float64)
    values = np.asarray(a, np.float64).reshape(128, 32, 2)
    np.put_along_axis(groups, np.asarray(places, np.int64), values, axis=2)
    return groups.reshape(128, 128) @ np.asarray(b, np.float64).T


def two_of_four(places: Any) -> Any:
    """Return the places of two values of four, each pair in some group."""
    pairs = np.array([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)])
    return pairs[np.arange(places.size // 2) * 5 % 6].reshape(places.shape).astype(places.dtype)


@covers(
    ["plgpu.async_copy_sparse_metadata_to_tmem", "plgpu.format_tcgen05_sparse_metadata"],
    looks=[r"tcgen05\.mma\.sp\.cta_group::1\.kind::f16", r"tcgen05\.cp\.cta_group::1"],
    given={"places": two_of_four},
    expected=product_of_sparse,
)
@pallasc.kernel(
    args={"a": "f16[128, 64]", "b": "f16[128, 128]", "places": "u2[128, 32, 2]"},
    targets=TENSOR_MEMORY,
)
def sparse_product(a: jax.Array, b: jax.Array, places: jax.Array) -> jax.Array:
    def body(
        a_gmem: Any, b_gmem: Any, places_gmem: Any, out_gmem: Any, a_smem: Any, b_smem: Any,
        places_smem: Any, places_tmem: Any, acc: Any, ready: Any, done: Any,
    ) -> None:  # fmt: skip
        fetch(ready, (a_gmem, a_smem), (b_gmem, b_smem), (places_gmem, places_smem))
        plgpu.async_copy_sparse_metadata_to_tmem(places_smem, places_tmem)
        plgpu.tcgen05_mma(
            acc, a_smem, turned(b_smem), a_sparse_metadata=places_tmem, accumulate=False
        )
        plgpu.tcgen05_commit_arrive(done)
        plgpu.barrier_wait(done)
        out_gmem[...] = plgpu.async_load_tmem(acc)

    formatted = plgpu.format_tcgen05_sparse_metadata(places, jnp.float16)
    transforms = tiles(jnp.float16, 64)
    return plgpu.kernel(
        body,
        out_type=F32,
        scratch_types=[
            plgpu.SMEM((128, 64), jnp.float16, transforms=transforms),
            plgpu.SMEM((128, 128), jnp.float16, transforms=transforms),
            plgpu.SMEM(formatted.shape, jnp.uint2),
            plgpu.TMEM((128, 64), jnp.uint2, layout=plgpu.TMEMLayout.SPARSE_METADATA_LAYOUT),
            plgpu.TMEM((128, 128), jnp.float32),
            plgpu.Barrier(num_arrivals=3),
            plgpu.Barrier(orders_tensor_core=True),
        ],
        compiler_params=lane(),
    )(a, b, formatted)


@covers(
    ["plgpu.async_copy_smem_to_tmem", "plgpu.tcgen05_commit_arrive"],
    looks=[r"tcgen05\.cp\.cta_group::1\.128x", r"tcgen05\.commit\.cta_group::1\.mbarrier::arrive"],
    expected=same,
)
@kernel(
    {"x": "f16[128, 128]"},
    TENSOR_MEMORY,
    out_type=array(128, 128, dtype=jnp.float16),
    scratch=[
        plgpu.SMEM((128, 128), jnp.float16, transforms=tiles(jnp.float16)),
        plgpu.TMEM((128, 128), jnp.float16, packed=True),
        plgpu.Barrier(),
        plgpu.Barrier(orders_tensor_core=True),
    ],
    compiler_params=lane(),
)
def copy_to_tensor_memory(
    x_gmem: Any, out_gmem: Any, smem: Any, tmem: Any, ready: Any, done: Any
) -> None:
    fetch(ready, (x_gmem, smem))
    plgpu.async_copy_smem_to_tmem(smem, tmem)
    plgpu.tcgen05_commit_arrive(done)
    plgpu.barrier_wait(done)
    store(out_gmem, plgpu.async_load_tmem(tmem))
