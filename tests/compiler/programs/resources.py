"""Kernels whose resources are compared with the assembler's report."""

from typing import Any

import jax
from jax.experimental.pallas import mosaic_gpu as plgpu


def small(x: Any) -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + 1

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def reducing(x: Any) -> Any:
    return small(x).sum(axis=0)


CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "small": (small, {"x": "f32[128, 128]"}, {}),
    # 512 numbers a thread are more than there are registers.
    "spilling": (small, {"x": "f32[512, 128]"}, {}),
    "reducing": (reducing, {"x": "f32[128, 1024]"}, {}),
}
