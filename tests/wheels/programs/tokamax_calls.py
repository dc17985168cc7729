"""Call Tokamax with prebuilt kernels installed, on a GPU that executes their PTX.

Usage: tokamax_calls.py PTX [few]. PTX is a JSON file with PTX by the digest of the cubin; `few`
leaves out calls that differ from what was compiled. JAX has two devices on the CPU.
Standard output gets a JSON object: what was done -> how many kernels were launched, the largest
error beside Tokamax's implementation for XLA, what was warned of.
"""

from __future__ import annotations

import functools
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import emulated
import jax
import jax.numpy as jnp
import numpy as np
import standin
import tokamax
import tokamax_prebuilt
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tokamax_prebuilt import ops

MESH = Mesh(jax.devices(), "x")
GPU = emulated.install(standin.load())
FOUND: dict[str, Any] = {}
RANDOM = np.random.default_rng(1)


def array(*shape: int) -> jax.Array:
    """Return random numbers."""
    return jnp.asarray(RANDOM.uniform(-1, 1, shape), jnp.bfloat16)


def error(found: Any, expected: Any) -> float:
    """Return the largest difference."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return max(float(jnp.abs(a.astype("f4") - b.astype("f4")).max()) for a, b in pairs)


def compare(what: str, operation: Callable[..., Any], *arrays: Any) -> None:
    """Call an operation with prebuilt kernels where they fit, and with XLA alone; note both."""
    functions = [jax.jit(functools.partial(operation, i)) for i in (("prebuilt", "xla"), "xla")]
    expected = functions[1](*arrays)
    before = GPU.launched
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", tokamax_prebuilt.PrebuiltWarning)
        found = jax.block_until_ready(functions[0](*arrays))
        GPU.driver.check()
    told = [str(w.message) for w in caught if w.category is tokamax_prebuilt.PrebuiltWarning]
    off = error(found, expected)
    FOUND[what] = {"launches": GPU.launched - before, "error": off, "warnings": told}


def attention(implementation: Any, *arrays: Any, **changes: Any) -> Any:
    options = {"is_causal": True, "implementation": implementation, **changes}
    return tokamax.dot_product_attention(*arrays, **options)


def gradient(implementation: Any, *arrays: Any, **changes: Any) -> Any:
    def loss(*own: Any) -> Any:
        found = attention(implementation, *own, **changes)
        return (found.astype(jnp.float32) ** 2).sum()

    return jax.grad(loss, argnums=tuple(range(len(arrays))))(*arrays)


def in_parts(implementation: Any, *arrays: Any) -> Any:
    """Call attention on two devices, each with a part of the batch."""
    parts = PartitionSpec("x")
    own = functools.partial(attention, implementation)
    return jax.shard_map(own, mesh=MESH, in_specs=parts, out_specs=parts)(*arrays)


def sharded(implementation: Any, *arrays: Any) -> Any:
    """Call attention so that Tokamax divides it."""
    sharding = NamedSharding(MESH, PartitionSpec("x"))
    return attention(implementation, *arrays, q_sharding=sharding)


def gated(implementation: Any, *arrays: Any, activation: Any = jax.nn.swish, **changes: Any) -> Any:
    options = {"activation": activation, "implementation": implementation, **changes}
    return tokamax.gated_linear_unit(*arrays, **options)


def ragged(implementation: Any, *arrays: Any, **changes: Any) -> Any:
    return tokamax.ragged_dot(*arrays, implementation=implementation, **changes)


def calls_that_fit(qkv: list[Any], gated_arrays: list[Any], ragged_arrays: list[Any]) -> None:
    """Call each op as it was compiled."""
    compare("attention", attention, *qkv)
    compare("gradient", gradient, *qkv)
    masked = {"is_causal": False, "mask": jnp.arange(128).reshape(1, 1, 1, 128) < 100}
    biased = functools.partial(gradient, **masked)
    compare("masked gradient", biased, *qkv, array(1, 2, 128, 128))
    compare("gated", gated, *gated_arrays)
    compare("ragged", ragged, *ragged_arrays)


def calls_of_attention(q: Any, k: Any, v: Any) -> None:
    """Call attention with each thing changed, or said in other words."""
    for what, changes in {
        "same: scale": {"scale": 0.125},
        "same: precision": {"precision": jax.lax.Precision.HIGHEST},
        "same: algorithm": {"precision": "BF16_BF16_F32"},
        "other: scale": {"scale": 0.25},
        "other: scale, again": {"scale": 0.25},
        "other: mask": {"is_causal": False},
        "other: window": {"local_window_size": 16},
        "other: lengths": {"key_value_seq_lengths": jnp.array([100])},
        "other: soft cap": {"logits_soft_cap": 30.0},
        "other: precision": {"precision": "F32_F32_F32"},
        "other: bias": {"bias": jnp.ones((1, 1, 128, 128), jnp.bfloat16)},
        "other: array mask": {"is_causal": False, "mask": jnp.ones((1, 1, 128, 128), bool)},
        "other: both masks": {"mask": jnp.ones((1, 1, 1, 128), bool)},
    }.items():
        compare(what, functools.partial(attention, **changes), q, k, v)
    compare("other: shape", attention, q[:, :64], k, v)
    compare("other: dtype", attention, *(own.astype(jnp.float32) for own in (q, k, v)))
    batch = [jnp.stack([own, own]) for own in (q, k, v)]
    compare("other: vmap", lambda i, *own: jax.vmap(functools.partial(attention, i))(*own), *batch)
    batch = [jnp.concatenate([own, own]) for own in (q, k, v)]
    compare("in parts", in_parts, *batch)
    compare("sharded", sharded, *batch)
    with mock.patch.object(ops, "TOKAMAX", "0.0.1"):
        compare("other: version", attention, q, k, v)


def calls_of_others(gated_arrays: list[Any], ragged_arrays: list[Any]) -> None:
    """Call the gated linear unit and ragged dot with other functions and dtypes."""
    wrapper = functools.wraps(jax.nn.silu)(lambda x: 2 * x)
    activations = {"none": None, "other": jax.nn.gelu, "lambda": lambda x: 2 * x, "named": wrapper}
    for what, own in activations.items():
        operation = functools.partial(gated, activation=own)
        compare(f"other: activation, {what}", operation, *gated_arrays)
    for what, changes in {
        "result": {"preferred_element_type": jnp.float32},
        "activation of products": {"activation": jax.nn.relu},
    }.items():
        compare(f"other: {what}", functools.partial(ragged, **changes), *ragged_arrays)


def main(texts: Path, *, takes_few: bool) -> None:
    for kernel in tokamax_prebuilt.kernels().values():
        for variant in kernel.variants:
            GPU.know(variant.artifact, json.loads(texts.read_text()))
    tokamax_prebuilt.register()
    qkv = [array(1, 128, heads, 64) for heads in (2, 1, 1)]
    gated_arrays = [array(128, 128), array(128, 2, 128)]
    ragged_arrays = [array(256, 128), array(2, 128, 128), jnp.array([96, 160], jnp.int32)]
    calls_that_fit(qkv, gated_arrays, ragged_arrays)
    if not takes_few:
        calls_of_attention(*qkv)
        calls_of_others(gated_arrays, ragged_arrays)
    print(json.dumps(FOUND))


main(Path(sys.argv[1]), takes_few="few" in sys.argv)
