"""A setting of a module, a function that is not jitted, and static and donated arguments."""

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)
TABLE = jax.device_put(np.arange(4.0))  # copied while the module is imported


def scaled(total, steps, x, *, offset):
    return total + jnp.cumsum(x * steps) * TABLE.sum() + offset


if __name__ == "__main__":
    program = jax.jit(scaled, static_argnames="steps", donate_argnames="total")
    x, offset = np.ones(8, np.float64), np.float64(1)
    print("scaled", program(np.zeros(8), 3, x, offset=offset).dtype)
