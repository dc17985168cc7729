"""A sampler that draws until it has enough, on the device."""

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def sample(seed, scale):
    def go_on(state):
        step, _, _ = state
        return step < 16

    def draw(state):
        step, key, values = state
        key, own = jax.random.split(key)
        drawn = jax.random.normal(own, values.shape)
        kept = jax.lax.cond(step % 2 == 0, lambda x: x * scale, lambda x: x, drawn)
        return step + 1, key, jnp.where(jnp.abs(kept) < 3, kept, values)

    state = (jnp.int32(0), jax.random.key(seed), jnp.zeros((64, 64)))
    return jax.lax.while_loop(go_on, draw, state)[2]


if __name__ == "__main__":
    print("samples", np.asarray(sample(np.uint32(1), np.float32(0.5))).shape)
