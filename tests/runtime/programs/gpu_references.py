"""Compare the numpy references of the GPU script with those of JAX, for JAX's own kernels.

Usage: gpu_references.py SCRIPTS. Prints one JSON object: kernel -> the largest difference, where 1
is allowed. Those that run on several GPUs have none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.gpu import attention_mgpu

sys.path.insert(0, sys.argv[1])

from carried import Carried
from part_times import jitted
from references import REFERENCES, make_inputs, row_axis, sample_rows

from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml
from pallasc.specs.spec import variant_to_json

TUNINGS = Path(__file__).parents[3] / "examples" / "jax_tuning.yaml"
SMALL = {4096: 96, 16384: 64, 32768: 160, 8192: 128, 2048: 80, 1024: 48}


def small(text: Any) -> Any:
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
        arch=variant.target.arch,
        bundle="",
        is_tuning=True,
        folder=Path(),
        **{name: data[name] for name in ("entry", "static", "tolerance")},
    )


def right(one: Carried, inputs: dict[str, Any]) -> Any:
    """Return what JAX computes."""
    arrays = {name: jnp.asarray(array) for name, array in inputs.items()}
    if "attention" in one.name:
        causal = bool(one.static["config"].get("causal"))
        return attention_mgpu.attention_reference(**arrays, causal=causal)
    a, b, *rest = (x.astype("float32") if x.dtype != "int32" else x for x in arrays.values())
    if "ragged" in one.name:
        flip = one.static.get("transpose_rhs")
        return jax.lax.ragged_dot(a, b.transpose(0, 2, 1) if flip else b, rest[0])
    return jnp.dot(a, b, precision="highest") + (rest[0] if rest else 0)


def main() -> None:
    """Compare the last variant of each kernel."""
    variants = {one.name: one for one in expand(load_yaml(TUNINGS)) if not one.mesh}
    found = {}
    for name in sorted(set(variants) & set(REFERENCES)):
        variant = variants[name]
        one = carried(variant)
        assert callable(jitted(one))
        inputs = make_inputs(one)
        theirs = np.asarray(right(one, inputs)).astype(np.float32)
        rows = sample_rows(one, theirs.shape, 8)
        wanted = np.take(theirs, rows, axis=row_axis(one))
        ours = REFERENCES[name](inputs, one.static, rows)
        # JAX's references round to the kernel's dtype, bf16 at the coarsest.
        allowed = np.abs(wanted) / 256 + 1e-3 * np.sqrt(np.mean(np.square(wanted)))
        found[name] = float(np.max(np.abs(ours - wanted) / allowed))
    print(json.dumps(found))


main()
