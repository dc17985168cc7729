"""Compile functions of pytrees with `pallasc.compile`; print what came of each call as JSON.

pytrees.py STORE
"""

import dataclasses
import functools
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import pallasc
from pallasc.cache.store import Store

X = "f32[128, 128]"


class _Shaped:
    """Looks like an array: with the shape and the dtype of what it stands for."""

    qvalue: Any
    scale: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return self.qvalue.shape

    @property
    def dtype(self) -> Any:
        return jnp.bfloat16


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["qvalue", "scale"], meta_fields=["axis"]
)
@dataclasses.dataclass(frozen=True)
class QArray(_Shaped):
    qvalue: Any
    scale: Any
    axis: int = 0

    def __post_init__(self) -> None:
        # Types check what they are given, which JAX calls with tracers.
        if hasattr(self.qvalue, "ndim") and self.qvalue.ndim != 2:
            raise ValueError(f"qvalue has {self.qvalue.ndim} dimensions")


@jax.tree_util.register_pytree_node_class
class Pair:
    """Keeps its second part as static data, under a key."""

    def __init__(self, array: Any, by: Any) -> None:
        self.array, self.by = array, by

    def tree_flatten(self) -> Any:
        return (self.array, None), {"by": self.by}

    @classmethod
    def tree_unflatten(cls, data: Any, children: Any) -> "Pair":
        return cls(children[0], data["by"])


@dataclasses.dataclass
class Unknown(_Shaped):
    qvalue: Any
    scale: Any


class Cache(NamedTuple):
    values: Any
    mask: Any
    keys: Any


def dequantised(x: Any, w: Any) -> Any:
    if not isinstance(w, QArray):
        return x + w
    return x + w.qvalue.astype(jnp.float32) * w.scale + w.axis


def paired(x: Any, pair: Any) -> Any:
    return x * pair.by + pair.array


def cached(cache: Any) -> Any:
    assert isinstance(cache, Cache)
    assert cache.mask is None
    return cache.keys * 2 + cache.values


def typed(tree: Any) -> Any:
    """Give something else for each type."""
    return tree[0] * {list: 2.0, tuple: 3.0}[type(tree)]


def struct(text: str) -> Any:
    array = text.partition("[")
    shape = tuple(int(size) for size in array[2].rstrip("]").split(","))
    return jax.ShapeDtypeStruct(shape, array[0])


Q = QArray(struct("int4[128,128]"), struct("float32[1,128]"))
HERE = pallasc.Call(QArray, qvalue="i4[128, 128]", scale="f32[1, 128]", axis=0)

CALLS: dict[str, Any] = {
    "dense": lambda s: pallasc.compile(dequantised, X, "bf16[128, 128]"),
    "node": lambda s: pallasc.compile(dequantised, X, Q),
    "call": lambda s: pallasc.compile(dequantised, X, HERE),
    "call isolated": lambda s: pallasc.compile(dequantised, X, HERE, isolated=True, store=s),
    "other static data": lambda s: pallasc.compile(dequantised, X, dataclasses.replace(Q, axis=1)),
    "pair of a number": lambda s: pallasc.compile(paired, X, Pair(X, 3)),
    "named tuple": lambda s: pallasc.compile(cached, Cache(X, None, "f32[128]")),
    "list": lambda s: pallasc.compile(typed, [X]),
    "tuple": lambda s: pallasc.compile(typed, (X,)),
    "unknown": lambda s: pallasc.compile(dequantised, X, Unknown(*dataclasses.astuple(Q)[:2])),
    "number in a node": lambda s: pallasc.compile(dequantised, X, QArray("i4[8, 8]", 3.0)),
    "failing call": lambda s: pallasc.compile(
        dequantised, X, pallasc.Call(QArray, qvalue="i4[8]", scale="f32[8]")
    ),
    "call of nothing": lambda s: pallasc.compile(
        dequantised, X, pallasc.Call("pytrees:QAray", qvalue="i4[8, 8]")
    ),
    "pair isolated": lambda s: pallasc.compile(paired, X, Pair(X, 3), isolated=True, store=s),
}


def outcome(call: Any, store: Store) -> Any:
    try:
        artifact = call(store)
    except pallasc.PallascError as error:
        return [type(error).__name__, error.exit_code, str(error)]
    inputs = {a.path: f"{a.dtype}{list(a.shape)}" for a in artifact.plan.inputs}
    return {"digest": artifact.digest, "inputs": inputs, "tree": artifact.plan.input_tree}


def main() -> None:
    store = Store(sys.argv[1])
    print(json.dumps({name: outcome(call, store) for name, call in CALLS.items()}))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    import pytrees  # the types under the name that a spec finds them by

    pytrees.main()
