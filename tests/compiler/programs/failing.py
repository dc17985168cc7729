"""Kernels that do not compile; `# HERE name` marks the line to be shown."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallasc.specs.library.elementwise import add

kernel = functools.partial(plgpu.kernel, out_type=jax.ShapeDtypeStruct((128, 128), jnp.float32))


def library_call(x: Any) -> Any:
    return add(x, x, block_size=100)  # HERE library_call


def jax_kernel_call(x: Any) -> Any:
    from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu as matmul

    config = matmul.TuningConfig(tile_m=128, tile_n=128, tile_k=64, max_concurrent_steps=2)
    return matmul.matmul(x, jnp.zeros((3, 4), x.dtype), None, config)  # HERE jax_kernel_call


def store_shape(x: Any) -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[0:64]  # HERE store_shape

    return kernel(body)(x)


def no_rule(x: Any) -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.sort(x_ref[...])  # HERE no_rule

    return kernel(body)(x)


def layouts(x: Any) -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        v = plgpu.layout_cast(x_ref[...], plgpu.Layout.WGMMA)
        w = plgpu.layout_cast(x_ref[...], plgpu.Layout.WG_STRIDED((128, 128), vec_size=1))
        o_ref[...] = v + w  # HERE layouts

    return kernel(body)(x)


DECLARED_BEFORE = plgpu.SMEM((128, 8), jnp.float32)


@jax.jit
def too_much_smem(x: Any) -> Any:
    def body(x_ref: Any, o_ref: Any, tile: Any, row: Any, before: Any, barrier: Any) -> None:
        o_ref[...] = x_ref[...] + tile[0, 0]

    scratch = {
        "tile": plgpu.SMEM((400, 1024), jnp.float32),
        "row": plgpu.SMEM((64, 64), jnp.float16, transforms=(plgpu.TilingTransform((8, 64)),)),
        "before": DECLARED_BEFORE,
        "barrier": plgpu.Barrier(num_barriers=2),
    }
    return kernel(body, scratch_types=scratch)(x)  # HERE too_much_smem


def inner(x_ref: Any) -> Any:
    return x_ref[...].bar  # HERE nested_call


def nested_call(x: Any) -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = inner(x_ref)

    return kernel(body)(x)


def bad_ptx(x: Any) -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        def put(_: Any, ref: Any) -> None:
            from jaxlib.mlir import ir
            from jaxlib.mlir.dialects import llvm

            llvm.inline_asm(
                ir.Type.parse("!llvm.void"), [], "frobnicate.u32;", "", has_side_effects=True
            )

        plgpu.inline_mgpu(arg_types=(plgpu.RefType(),))(put)(x_ref)  # HERE bad_ptx
        o_ref[...] = x_ref[...]

    return kernel(body)(x)


def concretised(x: Any) -> Any:
    if x[0, 0] > 0:  # HERE concretised
        return x
    return -x


def wants_name(x: Any, *, n: Any) -> Any:
    return x * n


def fine(x: Any) -> Any:
    """Compile after all that failed."""

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + 1

    return kernel(body)(x)


_X = "f32[128, 128]"
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    function.__name__: (function, {"x": _X}, {})
    for function in (
        store_shape, no_rule, layouts, too_much_smem, nested_call, bad_ptx, concretised,
        library_call, jax_kernel_call, wants_name, fine,
    )
}  # fmt: skip
CASES["library_alone"] = (add, {"x": _X, "y": _X}, {"block_size": 100})
