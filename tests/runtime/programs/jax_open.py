"""Open exported functions, run them: jax_open.py BUNDLE DEVICES, then NAME=FILE, one by one.

The kernel is executed by the emulator, which gets its PTX from the bundle. The first file is called
without handlers, `opened` after the bundle was opened as a user does, `flipped` with a byte of the
cubin changed. Prints one JSON object: the largest error, or what was raised; how many kernels ran;
and modules of the compiler that were loaded.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import emulated
import jax
import numpy as np
import standin
from jax import export

import pallasc
from pallasc.specs.bundle.bundle import open_bundle

SHAPE = (16, 512)


def run(data: bytes) -> float | str:
    """Return how far the function is from what it computes; or an error's words."""
    source = np.random.default_rng(7)
    x, y = (source.uniform(-1, 1, SHAPE).astype(np.float32) for _ in range(2))
    try:
        result = export.deserialize(bytearray(data)).call(x, y)
        return float(np.abs(np.asarray(result) - 2 * (x + y)).max())
    except jax.errors.JaxRuntimeError as error:
        return str(error)


def main() -> None:
    """Run every file."""
    driver = standin.load()
    driver.reset()
    driver.devices(sys.argv[2])
    gpu = emulated.install(driver)
    with open_bundle(Path(sys.argv[1])) as bundle:
        for entry in bundle.entries():
            gpu.know(bundle.artifact(entry))
    report: dict[str, Any] = {}
    kernels = None
    for argument in sys.argv[3:]:
        name, _, file = argument.partition("=")
        data = bytearray(Path(file).read_bytes())
        if name == "opened":
            kernels = pallasc.open_bundle(sys.argv[1])
        if name == "flipped":
            data[data.index(b"\x7fELF") + 900] ^= 1
        report[name] = run(bytes(data))
        pallasc.register_jax_handlers()
    driver.check()
    report["launched"] = gpu.launched
    report["compiler"] = [name for name in sys.modules if name.startswith("pallasc.compiler")]
    del kernels
    print(json.dumps(report))


if __name__ == "__main__":
    main()
