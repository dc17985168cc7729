"""Inputs and right results of the library kernels and of JAX's own, with numpy alone.

Results are computed for some rows of the output only: one of each strip, with the first and the
last, so that every tile of a kernel has elements that are compared. What a kernel keeps for its
backward pass is an input of that, and not compared itself.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from carried import Carried

Arrays = Mapping[str, Any]
Reference = Callable[[Arrays, Mapping[str, Any], Any], Any]
"""(inputs, static arguments, rows) -> the right results of these rows, in float32: an array, or a
list of them, for the first results of the kernel."""


def make_inputs(variant: Carried) -> dict[str, Any]:
    """Return an array for each input: the same numbers each time."""
    from pallasc.runtime.adapters.numpy_arrays import numpy_dtype

    made: dict[str, Any] = {}
    for name, (dtype, shape) in variant.arrays().items():
        generator = np.random.default_rng(zlib.crc32(f"{variant.id} {name}".encode()))
        if name == "group_sizes":
            made[name] = _group_sizes(generator, shape[0], next(iter(made.values())).shape[0])
        elif dtype.startswith("i"):
            made[name] = generator.integers(-8, 9, shape).astype(numpy_dtype(dtype))
        else:
            values = generator.standard_normal(shape, dtype=np.float32)
            made[name] = values.astype(numpy_dtype(dtype))
    if variant.name == "attention_backward":
        _keep_residuals(made)
    return made


def _group_sizes(generator: Any, groups: int, rows: int) -> Any:
    """Return sizes that add up to `rows`, no multiples of anything, one of them zero."""
    ends = np.sort(generator.integers(0, rows + 1, groups - 2))
    bounds = np.concatenate([[0, 0], ends, [rows]])
    return np.diff(bounds).astype(np.int32)


def sample_rows(variant: Carried, shape: tuple[int, ...], count: int) -> Any:
    """Return the rows to compare, in order: one of each of `count` strips, the first, the last."""
    rows = shape[row_axis(variant)]
    generator = np.random.default_rng(zlib.crc32(variant.id.encode()))
    strips = np.linspace(0, rows, min(count, rows) + 1, dtype=np.int64)
    inner = [generator.integers(a, b) for a, b in pairwise(strips)]
    return np.unique([0, *inner, rows - 1])


def row_axis(variant: Carried) -> int:
    """Return the axis of the output that rows are taken of."""
    return 1 if "attention" in variant.name or variant.name == "ragged_dot_backward_rhs" else 0


def right_rows(variant: Carried, inputs: Arrays, rows: Any) -> list[Any]:
    """Return the right results of these rows, in float32, for the kernel's first results."""
    found = REFERENCES[variant.name](inputs, variant.static, rows)
    return found if isinstance(found, list) else [found]


def tolerances(variant: Carried, wanted: Any) -> tuple[float, float]:
    """Return the relative and the absolute error that a result may have."""
    if variant.tolerance is not None:
        return variant.tolerance["rtol"], variant.tolerance["atol"]
    return 1e-2, 1e-2 * float(np.sqrt(np.mean(np.square(wanted))))


def _f32(array: Any) -> Any:
    return array.astype(np.float32)


def _add(arrays: Arrays, _: Mapping[str, Any], rows: Any) -> Any:
    return _f32(arrays["x"][rows]) + _f32(arrays["y"][rows])


def _row_sum(arrays: Arrays, _: Mapping[str, Any], rows: Any) -> Any:
    return arrays["x"][rows].astype(np.float64).sum(-1).astype(np.float32)


def _rms_norm(arrays: Arrays, static: Mapping[str, Any], rows: Any) -> Any:
    x = _f32(arrays["x"][rows])
    scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + static["epsilon"])
    return x * scale * _f32(arrays["weight"])


def _softmax(arrays: Arrays, _: Mapping[str, Any], rows: Any) -> Any:
    return _soft(_f32(arrays["x"][rows]))


def _soft(x: Any) -> Any:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _matmul(arrays: Arrays, _: Mapping[str, Any], rows: Any) -> Any:
    return _f32(arrays["a"][rows]) @ _f32(arrays["b"])


def _fused_matmul(arrays: Arrays, static: Mapping[str, Any], rows: Any) -> Any:
    x = _f32(arrays["a"][rows]) @ _f32(arrays["b"]) + arrays["bias"]
    if static["activation"] == "relu":
        return np.maximum(x, 0)
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _dequant_matmul(arrays: Arrays, _: Mapping[str, Any], rows: Any) -> Any:
    return _f32(arrays["x"][rows]) @ (_f32(arrays["weights"]) * arrays["scales"])


def _added_matmul(arrays: Arrays, static: Mapping[str, Any], rows: Any) -> Any:
    return _matmul(arrays, static, rows) + _f32(arrays["c"][rows])


def _ragged_dot(arrays: Arrays, static: Mapping[str, Any], rows: Any) -> Any:
    lhs, rhs, sizes = arrays.values()
    if static.get("transpose_rhs"):
        rhs = rhs.transpose(0, 2, 1)
    group_of = np.searchsorted(np.cumsum(sizes), rows, side="right")
    result = np.empty((len(rows), rhs.shape[2]), np.float32)
    for group in np.unique(group_of):
        own = group_of == group
        result[own] = _f32(lhs[rows[own]]) @ _f32(rhs[group])
    return result


