"""Export functions with a bundle's kernel: jax_export.py BUNDLE FOLDER.

Writes `bytes` and `digest` for JAX on the CPU, `cuda` for GPUs; prints what was refused.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import export

import pallasc

SHAPE = (16, 512)


def main() -> None:
    """Write the files."""
    folder = Path(sys.argv[2])
    add = pallasc.open_bundle(sys.argv[1])["add"]
    array = jax.ShapeDtypeStruct(SHAPE, jnp.float32)
    checks = pallasc.jax_export_checks()
    for name, kernel, platform in (
        ("bytes", add, "cpu"),
        ("digest", add.by_digest, "cpu"),
        ("cuda", add, "cuda"),
    ):
        function = jax.jit(lambda x, y, kernel=kernel: 2 * kernel(x, y))
        exported = export.export(function, platforms=[platform], disabled_checks=checks)
        (folder / name).write_bytes(exported(array, array).serialize())
    try:
        export.export(jax.jit(add), platforms=["cpu"])(array, array)
        refused = ""
    except ValueError as error:
        refused = str(error)
    print(json.dumps({"without checks": refused}))


if __name__ == "__main__":
    main()
