"""Kernels that copy by tensor map: tiled, packed, and, where JAX has it, by windows (im2col)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu

_LANE = plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane)


def copied(dtype: Any) -> Any:
    """Return a function that copies 64 columns of an array by way of shared memory."""

    def function(x: Any) -> Any:
        def body(x_ref: Any, o_ref: Any, tile: Any, barrier: Any) -> None:
            plgpu.copy_gmem_to_smem(x_ref.at[0:64, 128:256], tile, barrier)
            plgpu.barrier_wait(barrier)
            plgpu.copy_smem_to_gmem(tile, o_ref)
            plgpu.wait_smem_to_gmem(0)

        return plgpu.kernel(
            body,
            out_type=jax.ShapeDtypeStruct((64, 128), dtype),
            scratch_types=[plgpu.SMEM((64, 128), dtype), plgpu.Barrier()],
            compiler_params=_LANE,
        )(x)

    return function


def swizzled(x: Any) -> Any:
    def body(x_ref: Any, o_ref: Any, tile: Any, barrier: Any) -> None:
        plgpu.copy_gmem_to_smem(x_ref, tile, barrier)
        plgpu.barrier_wait(barrier)
        plgpu.copy_smem_to_gmem(tile, o_ref)
        plgpu.wait_smem_to_gmem(0)

    layout = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((64, 128), x.dtype),
        scratch_types=[plgpu.SMEM((64, 128), x.dtype, transforms=layout), plgpu.Barrier()],
        compiler_params=_LANE,
    )(x)


def windows(x: Any) -> Any:
    """Copy 64 windows of 3 × 3 pixels with 32 channels, their pixel (1, 2)."""

    def body(x_ref: Any, o_ref: Any, tile: Any, barrier: Any) -> None:
        view = plgpu.im2col_ref(x_ref, window_shape=(3, 3), padding=((1, 1), (1, 1)))
        plgpu.copy_gmem_to_smem(view.at[0:64, 1, 2, 0:32], tile, barrier)
        plgpu.barrier_wait(barrier)
        plgpu.copy_smem_to_gmem(tile, o_ref)
        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((64, 32), x.dtype),
        scratch_types=[plgpu.SMEM((64, 32), x.dtype), plgpu.Barrier()],
        compiler_params=_LANE,
    )(x)


CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "f32": (copied(jnp.float32), {"x": "f32[256, 512]"}, {}),
    "bf16": (copied(jnp.bfloat16), {"x": "bf16[256, 512]"}, {}),
    "i8": (copied(jnp.int8), {"x": "i8[256, 512]"}, {}),
    "f8e4m3fn": (copied(jnp.float8_e4m3fn), {"x": "f8e4m3fn[256, 512]"}, {}),
    "i4": (copied(jnp.int4), {"x": "i4[256, 512]"}, {}),
    "swizzled": (swizzled, {"x": "f16[64, 128]"}, {}),
}
if hasattr(plgpu, "im2col_ref"):
    CASES["windows"] = (windows, {"x": "f16[2, 16, 8, 64]"}, {})
