"""Transform calls of kernels with JAX: vmap, derivatives, shard_map.

The process has four devices of JAX on the CPU, and a kernel for one row of four rows of 64, of
whose launches the grid says how many rows there are.
"""

import gc
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import host_jax
import jax
import jax.numpy as jnp
import made
import numpy as np
import standin
from jax.sharding import Mesh, PartitionSpec
from messages import refused

import pallasc
from pallasc.runtime.opening import Kernels
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.writer import build_bundle

ROWS = (4, 64)


def text(rows: int | None) -> str:
    """Return the type of an array, or of a batch of so many."""
    return "f32[4, 64]" if rows is None else f"f32[{rows}, 4, 64]"


def install(driver: Any) -> None:
    """Let `two` double an array, `three` multiply two, `four` give the derivative of that."""

    def arrays(launch: Any, count: int) -> list[Any]:
        return [launch.array(n, "float32", (launch.grid[0], *ROWS)) for n in range(count)]

    @driver.kernel("two")
    def double(launch: Any) -> None:
        x, out = arrays(launch, 2)
        out[...] = 2 * x

    @driver.kernel("three")
    def multiply(launch: Any) -> None:
        x, y, out = arrays(launch, 3)
        out[...] = x * y

    @driver.kernel("four")
    def derive(launch: Any) -> None:
        _, y, cotangent, out = arrays(launch, 4)
        out[...] = y * cotangent


def variant(
    name: str, entry: str, count: int, rows: int | None = None, **changes: Any
) -> tuple[str, dict[str, Any], Any]:
    """Return a variant of a kernel over `count` arrays and a result, for so many rows."""
    step = made.launch(entry, *range(count + 1), grid=(rows or 1, 1, 1))
    inputs = {f"x{n}": text(rows) for n in range(count)}
    given = {"inputs": inputs, "outputs": [text(rows)], **changes}
    return name, {"rows": rows}, made.artifact(step, **given)


def single(*given: Any, **changes: Any) -> Any:
    """Return a kernel of one variant."""
    return Kernels([variant(*given, **changes)])[given[0]]


def first(array: Any) -> list[float]:
    """Return the first element of each part."""
    return [float(value) for value in np.asarray(array)[..., 0, 0].ravel()]


def multiplying() -> Any:
    """Return a kernel that multiplies, alone and in batches of two and of three."""
    entries = [variant("multiply", "three", 2, rows) for rows in (None, 2, 3)]
    mixed = {"x0": text(4), "x1": text(None)}
    entries.append(variant("multiply", "three", 2, 4, inputs=mixed))
    return Kernels(entries)["multiply"]


def batches(a: Any, b: Any) -> None:
    """Check vmap, with a rule and without."""
    kernel, both, twos = multiplying(), jnp.stack([a, b]), jnp.stack([b, b])
    fixed = "multiply cannot be used under jax.vmap: its shapes are fixed."
    refused(fixed, lambda: jax.vmap(kernel)(both, twos))
    kernel.defvmap()
    assert first(jax.vmap(kernel)(both, twos)) == [15, 25]
    assert first(jax.jit(jax.vmap(kernel))(both, twos)) == [15, 25]
    assert first(jax.vmap(kernel, in_axes=(1, 0))(jnp.moveaxis(both, 0, 1), twos)) == [15, 25]
    assert first(jax.vmap(kernel, in_axes=(0, None))(both, b)) == [15, 25]
    jax.vmap(kernel, in_axes=(0, None))(jnp.stack([a] * 4), b)  # a variant takes b as it is
    other = single("single", "two", 1)
    other.defvmap(single("batched", "two", 1, 2))
    assert first(jax.vmap(other)(both)) == [6, 10]
    five = jnp.stack([a] * 5)
    refused(
        "multiply has no variant for f32[5, 4, 64], f32[5, 4, 64].",
        lambda: jax.vmap(kernel)(five, five),
    )
    entries = [variant("wrong", "two", 1), variant("wrong", "two", 1, 2, outputs=[text(3)])]
    wrong = Kernels(entries)["wrong"]
    wrong.defvmap()
    refused(
        "wrong: the variant for a batch of 2 gives results of the shapes [3, 4, 64], and jax.vmap "
        "needs [2, 4, 64].",
        lambda: jax.vmap(wrong)(both),
    )
    refused(
        "multiply: defvmap takes a kernel, not a builtin_function_or_method.",
        lambda: kernel.defvmap(len),
    )


