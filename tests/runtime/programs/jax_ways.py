"""Call kernels with arrays of JAX in every way; print what came of it as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import made
import numpy as np
import standin

from pallasc.errors import PallascError
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


def main() -> None:
    """Try everything."""
    driver = standin.load()
    driver.reset()
    made.install()
    kernel = doubling(driver)
    a, b = jnp.full((4, 64), 1, jnp.float32), jnp.full((4, 64), 2, jnp.float32)
    report: dict[str, Any] = {}
    for name, function in (("inside", jax.jit(lambda x, y: kernel(x, y))), ("outside", kernel)):
        first, updated, again = function(a, b)
        report[name] = [float(np.asarray(one)[0, 0]) for one in (first, updated, again, a, b)]
    count = driver.count("cuLaunchKernelEx")
    kernel(a, b)
    report["one launch a call"] = driver.count("cuLaunchKernelEx") - count
    report["by name"] = float(kernel(b=b, a=a)[0][0, 0])
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
        "operator": message(lambda: mixed(a, jnp.zeros((4, 64), jnp.float16))),
    }
    print(json.dumps(report))


main()
