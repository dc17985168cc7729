"""Call kernels with arrays of JAX in every way; print what came of it as one JSON object."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
from collections.abc import Callable
from typing import Any

import foreign
import jax
import jax.numpy as jnp
import made
import numpy as np
import standin

from pallasc.errors import PallascError
from pallasc.runtime.adapters import jax_arrays
from pallasc.runtime.opening import Kernels


def message(work: Callable[[], Any]) -> str:
    """Return what an error of ours says, its class first."""
    try:
        work()
    except PallascError as error:
        return f"{type(error).__name__}: {error.message}"
    except Exception as error:
        return f"not ours: {type(error).__name__}: {str(error).splitlines()[0]}"
    return "nothing"


def doubling(driver: Any) -> Any:
    """Return a kernel that doubles `b` in place and gives a + b beside it, twice."""

    @driver.kernel("three")
    def run(launch: Any) -> None:
        a, b, out = (launch.array(n, "float32", (4, 64)) for n in range(3))
        out[...] = a + b
        b *= 2

    plan = made.artifact(made.launch("three", 0, 1, 2), outputs=["f32[4, 64]", "b", "f32[4, 64]"])
    data = json.loads(json.dumps(plan.record["plan"]))
    data["outputs"][2]["buffer"] = data["outputs"][0]["buffer"]
    del data["buffers"][3:]
    return made.kernel(made.Artifact({**plan.record, "plan": data}, plan.blob))


def result(text: str) -> Any:
    """Return a kernel with a result of this type."""
    return made.kernel(made.add(outputs=[text]))


def transforms(kernel: Any, a: Any, b: Any) -> dict[str, Any]:
    """Return what comes of loops, donated and repeated arrays, and a derivative of the user's."""

    def first(array: Any) -> float:
        return float(np.asarray(array)[0, 0])

    @jax.custom_vjp
    def total(x: Any, y: Any) -> Any:
        return kernel(x, y)[0]

    total.defvjp(lambda x, y: (total(x, y), None), lambda _, g: (g, g))
    donated = jnp.full((4, 64), 2, jnp.float32)
    results = jax.jit(kernel, donate_argnums=1)(a, donated)
    again = jax.jit(lambda x, y: (*kernel(x, y), y + 0, *kernel(x, y)))(a, b)
    empty = made.artifact(made.launch("two", 1, 2), inputs={"a": "f32[0, 64]", "b": "f32[4, 64]"})
    none = made.kernel(made.add(input_tree={"a": 0, "b": 1, "mask": None}))
    return {
        "donated": [*map(first, results), donated.is_deleted()],
        "updated twice": [*map(first, again)],
        "loop": first(jax.lax.fori_loop(0, 3, lambda _, x: kernel(x, b)[0], a)),
        "map": jax.lax.map(lambda x: kernel(x, b)[0], jnp.stack([a, b]))[:, 0, 0].tolist(),
        "derivative": first(jax.grad(lambda x: total(x, b).sum())(a)),
        "shapes": [array.shape for array in jax.eval_shape(kernel, a, b)],
        "no elements": made.kernel(empty)(jnp.zeros((0, 64), jnp.float32), b).shape,
        "nothing by position": none(a, b, None).shape,
    }


def temporaries(driver: Any, a: Any, b: Any) -> dict[str, Any]:
    """Return the result of a kernel with a temporary, and what XLA allocates for the callback."""

    @driver.kernel("four")
    def run(launch: Any) -> None:
        x, y, out = (launch.array(n, "float32", (4, 64)) for n in (0, 1, 3))
        out[...] = x + y

    kernel = made.kernel(made.artifact(made.launch("four", 0, 1, 3, 2), temporaries=[512]))
    function = jax.jit(lambda x, y: kernel(x, y))
    (call,) = [
        line for line in function.lower(a, b).as_text().splitlines() if "custom_call" in line
    ]
    return {
        "result": float(function(a, b)[0, 0]),
        "types": call.rpartition("-> ")[2],
        "on the device": on_the_device(driver, kernel),
    }


def on_the_device(driver: Any, kernel: Any) -> list[Any]:
    """Run the callback as XLA does on a GPU; return what it passed, and what it allocated."""
    tensors = [made.install().tensor(text) for text in ("f32[4, 64]",) * 3 + ("u8[512]",)]
    buffers = [foreign.DlpackArray(array) for array in tensors]
    before = driver.count("cuMemAllocAsync")
    context = types.SimpleNamespace(stream=0)
    taken = kernel.variants[0].arrays
    jax_arrays._launch(kernel, context, taken, buffers[:2], buffers[2:3], buffers[3])
    launch = driver.launches[-1]
    passed = [launch.pointer(n) for n in range(4)]
    right = [tensors[n].pointer for n in (0, 1, 3, 2)]
    return [passed == right, driver.count("cuMemAllocAsync") - before]


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
    def tree_unflatten(cls, _: Any, parts: Any) -> Opaque:
        return cls(*parts)


