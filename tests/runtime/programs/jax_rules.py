"""Transform calls of kernels with JAX: vmap, derivatives, shard_map; print what came of it.

The process has four devices of JAX on the CPU, and a kernel for one row of four rows of 64, of
whose launches the grid says how many rows there are.
"""

from __future__ import annotations

import gc
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
import made
import numpy as np
import standin
from jax.sharding import Mesh, PartitionSpec
from jax_ways import message

import pallasc
from pallasc.runtime.opening import Kernels
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.writer import build_bundle

ROWS = (4, 64)


def text(rows: int | None, dtype: str = "f32") -> str:
    """Return the type of an array, or of a batch of so many."""
    return f"{dtype}[4, 64]" if rows is None else f"{dtype}[{rows}, 4, 64]"


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


def first(array: Any) -> list[float]:
    """Return the first element of each part."""
    return [float(value) for value in np.asarray(array)[..., 0, 0].ravel()]


def multiplying() -> Any:
    """Return a kernel that multiplies, alone and in batches of two and of three."""
    entries = [variant("multiply", "three", 2, rows) for rows in (None, 2, 3)]
    mixed = {"x0": text(4), "x1": text(None)}
    entries.append(variant("multiply", "three", 2, 4, inputs=mixed))
    return Kernels(entries)["multiply"]


def batches(a: Any, b: Any) -> dict[str, Any]:
    """Return what comes of vmap, with a rule and without."""
    kernel = multiplying()
    report = {"undeclared": message(lambda: jax.vmap(kernel)(jnp.stack([a, b]), jnp.stack([b, b])))}
    kernel.defvmap()
    both, twos = jnp.stack([a, b]), jnp.stack([b, b])
    singles = Kernels([variant("single", "two", 1)])["single"]
    others = Kernels([variant("batched", "two", 1, 2)])["batched"]
    singles.defvmap(others)
    wrong = Kernels([variant("wrong", "two", 1), variant("wrong", "two", 1, 2, outputs=[text(3)])])
    wrong["wrong"].defvmap()
    report |= declared_batches(both)
    report |= {
        "both": first(jax.vmap(kernel)(both, twos)),
        "inside jit": first(jax.jit(jax.vmap(kernel))(both, twos)),
        "another axis": first(jax.vmap(kernel, in_axes=(1, 0))(jnp.moveaxis(both, 0, 1), twos)),
        "repeated": first(jax.vmap(kernel, in_axes=(0, None))(both, b)),
        "as it is": message(lambda: jax.vmap(kernel, in_axes=(0, None))(jnp.stack([a] * 4), b)),
        "another kernel": first(jax.vmap(singles)(both)),
        "of a size": message(lambda: jax.vmap(kernel)(jnp.stack([a] * 5), jnp.stack([a] * 5))),
        "other results": message(lambda: jax.vmap(wrong["wrong"])(both)),
        "no kernel": message(lambda: kernel.defvmap(len)),
    }
    return report


def declared_batches(both: Any) -> dict[str, Any]:
    """Return what comes of vmap where the specs of a bundle's kernels say what it calls."""

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

    def attempt(kernel: Any) -> Any:
        found: list[Any] = []
        words = message(lambda: found.append(first(jax.vmap(kernel)(both))))
        return found[0] if found else words

    with TemporaryDirectory() as folder:
        file = Path(folder) / "made.pallasc"
        file.write_bytes(build_bundle(items, level=1))
        kernels = pallasc.open_bundle(file)
        report = {
            f"of a spec: {name}": attempt(kernels[name])
            for name in ("single", "own", "alone", "undeclared", "several")
        }
        tiled = kernels["tiled"]
        report["of a spec: chosen"] = attempt(lambda x: tiled(x, tile=64))
        kernel = kernels["single"]
        kernel.defvmap()
        report["of a spec: overridden"] = attempt(kernel)
        kernel = pallasc.open_bundle(file)["single"]
        gc.collect()
        report["of a spec: the rest forgotten"] = attempt(kernel.unchecked)
    return report


