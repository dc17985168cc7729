"""Compare the code of artifacts with that in JAX's own executable, as the GPU script does.

Usage: gpu_code.py SCRIPTS VARIANT… Prints a JSON object: variant -> whether both have the same
code, and how many kernels there are.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, sys.argv[1])

from executables import compile_variant
from jax_way import code, mosaic_cubins

from pallasc.compiler.toolchain.toolchain import find_toolchain
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml

LIBRARY = Path(__file__).parents[3] / "specs" / "library"


def main() -> None:
    """Compile each variant and compare."""
    ptxas, found = find_toolchain().ptxas, {}
    variants = [one for file in sorted(LIBRARY.glob("*.yaml")) for one in expand(load_yaml(file))]
    for name in sys.argv[2:]:
        (variant,) = (one for one in variants if one.id == name)
        record, blobs, executable = compile_variant(variant, ptxas)
        mosaic = {
            one["name"]: one["cubin"] for one in record["kernels"] if one["origin"] == "mosaic"
        }
        steps = [step for step in record["plan"]["steps"] if step.get("kernel") in mosaic]
        ours = [blobs[mosaic[step["kernel"]]] for step in steps]
        theirs = mosaic_cubins(executable)
        found[name] = [code(ours) == code(theirs) and bool(code(ours)[0]), len(theirs)]
    print(json.dumps(found))


main()
