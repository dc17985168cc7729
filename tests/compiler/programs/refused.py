"""Functions with steps that no cubin launch can do; `# HERE name` marks the line to be shown."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu


def k(x: Any) -> Any:
    """Add one, in a Mosaic kernel."""

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + 1

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def cond(x: Any, flag: Any) -> Any:
    y = x * 2
    return jax.lax.cond(flag, k, lambda v: v, y)  # HERE cond


def while_loop(x: Any) -> Any:
    def step(state: Any) -> Any:
        return state[0] + 1, k(state[1])

    return jax.lax.while_loop(lambda s: s[0] < s[1][0, 0], step, (0.0, x))  # HERE while_loop


def fori_loop(x: Any, n: Any) -> Any:
    return jax.lax.fori_loop(0, n, lambda _, v: k(v), x)  # HERE fori_loop


def scan(x: Any) -> Any:
    return jax.lax.scan(lambda c, _: (k(c), c[0]), x, None, length=9000)  # HERE scan


def fft(x: Any) -> Any:
    return jnp.fft.fft(k(x)).real  # HERE fft


def cholesky(x: Any) -> Any:
    return jnp.linalg.cholesky(k(x))  # HERE cholesky


def qr(x: Any) -> Any:
    return jnp.linalg.qr(k(x))[0]  # HERE qr


def solve(x: Any) -> Any:
    y = jax.scipy.linalg.solve_triangular(x, k(x), lower=True)  # HERE solve
    return y


def pure_callback(x: Any) -> Any:
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(lambda v: v, out, k(x))  # HERE pure_callback


def debug_print(x: Any) -> Any:
    jax.debug.print("x is {}", x[0, 0])  # HERE debug_print
    return k(x)


def convolution(x: Any, w: Any) -> Any:
    y = jax.lax.conv(x, w, (1, 1), "SAME")  # HERE convolution
    return y


def c64_matmul(x: Any, y: Any) -> Any:
    return x @ y  # HERE c64_matmul


def random_bits(x: Any) -> Any:  # HERE random_bits
    return x + jax.lax.rng_uniform(0.0, 1.0, x.shape)


def approx_top(x: Any) -> Any:  # HERE approx_top
    return jax.lax.approx_max_k(x, 4)


def attention(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.dot_product_attention(q, k, v, implementation="cudnn")  # HERE attention


_X = "f32[128, 128]"
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "cond": (cond, {"x": _X, "flag": "bool[]"}, {}),
    "while_loop": (while_loop, {"x": _X}, {}),
    "fori_loop": (fori_loop, {"x": _X, "n": "i32[]"}, {}),
    "scan": (scan, {"x": _X}, {}),
    "fft": (fft, {"x": _X}, {}),
    "cholesky": (cholesky, {"x": _X}, {}),
    "qr": (qr, {"x": _X}, {}),
    "solve": (solve, {"x": _X}, {}),
    "pure_callback": (pure_callback, {"x": _X}, {}),
    "debug_print": (debug_print, {"x": _X}, {}),
    "convolution": (convolution, {"x": "f32[8, 16, 32, 32]", "w": "f32[16, 16, 3, 3]"}, {}),
    "c64_matmul": (c64_matmul, {"x": "c64[512, 512]", "y": "c64[512, 512]"}, {}),
    "random_bits": (random_bits, {"x": _X}, {}),
    "approx_top": (approx_top, {"x": "f32[4, 65536]"}, {}),
    "attention": (
        attention,
        {"q": "f16[2, 128, 4, 64]", "k": "f16[2, 128, 4, 64]", "v": "f16[2, 128, 4, 64]"},
        {},
    ),
}