def _ragged_dot_backward_rhs(arrays: Arrays, _: Mapping[str, Any], rows: Any) -> Any:
    """Return columns of lhs times rhs, group by group: `[groups, columns, n]`."""
    lhs, rhs, sizes = arrays.values()
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    pairs = [slice(*pair) for pair in pairwise(bounds)]
    return np.stack([_f32(lhs[own][:, rows]).T @ _f32(rhs[own]) for own in pairs])


def _attention(arrays: Arrays, static: Mapping[str, Any], rows: Any) -> Any:
    """Attention without a scale, as JAX's kernels have it; fewer heads of k and v are shared."""
    q, k, v = (_f32(arrays[name]) for name in "qkv")
    shared = q.shape[2] // k.shape[2]
    hidden = np.arange(k.shape[1]) > np.asarray(rows)[:, None]
    result = np.empty((q.shape[0], len(rows), *q.shape[2:]), np.float32)
    for batch in range(q.shape[0]):
        for head in range(q.shape[2]):
            own = head // shared
            logits = q[batch, rows, head] @ k[batch, :, own].T
            if static["config"].get("causal"):
                logits = np.where(hidden, -np.inf, logits)
            result[batch, :, head] = _soft(logits) @ v[batch, :, own]
    return result


def _keep_residuals(made: dict[str, Any]) -> None:
    """Put what attention's forward pass keeps into the inputs of its backward pass."""
    q, k, v = (made[f"res[{n}]"] for n in range(3))
    q *= np.float16(0.125)  # as attention with a scale has it: else almost every gradient is 0
    out, logs = made["res[3]"], made["res[4]"]
    shared = q.shape[2] // k.shape[2]
    for batch, head in np.ndindex(q.shape[0], q.shape[2]):
        own = head // shared
        logits = _f32(q[batch, :, head]) @ _f32(k[batch, :, own]).T
        top = logits.max(-1, keepdims=True)
        powers = np.exp(logits - top)
        total = powers.sum(-1, keepdims=True)
        out[batch, :, head] = (powers / total) @ _f32(v[batch, :, own])
        logs[batch, head] = ((top + np.log(total)) / math.log(2))[:, 0]


def _attention_backward(arrays: Arrays, _: Mapping[str, Any], rows: Any) -> list[Any]:
    """Return rows of the gradients of q, k and v."""
    q, k, v, out, logs = (_f32(arrays[f"res[{n}]"]) for n in range(5))
    gradient = _f32(arrays["do"])
    shared = q.shape[2] // k.shape[2]
    delta = np.sum(out * gradient, axis=-1)
    dq, dk, dv = (np.zeros((q.shape[0], len(rows), *a.shape[2:]), np.float32) for a in (q, k, v))

    def half(batch: int, head: int, queries: Any, keys: Any) -> tuple[Any, Any]:
        """Return probabilities, and gradients of the logits, of some queries and keys."""
        own = head // shared
        logits = q[batch, queries, head] @ k[batch, keys, own].T
        powers = np.exp2(logits / math.log(2) - logs[batch, head, queries][:, None])
        inner = gradient[batch, queries, head] @ v[batch, keys, own].T
        return powers, powers * (inner - delta[batch, queries, head][:, None])

    every = slice(None)
    for batch, head in np.ndindex(q.shape[0], q.shape[2]):
        own = head // shared
        dq[batch, :, head] = half(batch, head, rows, every)[1] @ k[batch, :, own]
        powers, logits = half(batch, head, every, rows)
        dk[batch, :, own] += logits.T @ q[batch, :, head]
        dv[batch, :, own] += powers.T @ gradient[batch, :, head]
    return [dq, dk, dv]


REFERENCES: Mapping[str, Reference] = {
    "add": _add,
    "row_sum": _row_sum,
    "rms_norm": _rms_norm,
    "softmax": _softmax,
    "hopper_matmul": _matmul,
    "blackwell_matmul": _matmul,
    "fused_matmul": _fused_matmul,
    "dequant_matmul": _dequant_matmul,
    "jax_hopper_matmul": _matmul,
    "jax_blackwell_matmul": _matmul,
    "jax_hopper_mixed_type_matmul": _matmul,
    "jax_ragged_dot": _ragged_dot,
    "jax_attention": _attention,
    "jax_attention_with_pipeline_emitter": _attention,
    # The tunings of JAX's kernels.
    "hopper_matmul_in_clusters": _added_matmul,
    "hopper_mixed_type_matmul": _matmul,
    "attention": _attention,
    "attention_forward": _attention,
    "attention_backward": _attention_backward,
    "attention_with_pipeline_emitter": _attention,
    "ragged_dot": _ragged_dot,
    "ragged_dot_backward_lhs": _ragged_dot,
    "ragged_dot_backward_rhs": _ragged_dot_backward_rhs,
    "blackwell_ragged_dot": _ragged_dot,
}
