"""Call kernels with arrays of JAX in every way."""

import dataclasses
import functools
from typing import Any

import host_jax
import jax
import jax.numpy as jnp
import made
import numpy as np
import standin
from messages import refused

from pallasc.runtime.opening import Kernels

TEXT = "f32[4, 64]"


def doubling(driver: Any) -> Any:
    """Return a kernel that doubles `b` in place and gives a + b beside it, twice."""

    @driver.kernel("three")
    def run(launch: Any) -> None:
        a, b, out = (launch.array(n, "float32", (4, 64)) for n in range(3))
        out[...] = a + b
        b *= 2

    def repeat(plan: Any) -> None:
        plan["outputs"][2]["buffer"] = plan["outputs"][0]["buffer"]
        del plan["buffers"][3:]

    artifact = made.artifact(made.launch("three", 0, 1, 2), outputs=[TEXT, "b", TEXT])
    return made.kernel(made.changed(artifact, repeat))


def first(array: Any) -> float:
    return float(np.asarray(array)[0, 0])


def transforms(kernel: Any, a: Any, b: Any) -> None:
    """Check loops, donated and repeated arrays, and a derivative of the user's."""

    @jax.custom_vjp
    def total(x: Any, y: Any) -> Any:
        return kernel(x, y)[0]

    total.defvjp(lambda x, y: (total(x, y), None), lambda _, g: (g, g))
    donated = jnp.full((4, 64), 2, jnp.float32)
    assert [*map(first, jax.jit(kernel, donate_argnums=1)(a, donated))] == [3, 4, 3]
    assert donated.is_deleted()
    again = jax.jit(lambda x, y: (*kernel(x, y), y + 0, *kernel(x, y)))(a, b)
    assert [*map(first, again)] == [3, 4, 3, 2, 3, 4, 3]
    assert first(jax.lax.fori_loop(0, 3, lambda _, x: kernel(x, b)[0], a)) == 7
    mapped = jax.lax.map(lambda x: kernel(x, b)[0], jnp.stack([a, b]))
    assert mapped[:, 0, 0].tolist() == [3, 4]
    assert first(jax.grad(lambda x: total(x, b).sum())(a)) == 1
    assert [array.shape for array in jax.eval_shape(kernel, a, b)] == [(4, 64)] * 3
    empty = made.artifact(made.launch("two", 1, 2), inputs={"a": "f32[0, 64]", "b": TEXT})
    assert made.kernel(empty)(jnp.zeros((0, 64), jnp.float32), b).shape == (4, 64)
    none = made.kernel(made.add(input_tree={"a": 0, "b": 1, "mask": None}))
    assert none(a, b, None).shape == (4, 64)


def temporaries(driver: Any, a: Any, b: Any) -> None:
    """Check that a temporary is memory of XLA."""

    @driver.kernel("four")
    def run(launch: Any) -> None:
        x, y, out = (launch.array(n, "float32", (4, 64)) for n in (0, 1, 3))
        out[...] = x + y

    kernel = made.kernel(made.artifact(made.launch("four", 0, 1, 3, 2), temporaries=[512]))
    function = jax.jit(lambda x, y: kernel(x, y))
    assert "-> (tensor<4x64xf32>, tensor<512xui8>)" in function.lower(a, b).as_text()
    before = driver.count("cuMemAllocAsync")
    assert first(function(a, b)) == 3
    assert driver.count("cuMemAllocAsync") == before


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["qvalue", "scale"], meta_fields=["axis"]
)
@dataclasses.dataclass
class QArray:
    """A node with shape and dtype, as quantised arrays are."""

    qvalue: Any
    scale: Any
    axis: int = 0
    shape = (4, 64)
    dtype = jnp.dtype("bfloat16")


