"""Functions with steps that no cubin launch can do; `# HERE name` marks the line to be shown."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu


def k(x: Any) -> Any:
    """Add one, in a Mosaic kernel."""

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + 1

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def fori_loop(x: Any, n: Any) -> Any:
    return jax.lax.fori_loop(0, n, lambda _, v: k(v), x)  # HERE fori_loop


def scan(x: Any) -> Any:
    return jax.lax.scan(lambda c, _: (k(c), c[0]), x, None, length=9000)  # HERE scan


def fft(x: Any) -> Any:
    return jnp.fft.fft(k(x)).real  # HERE fft


def cholesky(x: Any) -> Any:
    return jnp.linalg.cholesky(k(x))  # HERE cholesky


def solve(x: Any) -> Any:
    y = jax.scipy.linalg.solve_triangular(x, k(x), lower=True)  # HERE solve
    return y


def convolution(x: Any, w: Any) -> Any:
    y = jax.lax.conv(x, w, (1, 1), "SAME")  # HERE convolution
    return y


def c64_matmul(x: Any, y: Any) -> Any:
    return x @ y  # HERE c64_matmul


def random_bits(x: Any) -> Any:  # HERE random_bits
    return x + jax.lax.rng_uniform(0.0, 1.0, x.shape)


def approx_top(x: Any) -> Any:  # HERE approx_top
    return jax.lax.approx_max_k(x, 4)


_X = "f32[128, 128]"
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "fori_loop": (fori_loop, {"x": _X, "n": "i32[]"}, {}),
    "scan": (scan, {"x": _X}, {}),
    "fft": (fft, {"x": _X}, {}),
    "cholesky": (cholesky, {"x": _X}, {}),
    "solve": (solve, {"x": _X}, {}),
    "convolution": (convolution, {"x": "f32[8, 16, 32, 32]", "w": "f32[16, 16, 3, 3]"}, {}),
    "c64_matmul": (c64_matmul, {"x": "c64[512, 512]", "y": "c64[512, 512]"}, {}),
    "random_bits": (random_bits, {"x": _X}, {}),
    "approx_top": (approx_top, {"x": "f32[4, 65536]"}, {}),
}
