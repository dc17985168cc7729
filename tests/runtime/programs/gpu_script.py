"""Run the part `numbers` of a packed folder's script, with numpy as the device.

Usage: gpu_script.py FOLDER right|wrong. The device gives right numbers, or one wrong row of them.
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


def main() -> None:
    """Check each variant with its device; print what the script found."""
    driver = standin.load()
    driver.reset()
    found = []
    for variant in read_variants(FOLDER):
        driver.kernel("*")(device(variant, is_right=sys.argv[2] == "right"))
        arguments = ["--folder", str(FOLDER), "--part", "numbers", "-k", variant.id, "--rows", "8"]
        found += check_gpu.run_here(check_gpu.parse(arguments))
        driver.check()
    print(json.dumps(found))


main()
