"""A training step with Adam and a Pallas kernel, forward and backward."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import mosaic_gpu as plgpu

OUT = "out_type" if "out_type" in inspect.signature(plgpu.kernel).parameters else "out_shape"
SIZE = 256


def _elementwise(body, *arrays):
    shape = jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)
    return plgpu.kernel(body, **{OUT: shape})(*arrays)


def _square(x_ref, out_ref):
    out_ref[...] = x_ref[...] * x_ref[...]


def _twice_product(x_ref, g_ref, out_ref):
    out_ref[...] = 2.0 * x_ref[...] * g_ref[...]


@jax.custom_vjp
def square(x):
    return _elementwise(_square, x)


square.defvjp(lambda x: (square(x), x), lambda x, g: (_elementwise(_twice_product, x, g),))


@jax.jit
def init(seed):
    weights = jax.random.normal(jax.random.key(seed), (SIZE,), jnp.float32)
    return {"w": weights, "b": jnp.zeros(SIZE)}, {"w": weights * 0, "b": jnp.zeros(SIZE)}


@functools.partial(jax.jit, donate_argnums=(0, 1))
def train_step(params, moments, batch):
    def loss(params):
        return jnp.mean(square(params["w"] * batch + params["b"]))

    value, grads = jax.value_and_grad(loss)(params)
    moments = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments, grads)
    params = jax.tree.map(lambda p, m: p - 0.01 * m / (jnp.abs(m) + 1e-8), params, moments)
    return params, moments, value


def main():
    params, moments = init(np.uint32(0))
    for _ in range(3):
        params, moments, loss = train_step(params, moments, np.ones(SIZE, np.float32))
    print("loss", np.asarray(loss).shape)


if __name__ == "__main__":
    main()
