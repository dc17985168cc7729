"""Functions that ask JAX for the device they are compiled for."""

from typing import Any

import jax
from jax.experimental.pallas import mosaic_gpu as plgpu


@jax.jit
def a_block_for_each_multiprocessor(x: Any) -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    count: Any = jax.local_devices()[0]
    return plgpu.kernel(body, out_type=out, grid=(count.core_count,), grid_names=("sm",))(x)


def answers(x: Any) -> Any:
    """Return what JAX says, as names of results."""
    device: Any = jax.devices()[0]
    said = {
        "backend": jax.default_backend(),
        "count": jax.device_count(),
        "local": jax.local_device_count(),
        "gpus": len(jax.devices("gpu")),
        "platform": device.platform,
        "capability": device.compute_capability,
        "other platform": jax.devices("cpu")[0].platform,
    }
    return {f"{name}: {value}": x for name, value in said.items()}


CASES = {
    "blocks": (a_block_for_each_multiprocessor, ["f32[128]"], {}),
    "answers": (answers, ["f32[128]"], {}),
    "answers_of_four": (answers, ["f32[128]"], {}, (("x", 4),)),
}
