"""JAX's Hopper attention inside a model."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.gpu import attention_mgpu

BLOCKS = attention_mgpu.TuningConfig(block_q=64, block_kv=64, max_concurrent_steps=2)


@functools.partial(jax.jit, static_argnames="scale")
def layer(q, k, v, *, scale):
    mixed = attention_mgpu.attention(q * jnp.float16(scale), k, v, BLOCKS)
    return jax.nn.gelu(mixed.astype(jnp.float32) + q.astype(jnp.float32))


if __name__ == "__main__":
    x = np.zeros((1, 256, 2, 64), jnp.float16)
    print("layer", np.asarray(layer(x, x, x, scale=0.125)).shape)