def declared_batches(both: Any) -> None:
    """Check vmap where the specs of a bundle's kernels say what it calls."""

    def item(name: str, rows: int | None, vmap: str | None, **more: int) -> Any:
        _, params, artifact = variant(name, "two", 1, rows)
        return Item(name, params | more, artifact, vmap=vmap)

    items = [
        *(item("single", None, "batched"), item("batched", 2, None)),
        *(item("own", None, "own"), item("own", 2, "own")),
        *(item("alone", None, "elsewhere"), item("undeclared", None, None)),
        *(item("several", None, "batched"), item("several", 2, "own")),
        *(item("tiled", None, "tiles", tile=tile) for tile in (64, 128)),
        *(item("tiles", 2, None, tile=tile) for tile in (64, 128)),
    ]
    with TemporaryDirectory() as folder:
        file = Path(folder) / "made.pallasc"
        file.write_bytes(build_bundle(items, level=1))
        kernels = pallasc.open_bundle(file)
        tiled, kernel = kernels["tiled"], kernels["single"]
        for declared in (kernel, kernels["own"], lambda x: tiled(x, tile=64)):
            assert first(jax.vmap(declared)(both)) == [6, 10]
        for name, words in {
            "alone": "alone cannot be used under jax.vmap: the kernel elsewhere, which its spec "
            "names, was not opened with it.",
            "undeclared": "undeclared cannot be used under jax.vmap: its shapes are fixed.",
            "several": "variants of several name several kernels for jax.vmap: batched, own.",
        }.items():
            refused(words, lambda name=name: jax.vmap(kernels[name])(both))
        kernel.defvmap()
        refused(
            "single: x0 has shape [2, 4, 64], and the kernel takes f32[4, 64].",
            lambda: jax.vmap(kernel)(both),
        )
        kernel = pallasc.open_bundle(file)["single"]
        gc.collect()  # of the other kernels, which nothing here has
        assert first(jax.vmap(kernel.unchecked)(both)) == [6, 10]


def derivatives(a: Any, b: Any) -> None:
    """Check grad, with backward kernels and functions."""
    kernel = multiplying()

    def gradient(place: int = 0) -> float:
        function = jax.jit(jax.grad(lambda x, y: (3 * kernel(x, y)).sum(), argnums=place))
        return float(function(a, b)[0, 0])

    refused("multiply has no derivative.", gradient)
    kernel.defvjp(lambda residuals, g: (residuals[0][1] * g, residuals[0][0] * g))
    assert [gradient(), gradient(1)] == [15, 9]
    kernel.defvmap()
    total = jax.grad(lambda x, y: jax.vmap(kernel)(x, y).sum())
    assert total(jnp.stack([a, b]), jnp.stack([b, b]))[0, 0, 0] == 5
    kernel.defvjp(lambda residuals, g: (residuals[1], None))
    assert [gradient(), gradient(1)] == [15, 0]
    outer = single("one", "two", 1)
    outer.defvjp(single("backward", "three", 2))  # takes x and the cotangent
    assert jax.grad(lambda x: outer(x).sum())(b)[0, 0] == 5
    outer.defvjp(single("backward", "four", 3))  # takes x, the result and the cotangent
    assert jax.grad(lambda x: (3 * outer(x)).sum())(b)[0, 0] == 30
    takes = "the backward kernel of multiply must"
    for backward, words in (
        (
            single("backward", "two", 1),
            f"{takes} take 3 or 4 arrays: multiply's inputs, optionally its results, and their "
            "cotangents. backward takes 1.",
        ),
        (
            single("backward", "four", 3),
            f"{takes} give 2 results, the gradients of its arrays, and backward gives 1.",
        ),
    ):
        kernel.defvjp(backward)
        refused(words, gradient)
    refused("multiply: defvjp takes a kernel or a function, not an int.", lambda: kernel.defvjp(3))


def shards(a: Any, b: Any) -> None:
    """Check shard_map over the devices of this process."""
    kernel = multiplying()
    mesh = Mesh(np.array(jax.devices()), ("x",))
    whole, axes, same = jnp.concatenate([a, b, a, b]), PartitionSpec("x"), PartitionSpec()

    def over(kernel: Any, in_specs: Any, **options: Any) -> Any:
        return jax.shard_map(kernel, mesh=mesh, in_specs=in_specs, out_specs=axes, **options)

    def run(in_specs: Any, x: Any, y: Any, **options: Any) -> list[float]:
        mapped = over(lambda x, y: kernel(x, y), in_specs, **options)
        return rows(jax.jit(mapped)(x, y))

    def rows(array: Any) -> list[float]:
        return [float(value) for value in np.asarray(array)[::4, 0]]

    assert run((axes, axes), whole, whole) == [9, 25, 9, 25]
    assert run((axes, axes), whole, whole, check_vma=False) == [9, 25, 9, 25]
    assert run((axes, same), whole, b) == [15, 25, 15, 25]
    assert run((same, axes), a, whole) == [9, 15, 9, 15]
    roomy = single("roomy", "three", 2, temporaries=[512])
    mapped, shared = over(roomy, (axes, axes)), over(roomy, (same, axes))
    assert rows(mapped(whole, whole)) == [9, 25, 9, 25]
    roomy.defvjp(lambda residuals, g: (g * residuals[0][1], g * residuals[0][0]))
    assert rows(jax.jit(jax.grad(lambda x: mapped(x, whole).sum()))(whole)) == [3, 5, 3, 5]
    of_shared = jax.jit(jax.grad(lambda x: shared(x, whole).sum()))
    assert of_shared(a)[0, 0] == 3 + 5 + 3 + 5


def main() -> None:
    """Try everything."""
    driver = standin.load()
    driver.reset()
    host_jax.register()
    install(driver)
    a, b = jnp.full(ROWS, 3, jnp.float32), jnp.full(ROWS, 5, jnp.float32)
    assert "pallasc_launch" in jax.jit(multiplying()).lower(a, b).as_text()
    batches(a, b)
    declared_batches(jnp.stack([a, b]))
    derivatives(a, b)
    shards(a, b)
    driver.check()


if __name__ == "__main__":
    main()
