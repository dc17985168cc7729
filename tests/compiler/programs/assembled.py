"""Compile a Mosaic kernel that spills and one of XLA's, here and in a worker.

assembled.py STORE [LIBRARY]. LIBRARY is loaded before all else. Prints JSON: of both ways the
artifact's digest or the error, the tools that made each cubin, and the bytes that spill; whether
PATH is as it was.
"""

import ctypes
import json
import os
import sys
from typing import Any

if __name__ == "__main__" and len(sys.argv) > 2:
    ctypes.CDLL(sys.argv[2])

import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallasc
from pallasc.cache.store import Store
from pallasc.specs.artifacts.cubin import parse_cubin


def function(x: Any) -> Any:
    """A kernel that holds more numbers than there are registers, and a fused one."""

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + 1

    kernel = plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, x.dtype))
    return jnp.sin(kernel(x)).T * 2


def told(isolated: bool, store: Store) -> dict[str, Any]:
    more = {"isolated": True, "store": store} if isolated else {}
    try:
        artifact = pallasc.compile(function, "f32[1024, 128]", **more)
    except pallasc.PallascError as error:
        return {"error": [type(error).__name__, error.exit_code, str(error)]}
    kernels = artifact.kernels
    return {
        "digest": artifact.digest,
        "tools": [[list(t)[:2] for t in _tools(artifact, kernel)] for kernel in kernels],
        "spills": [kernel.spill_store_bytes for kernel in kernels if kernel.ptx],
    }


def _tools(artifact: Any, kernel: Any) -> list[tuple[str, str]]:
    return [(tool.name, tool.version) for tool in parse_cubin(artifact.blob(kernel.cubin)).tools]


def main() -> None:
    store, path = Store(sys.argv[1]), os.environ["PATH"]
    found = {name: told(name == "isolated", store) for name in ("isolated", "here")}
    same = os.environ["PATH"] == path
    print(json.dumps({**found, "path is as it was": same}))


if __name__ == "__main__":
    main()