@jax.tree_util.register_pytree_node_class
class Opaque:
    """A node whose children have no names, and one of which is None."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def tree_flatten(self) -> Any:
        return self.parts, None

    @classmethod
    def tree_unflatten(cls, _: Any, parts: Any) -> "Opaque":
        return cls(*parts)


def nodes(a: Any, b: Any) -> None:
    """Check that nodes are flattened as JAX does, inside `jit` and outside, or refused."""
    quantised = {
        "node": "QArray", "children": [0, 1], "keys": ["qvalue", "scale"], "static": "(0)",
    }  # fmt: skip
    opaque = {"node": "Opaque", "children": [0, None, 1], "keys": ["0", "1", "2"]}
    kernel = made.kernel(made.add(input_tree={"w": quantised}))
    other = made.kernel(made.add(input_tree={"w": [opaque]}))
    for own, w in (
        *((kernel, w) for w in (QArray(a, b), (a, b), {"scale": b, "qvalue": a})),
        (other, [Opaque(a, None, b)]),
    ):
        assert [first(jax.jit(own)(w)), first(own(w))] == [3, 3]
    assert first(kernel(QArray(np.asarray(a), np.asarray(b)))) == 3
    refused(
        "made: w is a QArray with the static data (1), and the kernel was compiled for (0).",
        lambda: kernel(QArray(a, b, axis=1)),
    )
    refused("made: w must be a QArray, not an Opaque.", lambda: kernel(Opaque(a, b)))
    refused("made: w must be a QArray, not an ArrayImpl.", lambda: kernel(a))
    refused("made: w.0 is a Opaque of 2 parts, not of 3.", lambda: other([Opaque(a, b)]))
    refused(
        "made: w.0.1 must be None, as it was when the kernel was compiled.",
        lambda: other([Opaque(a, b, b)]),
    )


def laid_out(driver: Any) -> None:
    """Check a kernel whose b lies transposed."""

    @driver.kernel("three")
    def run(launch: Any) -> None:
        x, out = (launch.array(n, "float32", (4, 64)) for n in (0, 2))
        out[...] = x + launch.array(1, "float32", (64, 4)).T

    transposed = made.changed(made.add(), lambda plan: plan["inputs"][1].update(layout=[0, 1]))
    kernel = made.kernel(transposed)
    x = jnp.asarray(np.arange(256, dtype=np.float32).reshape(4, 64))
    for result in (kernel(x, x), jax.jit(kernel)(x, x), jax.jit(lambda w: kernel(x, w.T))(x.T)):
        assert (np.asarray(result) == 2 * np.asarray(x)).all()


def optional(driver: Any, a: Any, b: Any) -> None:
    """Check a kernel whose bias is None in one variant."""

    @driver.kernel("two")
    def copy(launch: Any) -> None:
        launch.array(1, "float32", (4, 64))[...] = launch.array(0, "float32", (4, 64))

    tree = {"a": 0, "bias": None}
    without = made.artifact(made.launch("two", 0, 1), inputs={"a": TEXT}, input_tree=tree)
    having = made.artifact(made.launch("three", 0, 1, 2), inputs={"a": TEXT, "bias": TEXT})
    kernel = Kernels([("k", {"bias": None}, without), ("k", {"bias": TEXT}, having)])["k"]
    for right, way in (
        (1, lambda x, y: kernel(x)),
        (1, lambda x, y: kernel(x, bias=None)),
        (3, lambda x, y: kernel(x, y)),
        (3, lambda x, y: kernel(x, bias=y)),
    ):
        assert [first(jax.jit(way)(a, b)), first(way(a, b))] == [right, right]


def refusals(kernel: Any, a: Any, b: Any) -> None:
    """Check what is said where a call cannot be."""
    fixed = "made cannot be used under jax.vmap: its shapes are fixed."
    refused(fixed, lambda: jax.vmap(lambda x: kernel(x, b))(a[None]))
    refused(fixed, lambda: jax.vmap(jax.jit(lambda x: kernel(x, b)))(a[None]))
    refused(
        "made: out cannot be given with JAX arrays, which are never written into.",
        lambda: kernel.into(a, b, out=(a, b, a)),
    )
    stream = "made: inside JAX the stream is XLA's and cannot be given."
    refused(stream, lambda: kernel(a, b, stream=16))
    refused("made: b is a ndarray among JAX arrays.", lambda: kernel(a, np.asarray(b)))
    refused("made: a is a ndarray among JAX arrays.", lambda: kernel(np.asarray(a), b))
    shape = "made: a has shape [2, 64], and the kernel takes f32[4, 64]."
    refused(shape, lambda: kernel(a[:2], b))
    integers = "made: a has dtype i32, and the kernel takes f32[4, 64]."
    refused(integers, lambda: jax.jit(lambda x: kernel(x.astype(jnp.int32), b))(a))
    none = "made has no derivative."
    refused(none, lambda: jax.grad(lambda x: kernel(x, b)[0].sum())(a))
    refused(none, lambda: jax.jvp(jax.jit(lambda x: kernel(x, b)[0]), (a,), (a,)))
    key = "made: a has dtype key<fry>, and the kernel takes f32[4, 64]."
    refused(key, lambda: kernel(jax.random.key(0), b))
    alone = jax.ShapeDtypeStruct((4, 64), jnp.float32)
    refused("made: a is a ShapeDtypeStruct among JAX arrays.", lambda: kernel(alone, b))
    wide = made.kernel(made.add(outputs=["f64[4, 32]"]))
    refused("made: out is f64, and JAX has 64-bit dtypes switched off.", lambda: wide(a, b))


def main() -> None:
    """Try everything."""
    driver = standin.load()
    driver.reset()
    host_jax.register()
    kernel = doubling(driver)
    a, b = jnp.full((4, 64), 1, jnp.float32), jnp.full((4, 64), 2, jnp.float32)
    lowered = jax.jit(lambda x, y: kernel(x, y)).lower(a, b).as_text()
    assert "pallasc_launch" in lowered
    for function in (jax.jit(lambda x, y: kernel(x, y)), kernel):
        assert [*map(first, (*function(a, b), a, b))] == [3, 4, 3, 1, 2]
    count = driver.count("cuLaunchKernelEx")
    assert first(kernel(b=b, a=a)[0]) == 3
    assert driver.count("cuLaunchKernelEx") == count + 1
    transforms(kernel, a, b)
    nodes(a, b)
    optional(driver, a, b)
    temporaries(driver, a, b)
    refusals(kernel, a, b)
    laid_out(driver)
    driver.check()


if __name__ == "__main__":
    main()