def derivatives(a: Any, b: Any) -> dict[str, Any]:
    """Return what comes of grad, with backward kernels and functions."""
    report: dict[str, Any] = {}

    def gradient(kernel: Any, place: int = 0) -> float:
        function = jax.jit(jax.grad(lambda x, y: (3 * kernel(x, y)).sum(), argnums=place))
        return float(function(a, b)[0, 0])

    kernel = multiplying()
    report["none"] = message(lambda: gradient(kernel))
    kernel.defvjp(lambda residuals, g: (residuals[0][1] * g, residuals[0][0] * g))
    report["function"] = [gradient(kernel), gradient(kernel, 1)]
    kernel.defvmap()
    total = jax.grad(lambda x, y: jax.vmap(kernel)(x, y).sum())
    report["of vmap"] = float(total(jnp.stack([a, b]), jnp.stack([b, b]))[0, 0, 0])
    kernel.defvjp(lambda residuals, g: (residuals[1], None))
    report["result as residual"] = [gradient(kernel), gradient(kernel, 1)]

    def kernel_of(entry: str, count: int, **changes: Any) -> Any:
        return Kernels([variant("backward", entry, count, **changes)])["backward"]

    outer = Kernels([variant("one", "two", 1)])["one"]
    outer.defvjp(kernel_of("three", 2))  # takes x and the cotangent
    report["kernel"] = float(jax.grad(lambda x: outer(x).sum())(b)[0, 0])
    outer.defvjp(kernel_of("four", 3))  # takes x, the result and the cotangent
    report["kernel with results"] = float(jax.grad(lambda x: (3 * outer(x)).sum())(b)[0, 0])
    refusals = {
        "too few": lambda residuals, g: (g,),
        "no tuple": lambda residuals, g: g,
        "other type": lambda residuals, g: (g[0], g),
        "other count": kernel_of("two", 1),
        "too few results": kernel_of("four", 3),
    }
    for name, backward in refusals.items():
        kernel.defvjp(backward)
        report[name] = message(lambda: gradient(kernel))
    report["nothing to call"] = message(lambda: kernel.defvjp(3))
    return report


def shards(a: Any, b: Any) -> dict[str, Any]:
    """Return what comes of shard_map over the devices of this process."""
    kernel = multiplying()
    mesh = Mesh(np.array(jax.devices()), ("x",))
    whole, axes = jnp.concatenate([a, b, a, b]), PartitionSpec("x")

    def run(in_specs: Any, x: Any, y: Any, **options: Any) -> list[float]:
        mapped = jax.shard_map(
            lambda x, y: kernel(x, y), mesh=mesh, in_specs=in_specs, out_specs=axes, **options
        )
        return [float(value) for value in np.asarray(jax.jit(mapped)(x, y))[::4, 0]]

    roomy = Kernels([variant("roomy", "three", 2, temporaries=[512])])["roomy"]
    mapped = jax.shard_map(roomy, mesh=mesh, in_specs=(axes, axes), out_specs=axes)
    gradient = jax.grad(lambda x: mapped(x, whole).sum())
    roomy.defvjp(lambda residuals, g: (g * residuals[0][1], g * residuals[0][0]))
    shared = jax.shard_map(roomy, mesh=mesh, in_specs=(PartitionSpec(), axes), out_specs=axes)
    of_shared = jax.jit(jax.grad(lambda x: shared(x, whole).sum()))
    return {
        "gradient of one replicated": float(of_shared(a)[0, 0]),
        "temporaries": [float(value) for value in np.asarray(mapped(whole, whole))[::4, 0]],
        "gradient": [float(value) for value in np.asarray(jax.jit(gradient)(whole))[::4, 0]],
        "both": run((axes, axes), whole, whole),
        "unchecked": run((axes, axes), whole, whole, check_vma=False),
        "second replicated": run((axes, PartitionSpec()), whole, b),
        "first replicated": run((PartitionSpec(), axes), a, whole),
    }


def main() -> None:
    """Try everything."""
    driver = standin.load()
    driver.reset()
    made.install()
    install(driver)
    a, b = jnp.full(ROWS, 3, jnp.float32), jnp.full(ROWS, 5, jnp.float32)
    lowered = jax.jit(multiplying()).lower(a, b).as_text()
    report: dict[str, Any] = {"handlers": "pallasc_launch" in lowered}
    report |= {"vmap": batches(a, b), "grad": derivatives(a, b), "shard_map": shards(a, b)}
    driver.check()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
