"""Correct results of the library's kernels, computed by numpy in float32 or wider.

The functions take arrays of numpy or JAX: they are references of specs, too.
"""

from typing import Any

import numpy as np

Array = Any


def _wide(x: Array) -> np.ndarray:
    return np.asarray(x).astype(np.float32)


def matmul(a: Array, b: Array, c: None = None) -> np.ndarray:
    """`a @ b`, rounded to the type of `a`; nothing is added."""
    del c
    return (_wide(a) @ _wide(b)).astype(np.asarray(a).dtype)


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
    logits = np.einsum("bqhd,bkhd->bhqk", _wide(q), _wide(k))
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    return np.einsum("bhqk,bkhd->bqhd", weights, _wide(v)).astype(np.asarray(q).dtype)
