"""Run parts of a packed folder's script with numpy as the device, and JAX on the CPU as the rival.

Usage: gpu_script.py FOLDER right|wrong|times. The first two run the part `numbers`, on a device
that gives right numbers or one wrong row of them; the last one the part `time`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import standin
from emulate import emulate

sys.path.insert(0, sys.argv[1])

import check_gpu
from carried import Carried, read_variants
from references import right_rows

FOLDER = Path(sys.argv[1])


def device(variant: Carried, *, is_right: bool) -> Any:
    """Return what computes in place of a kernel."""

    def compute(*arrays: Any) -> list[Any]:
        inputs = dict(zip(variant.arrays(), arrays, strict=True))
        result = right_rows(variant, inputs, np.arange(arrays[0].shape[0]))
        if not is_right:
            result[-1] += 1
        return [result]

    return emulate(variant.opened(), compute)


def check_all(driver: standin.Standin) -> list[Any]:
    """Return what the part `numbers` finds."""
    found = []
    for variant in read_variants(FOLDER):
        driver.kernel("*")(device(variant, is_right=sys.argv[2] == "right"))
        arguments = ["--folder", str(FOLDER), "--part", "numbers", "-k", variant.id, "--rows", "8"]
        found += check_gpu.run_here(check_gpu.parse(arguments))
        driver.check()
    return found


def time_first(driver: standin.Standin) -> Any:
    """Return what the part `time` finds where JAX adds on the CPU what the kernel should add."""
    import jax
    import kernel_time

    variant = read_variants(FOLDER)[0]
    driver.kernel("*")(device(variant, is_right=True))
    kernel_time.why_not = lambda: None
    kernel_time.jitted = lambda _: jax.jit(lambda x, y: x + y)
    kernel_time._SHORTEST_US = 0
    return kernel_time.measure_kernels([variant], rounds=2, launches=2, say=lambda text: None)


def main() -> None:
    """Print what the script found."""
    driver = standin.load()
    driver.reset()
    print(json.dumps(time_first(driver) if sys.argv[2] == "times" else check_all(driver)))


main()
