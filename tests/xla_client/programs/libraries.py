"""Calls of cuBLAS and cuDNN, compiled and not run: neither library is here."""

import jax
import jax.numpy as jnp
from jax import lax


@jax.jit
def product(x, y):
    return jnp.dot(x, y)


@jax.jit
def convolution(x, kernel):
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME")


if __name__ == "__main__":
    square, image = jax.ShapeDtypeStruct((512, 512), "complex64"), (1, 16, 32, 32)
    print(product.lower(square, square).compile().as_text())
    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in (image, (16, 16, 3, 3))]
    print(convolution.lower(*shapes).compile().as_text())
