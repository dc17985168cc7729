"""A program that `pallasc warm` prepares: it trains two weights with a Pallas kernel."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import mosaic_gpu as plgpu

SIZE = 1024


def square_body(x_ref, out_ref):
    """Write the squares of `x_ref` to `out_ref`."""
    out_ref[...] = x_ref[...] * x_ref[...]


@jax.custom_jvp
def square(x):
    """Return the squares of an array."""
    return plgpu.kernel(square_body, out_type=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


@square.defjvp
def square_jvp(primals, tangents):
    """Return the squares and their derivatives."""
    (x,), (t,) = primals, tangents
    return square(x), 2 * x * t


@jax.jit
def init(seed):
    """Return the first weights."""
    return {"w": jax.random.normal(jax.random.key(seed), (SIZE,)), "b": jnp.zeros(SIZE)}


@functools.partial(jax.jit, donate_argnames="params")
def train_step(params, batch):
    """Return the next weights and the loss."""

    def loss(params):
        return jnp.mean(square(params["w"] * batch + params["b"]))

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def main():
    """Train for ten steps."""
    params = init(np.uint32(0))
    for _ in range(10):
        params, loss = train_step(params, np.ones(SIZE, np.float32))
    print(f"loss {float(loss):.4f}")


if __name__ == "__main__":
    main()