def nodes(a: Any, b: Any) -> dict[str, Any]:
    """Return what comes of kernels of nodes, inside `jit` and outside, and what is refused."""
    quantised = {
        "node": "QArray", "children": [0, 1], "keys": ["qvalue", "scale"], "static": "(0)",
    }  # fmt: skip
    opaque = {"node": "Opaque", "children": [0, None, 1], "keys": ["0", "1", "2"]}
    kernel = made.kernel(made.add(input_tree={"w": quantised}))
    other = made.kernel(made.add(input_tree={"w": [opaque]}))
    plain = {name: np.asarray(array) for name, array in (("qvalue", a), ("scale", b))}
    arguments = [(kernel, QArray(a, b)), (kernel, (a, b)), (kernel, {"scale": b, "qvalue": a}),
                 (other, [Opaque(a, None, b)])]  # fmt: skip
    return {
        "inside": [float(jax.jit(lambda w, k=k: k(w))(w)[0, 0]) for k, w in arguments],
        "outside": [float(k(w)[0, 0]) for k, w in arguments],
        "of numpy": float(kernel(QArray(**plain))[0, 0]),
        "other static data": message(lambda: kernel(QArray(a, b, axis=1))),
        "other type": message(lambda: kernel(Opaque(a, b))),
        "an array": message(lambda: kernel(a)),
        "other parts": message(lambda: other([Opaque(a, b)])),
        "a part too many": message(lambda: other([Opaque(a, b, b)])),
    }


def laid_out(driver: Any) -> list[bool]:
    """Return whether a kernel whose b lies transposed is right, inside `jit` and outside."""

    @driver.kernel("three")
    def run(launch: Any) -> None:
        x, out = (launch.array(n, "float32", (4, 64)) for n in (0, 2))
        out[...] = x + launch.array(1, "float32", (64, 4)).T

    plan = made.add()
    data = json.loads(json.dumps(plan.record["plan"]))
    data["inputs"][1]["layout"] = [0, 1]
    kernel = made.kernel(made.Artifact({**plan.record, "plan": data}, plan.blob))
    values = np.arange(256, dtype=np.float32).reshape(4, 64)
    x = jnp.asarray(values)
    made_by = (kernel(x, x), jax.jit(kernel)(x, x), jax.jit(lambda w: kernel(x, w.T))(x.T))
    return [bool((np.asarray(array) == 2 * values).all()) for array in made_by]


def optional(driver: Any, a: Any, b: Any) -> list[list[float]]:
    """Return results of a kernel whose bias is None in one variant, inside `jit` and outside."""

    @driver.kernel("two")
    def copy(launch: Any) -> None:
        launch.array(1, "float32", (4, 64))[...] = launch.array(0, "float32", (4, 64))

    text = "f32[4, 64]"
    tree = {"a": 0, "bias": None}
    without = made.artifact(made.launch("two", 0, 1), inputs={"a": text}, input_tree=tree)
    having = made.artifact(made.launch("three", 0, 1, 2), inputs={"a": text, "bias": text})
    kernel = Kernels([("k", {"bias": None}, without), ("k", {"bias": text}, having)])["k"]
    ways = (
        lambda x, y: kernel(x),
        lambda x, y: kernel(x, None),
        lambda x, y: kernel(x, bias=None),
        lambda x, y: kernel(x, y),
        lambda x, y: kernel(x, bias=y),
    )
    return [
        [float(np.asarray(jax.jit(way)(a, b))[0, 0]), float(np.asarray(way(a, b))[0, 0])]
        for way in ways
    ]


def main() -> None:
    """Try everything."""
    driver = standin.load()
    driver.reset()
    made.install()
    kernel = doubling(driver)
    a, b = jnp.full((4, 64), 1, jnp.float32), jnp.full((4, 64), 2, jnp.float32)
    lowered = jax.jit(lambda x, y: kernel(x, y)).lower(a, b).as_text()
    report: dict[str, Any] = {"handlers": "pallasc_launch" in lowered}
    for name, function in (("inside", jax.jit(lambda x, y: kernel(x, y))), ("outside", kernel)):
        first, updated, again = function(a, b)
        report[name] = [float(np.asarray(array)[0, 0]) for array in (first, updated, again, a, b)]
    count = driver.count("cuLaunchKernelEx")
    kernel(a, b)
    report["one launch a call"] = driver.count("cuLaunchKernelEx") - count
    report["by name"] = float(kernel(b=b, a=a)[0][0, 0])
    report.update(transforms(kernel, a, b))
    report["nodes"] = nodes(a, b)
    report["optional"] = optional(driver, a, b)
    report["temporaries"] = temporaries(driver, a, b)
    mixed = Kernels([("sum", {}, made.add())])["sum"]
    report["refused"] = {
        "vmap": message(lambda: jax.vmap(lambda x: kernel(x, b))(a[None])),
        "vmap of jit": message(lambda: jax.vmap(jax.jit(lambda x: kernel(x, b)))(a[None])),
        "out": message(lambda: kernel.into(a, b, out=(a, b, a))),
        "stream": message(lambda: kernel(a, b, stream=16)),
        "numpy beside": message(lambda: kernel(a, np.asarray(b))),
        "numpy before": message(lambda: kernel(np.asarray(a), b)),
        "shape": message(lambda: kernel(a[:2], b)),
        "dtype": message(lambda: jax.jit(lambda x: kernel(x.astype(jnp.int32), b))(a)),
        "gradient": message(lambda: jax.grad(lambda x: kernel(x, b)[0].sum())(a)),
        "tangent inside": message(lambda: jax.jvp(jax.jit(lambda x: kernel(x, b)[0]), (a,), (a,))),
        "key": message(lambda: kernel(jax.random.key(0), b)),
        "type alone": message(lambda: kernel(jax.ShapeDtypeStruct((4, 64), jnp.float32), b)),
        "64 bits": message(lambda: result("f64[4, 32]")(a, b)),
        "operator": message(lambda: mixed(a, jnp.zeros((4, 64), jnp.float16))),
    }
    report["laid out"] = laid_out(driver)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
