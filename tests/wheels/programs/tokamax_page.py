"""Run the Python blocks of a page where the wheel is installed, in order and in one namespace.

Usage: tokamax_page.py PAGE. The GPU takes launches and executes none, and is the one that Tokamax
chooses its kernels for. Standard output gets a JSON object: of each block how many kernels were
launched, and what was warned of; shapes of the results.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import standin
import tokamax_prebuilt
from jax.extend import backend

RESULTS = ("value", "gradients", "y")
"""Names that the blocks give their results."""


class Device:
    """What JAX gives for the GPU, as far as Tokamax and pallasc ask."""

    platform, device_kind, compute_capability = "gpu", "NVIDIA H100 80GB HBM3", "9.0"
    local_hardware_id = 0


def main(page: Path) -> None:
    launched: list[Any] = []
    standin.load().kernel("*")(launched.append)
    found: dict[str, Any] = {"blocks": []}
    own: dict[str, Any] = {}
    fake = mock.patch.object(backend, "get_default_device", return_value=Device())
    for text in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        before = len(launched)
        with fake, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", tokamax_prebuilt.PrebuiltWarning)
            exec(compile(text, str(page), "exec"), own)
            jax.block_until_ready([own.get(name) for name in RESULTS])
        told = [str(w.message) for w in caught if w.category is tokamax_prebuilt.PrebuiltWarning]
        found["blocks"].append({"launches": len(launched) - before, "warnings": told})
    for name in RESULTS:
        found[name] = [list(leaf.shape) for leaf in jax.tree.leaves(own[name])]
    print(json.dumps(found))


main(Path(sys.argv[1]))
