"""What the kernels under mutation must give, computed by numpy in float32 or wider.

The functions take arrays of numpy or JAX: they are references of specs, too.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = Any


def _wide(x: Array) -> np.ndarray:
    return np.asarray(x).astype(np.float32)


def matmul(a: Array, b: Array, c: None = None) -> np.ndarray:
    """`a @ b`, rounded to the type of `a`; nothing is added."""
    del c
    return (_wide(a) @ _wide(b)).astype(np.asarray(a).dtype)


def matmul_added(a: Array, b: Array, c: Array) -> np.ndarray:
    """`a @ b + c`, the product rounded before the sum, as the kernel does."""
    return matmul(a, b) + np.asarray(c)


def dequant_matmul(x: Array, weights: Array, scales: Array) -> np.ndarray:
    """`x @ (weights * scales)`."""
    return (_wide(x) @ _wide(weights) * np.asarray(scales)).astype(np.asarray(x).dtype)


def matmul_bias_relu(a: Array, b: Array, bias: Array) -> np.ndarray:
    """`max(a @ b + bias, 0)`."""
    return np.maximum(_wide(a) @ _wide(b) + np.asarray(bias), 0).astype(np.asarray(a).dtype)


def softmax(x: Array) -> np.ndarray:
    """Softmax of rows."""
    powers = np.exp(_wide(x) - _wide(x).max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def rms_norm(x: Array, weight: Array) -> np.ndarray:
    """Rows over their root mean square, times a weight."""
    wide = _wide(x)
    return wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-6) * _wide(weight)


def row_sum(x: Array) -> np.ndarray:
    """Sums of rows."""
    return _wide(x).sum(-1)


def add(x: Array, y: Array) -> np.ndarray:
    """The sum."""
    return np.asarray(x) + np.asarray(y)


def attention(q: Array, k: Array, v: Array) -> np.ndarray:
    """Attention of `[batch, sequence, heads, size]`; the weights are rounded before the product."""
    return _attention(q, k, v, is_causal=False)


def causal_attention(q: Array, k: Array, v: Array) -> np.ndarray:
    """Attention to what is not later."""
    return _attention(q, k, v, is_causal=True)


def _attention(q: Array, k: Array, v: Array, *, is_causal: bool) -> np.ndarray:
    logits = np.einsum("bqhd,bkhd->bhqk", _wide(q), _wide(k))
    if is_causal:
        rows, columns = np.indices(logits.shape[-2:])
        logits = np.where(rows >= columns, logits, -np.inf)
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    return np.einsum("bhqk,bkhd->bqhd", weights, _wide(v)).astype(np.asarray(q).dtype)


def attention_gradients(
    q: Array, k: Array, v: Array, lse: Array, delta: Array, do: Array
) -> tuple[np.ndarray, ...]:
    """Gradients of attention, from its logarithms of sums (of base 2) and `delta`."""
    dtype = np.asarray(q).dtype
    logits = np.einsum("bqhd,bkhd->bhqk", _wide(q), _wide(k)) * math.log2(math.e)
    p = np.exp2(logits - _wide(lse)[..., None])
    dp = np.einsum("bqhd,bkhd->bhqk", _wide(do), _wide(v))
    ds = p * (dp - _wide(delta)[..., None])
    return (
        np.einsum("bhqk,bkhd->bqhd", ds, _wide(k)).astype(dtype),
        np.einsum("bhqk,bqhd->bkhd", ds, _wide(q)).astype(dtype),
        np.einsum("bhqk,bqhd->bkhd", p, _wide(do)).astype(dtype),
    )


GROUPS = (40, 88)
"""Rows of each group of the ragged product."""


def ragged_dot(lhs: Array, rhs: Array) -> np.ndarray:
    """Each group of rows with a matrix of its own."""
    ends = np.cumsum(GROUPS)
    parts = [
        _wide(lhs)[end - size : end] @ _wide(rhs)[number]
        for number, (size, end) in enumerate(zip(GROUPS, ends, strict=True))
    ]
    return np.concatenate(parts).astype(np.asarray(lhs).dtype)
