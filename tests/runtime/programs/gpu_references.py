"""Compare the numpy references of the GPU script with those that JAX and the specs have.

Usage: gpu_references.py SCRIPTS. Prints one JSON object: kernel -> the largest difference, where 1
is allowed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.gpu import attention_mgpu

sys.path.insert(0, sys.argv[1])

from carried import Carried
from jax_way import jitted
from references import REFERENCES, make_inputs, right_rows, row_axis, sample_rows

from pallasc.compiler.entry import import_function
from pallasc.specs.matrix import expand
from pallasc.specs.wire import variant_to_json
from pallasc.specs.yaml_loader import load_yaml

LIBRARY = Path(__file__).parents[3] / "specs" / "library"
SMALL = {4096: 96, 16384: 64, 32768: 160, 8192: 128, 2048: 80, 1024: 48}


def small(text: str | None) -> str | None:
    """Return an array with the same dimensions, each much smaller."""
    for large in sorted(SMALL, reverse=True):
        text = text and text.replace(str(large), str(SMALL[large]))
    return text


def carried(variant: Any) -> Carried:
    """Return a variant as the script has it, with small arrays."""
    data = variant_to_json(variant)
    return Carried(
        id=variant.id,
        name=variant.name,
        params=dict(variant.params),
        args={name: small(text) for name, text in data["args"].items()},
        artifact="",
        folder=Path(),
        **{name: data[name] for name in ("entry", "static", "tolerance")},
    )


def right(variant: Any, one: Carried, inputs: dict[str, Any]) -> Any:
    """Return what JAX computes: the spec's reference, or JAX's own operation."""
    arrays = {name: jnp.asarray(array) for name, array in inputs.items()}
    if variant.reference:
        return import_function(variant.reference, "")(**arrays, **one.static)
    if "attention" in one.name:
        causal = bool(one.static["config"].get("causal"))
        return attention_mgpu.attention_reference(**arrays, causal=causal)
    arrays = {n: a if n == "group_sizes" else a.astype("float32") for n, a in arrays.items()}
    if "ragged" in one.name:
        import jax

        return jax.lax.ragged_dot(**arrays)
    return jnp.dot(arrays["a"], arrays["b"], precision="highest")


def main() -> None:
    """Compare the last variant of each kernel."""
    files = sorted(LIBRARY.glob("*.yaml"))
    variants = {one.name: one for file in files for one in expand(load_yaml(file))}
    assert set(variants) == set(REFERENCES)
    found = {}
    for name, variant in variants.items():
        one = carried(variant)
        assert callable(jitted(one))
        inputs = make_inputs(one)
        theirs = np.asarray(right(variant, one, inputs)).astype(np.float32)
        rows = sample_rows(one, theirs.shape, 8)
        ours = right_rows(one, inputs, rows)
        wanted = np.take(theirs, rows, axis=row_axis(one))
        # JAX's references round to the kernel's dtype, bf16 at the coarsest.
        allowed = np.abs(wanted) / 256 + 1e-3 * np.sqrt(np.mean(np.square(wanted)))
        found[name] = float(np.max(np.abs(ours - wanted) / allowed))
    print(json.dumps(found))


main()
