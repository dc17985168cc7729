"""References of JAX's kernels in `jax_kernels.yaml`, computed in float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def matmul(a: jax.Array, b: jax.Array, c: jax.Array | None = None) -> jax.Array:
    """Return `a @ b`, plus `c` if it is given, in the dtype of `b`."""
    product = jnp.dot(a.astype(jnp.float32), b.astype(jnp.float32), precision="highest")
    return (product if c is None else product + c.astype(jnp.float32)).astype(b.dtype)


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Return attention in which every query sees every key.

    Args:
        q: `[batch, sequence, heads, size]`.
        k: `[batch, sequence, key heads, size]`; groups of heads of `q` share a head of `k`.
        v: like `k`.
    """
    return _attention(q, k, v, causal=False)


def causal_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Return attention in which a query sees the keys up to its own position."""
    return _attention(q, k, v, causal=True)


def _attention(q: jax.Array, k: jax.Array, v: jax.Array, *, causal: bool) -> jax.Array:
    heads = q.shape[2] // k.shape[2]
    keys, values = (jnp.repeat(x.astype(jnp.float32), heads, axis=2) for x in (k, v))
    queries = q.astype(jnp.float32)
    logits = jnp.einsum("bqhd,bkhd->bhqk", queries, keys, precision="highest")
    if causal:
        seen = jnp.arange(q.shape[1])[:, None] >= jnp.arange(k.shape[1])[None, :]
        logits = jnp.where(seen, logits, -jnp.inf)
    weights = jax.nn.softmax(logits, axis=-1)
    result = jnp.einsum("bhqk,bkhd->bqhd", weights, values, precision="highest")
    return result.astype(q.dtype)


def ragged_dot(lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array) -> jax.Array:
    """Return the product of each group of rows with the matrix of the group."""
    ends = jnp.cumsum(group_sizes)
    group = jnp.searchsorted(ends, jnp.arange(lhs.shape[0]), side="right")
    wide = (x.astype(jnp.float32) for x in (lhs, rhs[group]))
    return jnp.einsum("mk,mkn->mn", *wide, precision="highest").astype(lhs.dtype)
