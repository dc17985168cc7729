"""Say what is wrong where there is no driver.

Prints one JSON object: of each attempt the class of the error and its first line.
"""

import json
from collections.abc import Callable
from typing import Any

import made
import numpy as np

from pallasc.errors import PallascError
from pallasc.runtime.opening import Kernels


def message(work: Callable[[], Any]) -> str:
    """Return class and first line of what something raises."""
    try:
        work()
    except PallascError as error:
        return f"{type(error).__name__}: {error.message.splitlines()[0]}"
    except Exception as error:
        return f"{type(error).__name__}, of another library: {str(error).splitlines()[0]}"
    return "nothing"


def of_numpy(kernel: Any, several: Any) -> dict[str, Callable[[], Any]]:
    """Return calls with arrays of numpy."""
    array = np.ones((4, 64), np.float32)
    return {
        "right": lambda: kernel(array, array),
        "dtype": lambda: kernel(array, array.astype(np.float64)),
        "shape": lambda: kernel(array[:2], array),
        "none of several": lambda: several(array[:1], array),
        "one of several": lambda: several(array, array),
        "prepare": lambda: kernel.prepare("f32[4, 64]", "f32[4, 32]"),
    }


def of_jax(kernel: Any) -> dict[str, Callable[[], Any]]:
    """Return calls with arrays of JAX on the CPU."""
    import jax.numpy as jnp

    array = jnp.ones((4, 64), jnp.float32)
    return {
        "JAX, dtype": lambda: kernel(array, array.astype(jnp.float16)),
    }


def main() -> None:
    """Try everything."""
    kernel = made.kernel(made.add())
    wide = {"a": "f32[8, 64]", "b": "f32[4, 64]"}
    several = Kernels([("sum", {"m": 4}, made.add()), ("sum", {"m": 8}, made.add(inputs=wide))])
    calls = of_numpy(kernel, several["sum"]) | of_jax(kernel)
    found = {name: message(work) for name, work in calls.items()}
    here = kernel.available()
    found["available"] = f"{bool(here)}, {here.devices}: {here.reason.splitlines()[0]}"
    print(json.dumps(found))


if __name__ == "__main__":
    main()
