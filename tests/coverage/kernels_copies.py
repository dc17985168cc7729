"""Copies between global and shared memory, what they may be asked, and views of references."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from architectures import BEFORE_HOPPER, EVERYWHERE, SINCE_HOPPER, TENSOR_MEMORY
from covering import covers, plan, ptx, sass
from forms import lane, like, maps, plus_one, same, smem_bytes, vector
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallasc


def turned(x: Any) -> Any:
    return x.transpose(1, 0, 2)


@covers(
    "plgpu.copy_gmem_to_smem",
    "plgpu.copy_smem_to_gmem",
    "plgpu.wait_smem_to_gmem",
    "plgpu.commit_smem",
    "plgpu.Barrier",
    "plgpu.barrier_wait",
    "plgpu.SMEM",
    looks=[
        ptx(
            r"cp\.async\.bulk\.tensor\.2d\.shared::(cluster|cta)\.global",
            says="cp.async.bulk.tensor.2d.shared….global",
        ),
        ptx(r"cp\.async\.bulk\.tensor\.2d\.global\.shared::cta\.bulk_group"),
        ptx(r"cp\.async\.bulk\.wait_group\s+0"),
        ptx(r"fence\.proxy\.async"),
        ptx(r"mbarrier\.init"),
        sass(r"UTMALDG\.2D"),
        plan("two tensor maps", lambda plan: len(maps(plan)) == 2),
    ],
)
@pallasc.kernel(args={"x": "f32[64, 256]"}, targets=SINCE_HOPPER, reference=plus_one)
def copies_of_tiles(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, x_smem: Any, out_smem: Any, loaded: Any) -> None:
        columns = pl.ds(lax.axis_index("n") * 128, 128)
        plgpu.copy_gmem_to_smem(x_gmem.at[:, columns], x_smem, loaded)
        plgpu.barrier_wait(loaded)
        out_smem[...] = x_smem[...] + 1
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(out_smem, out_gmem.at[:, columns])
        plgpu.wait_smem_to_gmem(0)

    tile = plgpu.SMEM((64, 128), jnp.float32)
    scratch = [tile, tile, plgpu.Barrier()]
    return plgpu.kernel(
        body, out_type=like(x), scratch_types=scratch, grid=(2,), grid_names=("n",)
    )(x)


@covers(
    "plgpu.copy_gmem_to_smem",
    "plgpu.GMEM",
    "plgpu.MemorySpace",
    looks=[
        ptx(r"cp\.async\.bulk\.global\.shared::cta\.bulk_group"),
        plan("64 KiB of shared memory", lambda plan: smem_bytes(plan) >= 2 * 64 * 128 * 4),
    ],
)
@pallasc.kernel(args={"x": "f32[64, 128]"}, targets=SINCE_HOPPER, reference=plus_one)
def copies_of_whole_arrays(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, x_smem: Any, out_smem: Any, loaded: Any) -> None:
        assert jax.typeof(x_gmem).memory_space is plgpu.GMEM
        plgpu.copy_gmem_to_smem(x_gmem, x_smem, loaded)
        plgpu.barrier_wait(loaded)
        out_smem[...] = x_smem[...] + 1
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(out_smem, out_gmem)
        plgpu.wait_smem_to_gmem(0)

    tile = plgpu.MemorySpace.SMEM((64, 128), jnp.float32)
    return plgpu.kernel(body, out_type=like(x), scratch_types=[tile, tile, plgpu.Barrier()])(x)


@covers(
    "plgpu.copy_gmem_to_smem",
    "plgpu.wait_gmem_to_smem",
    looks=[
        ptx(r"cp\.async\.c[ag]\.shared\.global", says="cp.async.cg.shared.global"),
        ptx(r"cp\.async\.wait_group\s+0"),
    ],
    gaps={"0.10": "copy_gmem_to_smem() missing 1 required positional argument: 'barrier'"},
)
@pallasc.kernel(args={"x": "f32[128, 128]"}, targets=BEFORE_HOPPER)
def copies_before_hopper(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, x_smem: Any) -> None:
        mode = plgpu.OOBFillMode.PROMISE_IN_BOUNDS
        plgpu.copy_gmem_to_smem(x_gmem, x_smem, oob_mode=mode)
        plgpu.wait_gmem_to_smem(0)
        out_gmem[...] = x_smem[...]

    scratch = [plgpu.SMEM((128, 128), jnp.float32)]
    return plgpu.kernel(body, out_type=like(x), scratch_types=scratch)(x)


@covers("plgpu.wait_smem_to_gmem", looks=[ptx(r"cp\.async\.bulk\.wait_group\.read\s+1")])
@pallasc.kernel(args={"x": "f32[2, 128]"}, targets=SINCE_HOPPER, reference=same)
def waits_for_reads_only(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, smem: Any) -> None:
        smem[0] = x_gmem[0]
        smem[1] = x_gmem[1]
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(smem.at[0], out_gmem.at[0])
        plgpu.copy_smem_to_gmem(smem.at[1], out_gmem.at[1])
        plgpu.wait_smem_to_gmem(1, wait_read_only=True)
        plgpu.wait_smem_to_gmem(0)

    scratch = [plgpu.SMEM((2, 128), jnp.float32)]
    return plgpu.kernel(body, out_type=like(x), scratch_types=scratch)(x)


@covers(
    "plgpu.commit_smem_to_gmem_group",
    looks=[
        ptx(
            r"(?s)(cp\.async\.bulk\.global.*){2}cp\.async\.bulk\.commit_group",
            says="cp.async.bulk.global twice, then commit_group",
        )
    ],
)
@pallasc.kernel(args={"x": "f32[2, 128]"}, targets=SINCE_HOPPER)
def copies_in_one_group(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, smem: Any) -> None:
        smem[0] = x_gmem[0]
        smem[1] = x_gmem[1]
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(smem.at[0], out_gmem.at[0], commit_group=False)
        plgpu.copy_smem_to_gmem(smem.at[1], out_gmem.at[1], commit_group=False)
        plgpu.commit_smem_to_gmem_group()
        plgpu.wait_smem_to_gmem(0)

    scratch = [plgpu.SMEM((2, 128), jnp.float32)]
    return plgpu.kernel(body, out_type=like(x), scratch_types=scratch)(x)


@covers(
    "plgpu.copy_smem_to_gmem",
    looks=[ptx(r"cp\.reduce\.async\.bulk\S*\.add", says="cp.reduce.async.bulk….add")],
)
@pallasc.kernel(args={"x": "f32[64, 64]"}, targets=SINCE_HOPPER)
def copy_that_adds(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, smem: Any) -> None:
        smem[...] = x_gmem[...]
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(smem, out_gmem, reduction_op="add")
        plgpu.wait_smem_to_gmem(0)

    scratch = [plgpu.SMEM((64, 64), jnp.float32)]
    return plgpu.kernel(body, out_type=like(x), scratch_types=scratch)(x)


@covers("plgpu.async_prefetch", looks=[ptx(r"cp\.async\.bulk\.prefetch\.tensor\.2d\.L2\.global")])
@pallasc.kernel(args={"x": "f32[128, 128]"}, targets=SINCE_HOPPER)
def prefetch(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any) -> None:
        plgpu.async_prefetch(x_gmem.at[:64, :64])
        out_gmem[...] = x_gmem[...]

    return plgpu.kernel(body, out_type=like(x))(x)


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
    assert all(plgpu.Transform in type(one).__mro__ for one in transforms)
    scratch = [plgpu.SMEM((64, 128), jnp.float16, transforms=transforms), plgpu.Barrier()]
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
    "plgpu.OOBFillMode",
    looks=[
        ptx(r"cp\.async\.bulk\.tensor\.1d"),
        plan("a map that ends with the array", lambda plan: maps(plan)[0].dims == (208,)),
    ],
)
@pallasc.kernel(args={"start": "i32[]", "x": "i8[208]"}, targets=SINCE_HOPPER)
def copy_out_of_bounds(start: jax.Array, x: jax.Array) -> jax.Array:
    def body(start_gmem: Any, x_gmem: Any, out_gmem: Any, x_smem: Any, loaded: Any) -> None:
        window = x_gmem.at[pl.ds(start_gmem[...], 128)]
        mode = plgpu.OOBFillMode.ZEROS
        plgpu.copy_gmem_to_smem(window, x_smem, loaded, oob_mode=mode)
        plgpu.barrier_wait(loaded)
        out_gmem[...] = x_smem[...]

    scratch = [plgpu.SMEM((128,), jnp.int8), plgpu.Barrier()]
    return plgpu.kernel(body, out_type=vector(dtype=jnp.int8), scratch_types=scratch)(start, x)


@covers(
    "plgpu.kernel(cluster)",
    "plgpu.kernel(cluster_names)",
    "plgpu.copy_gmem_to_smem",
    looks=[
        ptx(r"cp\.async\.bulk\.tensor\.2d\.shared::cluster\.global.*multicast::cluster"),
        plan("a cluster of 2", lambda plan: plan.launches[0].cluster == (2, 1, 1)),
    ],
)
@pallasc.kernel(args={"x": "f32[64, 64]"}, targets=SINCE_HOPPER)
def multicast_copy(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, x_smem: Any, loaded: Any) -> None:
        plgpu.copy_gmem_to_smem(x_gmem.at[:, pl.ds(0, 32)], x_smem, loaded, collective_axes="c")
        plgpu.barrier_wait(loaded)
        plgpu.copy_smem_to_gmem(x_smem, out_gmem.at[lax.axis_index("c")])
        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((2, 64, 32), jnp.float32),
        scratch_types=[plgpu.SMEM((64, 32), jnp.float32), plgpu.Barrier()],
        cluster=(2,),
        cluster_names=("c",),
    )(x)


@covers(
    "plgpu.CopyPartition",
    looks=[
        ptx(r"cp\.async\.bulk\.tensor\.2d.*\.cta_group::2"),
        plan("a cluster of 2", lambda plan: plan.launches[0].cluster == (2, 1, 1)),
    ],
)
@pallasc.kernel(args={"x": "f16[256, 64]"}, targets=TENSOR_MEMORY)
def partitioned_copy(x: jax.Array) -> jax.Array:
    def body(x_gmem: Any, out_gmem: Any, x_smem: Any, loaded: Any, everywhere: Any) -> None:
        block = lax.axis_index("c")
        plgpu.copy_gmem_to_smem(
            x_gmem,
            x_smem,
            loaded,
            collective_axes="c",
            leader_tracked=plgpu.CopyPartition.PARTITIONED(0),
        )

        @pl.when(block == 0)
        def wait_for_both() -> None:
            plgpu.barrier_wait(loaded)

        plgpu.barrier_arrive(everywhere)
        plgpu.barrier_wait(everywhere)
        plgpu.copy_smem_to_gmem(x_smem, out_gmem.at[pl.ds(block * 128, 128)])
        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        body,
        out_type=like(x),
        scratch_types=[
            plgpu.SMEM((128, 64), jnp.float16),
            plgpu.Barrier(),
            plgpu.ClusterBarrier(collective_axes=("c",)),
        ],
        cluster=(2,),
        cluster_names=("c",),
    )(x)


@covers(
    "plgpu.im2col_ref",
    looks=[
        ptx(r"cp\.async\.bulk\.tensor\.4d\.shared::(cluster|cta)\.global\.im2col"),
        plan("an im2col tensor map", lambda plan: maps(plan)[0].im2col is not None),
    ],
    gaps={"0.10": "module 'jax.experimental.pallas.mosaic_gpu' has no attribute 'im2col_ref'"},
)
@pallasc.kernel(args={"x": "f16[1, 8, 8, 64]"}, targets=SINCE_HOPPER)
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
)
@pallasc.kernel(args={"x": "f32[64, 128]"}, targets=SINCE_HOPPER)
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
