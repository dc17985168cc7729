"""Inputs of kernels, the correct results, computed by numpy alone, and the comparison.

Correct results are computed only for some rows of the output: the first, the last, and one in each
of several equal strips, so that elements of every tile of a kernel are compared.
"""

import math
import zlib
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from carried import Carried

Arrays = Mapping[str, Any]
Reference = Callable[[Arrays, Mapping[str, Any], Any], Any]
"""(inputs, static arguments, rows) -> the correct result of these rows, in float32."""


class Judge:
    """Compares results of one variant for the same inputs.

    Args:
        variant: the variant.
        inputs: its inputs, numpy arrays.
        count: number of rows to compare.
    """

    def __init__(self, variant: Carried, inputs: Arrays, count: int) -> None:
        self._variant, self._inputs, self._count = variant, inputs, count
        self._wanted: Any = None
        self._rows: Any = None
        self._first: bytes | None = None

    def compare(self, got: Any) -> dict[str, Any]:
        """Compare a result; `same_bytes` is True if it equals the first compared result."""
        variant = self._variant
        if self._wanted is None:
            self._rows = sample_rows(variant, got.shape, self._count)
            reference = REFERENCES[variant.name](self._inputs, variant.static, self._rows)
            self._wanted = reference.astype(got.dtype).astype(np.float32)
            self._first = got.tobytes()
        rtol, atol = tolerances(variant, self._wanted)
        rows = np.take(got, self._rows, axis=row_axis(variant)).astype(np.float32)
        off = np.abs(rows - self._wanted) / (atol + rtol * np.abs(self._wanted))
        wrong, worst = int(np.sum(~(off <= 1))), float(off.max())  # NaN is wrong
        return {
            "right": not wrong,
            "wrong": wrong,
            "compared": int(rows.size),
            "worst": worst if math.isfinite(worst) else None,
            "same_bytes": got.tobytes() == self._first,
        }


def make_inputs(variant: Carried) -> dict[str, Any]:
    """Return an array for each input, with the same numbers each time."""
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
    return made


def _group_sizes(generator: Any, groups: int, rows: int) -> Any:
    """Return irregular sizes that add up to `rows`, one of them zero."""
    ends = np.sort(generator.integers(0, rows + 1, groups - 2))
    bounds = np.concatenate([[0, 0], ends, [rows]])
    return np.diff(bounds).astype(np.int32)


def sample_rows(variant: Carried, shape: tuple[int, ...], count: int) -> Any:
    """Return the sorted rows to compare: the first, the last, and one in each of `count` strips."""
    rows = shape[row_axis(variant)]
    generator = np.random.default_rng(zlib.crc32(variant.id.encode()))
    strips = np.linspace(0, rows, min(count, rows) + 1, dtype=np.int64)
    inner = [generator.integers(a, b) for a, b in pairwise(strips)]
    return np.unique([0, *inner, rows - 1])


def row_axis(variant: Carried) -> int:
    """Return the axis of the output along which rows are chosen."""
    return 1 if "attention" in variant.name else 0


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


def _attention(arrays: Arrays, static: Mapping[str, Any], rows: Any) -> Any:
    """Return attention without a scale, as in JAX's kernels; q's heads share heads of k and v."""
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


_MATMULS = ("hopper_matmul", "blackwell_matmul", "hopper_mixed_type_matmul")
_ATTENTIONS = ("attention", "attention_forward", "attention_with_pipeline_emitter")
_RAGGED = ("ragged_dot", "ragged_dot_backward_lhs", "blackwell_ragged_dot")

REFERENCES: Mapping[str, Reference] = {
    "add": _add,
    "row_sum": _row_sum,
    "rms_norm": _rms_norm,
    "softmax": _softmax,
    "fused_matmul": _fused_matmul,
    "dequant_matmul": _dequant_matmul,
    "hopper_matmul_in_clusters": _added_matmul,
    **{f"{jax}{name}": _matmul for name in _MATMULS for jax in ("", "jax_")},
    **{f"{jax}{name}": _attention for name in _ATTENTIONS for jax in ("", "jax_")},
    **{f"{jax}{name}": _ragged_dot for name in _RAGGED for jax in ("", "jax_")},
}
"""JAX's kernels are named `jax_*` in the library; their tunings have no prefix."""
