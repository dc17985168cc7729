"""Call `pallasc.compile` in this process and print what came of each call as JSON.

compile_here.py STORE
"""

import json
import os
import sys
from collections import OrderedDict
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import pallasc
from pallasc.cache.store import Store
from pallasc.specs.library.elementwise import add

X = "f32[128, 128]"


class Pair(NamedTuple):
    first: int


def triple(x: Any, *, factor: float = 3.0) -> Any:
    return x * factor


def closure(factor: float) -> Any:
    return lambda x: add(x, x, block_size=2048) * factor


CALLS: dict[str, Any] = {
    "text": lambda s: pallasc.compile(add, X, X, block_size=2048),
    "jax": lambda s: pallasc.compile(
        add, jax.ShapeDtypeStruct((128, 128), jnp.float32), X, block_size=2048
    ),
    "numpy": lambda s: pallasc.compile(
        add, np.zeros((128, 128), np.float32), X, target="h100-sxm", block_size=2048
    ),
    "isolated": lambda s: pallasc.compile(add, X, X, isolated=True, store=s, block_size=2048),
    "closure of 3": lambda s: pallasc.compile(closure(3.0), X),
    "static": lambda s: pallasc.compile(triple, X, factor=5.0),
    "none": lambda s: pallasc.compile(lambda x, y: x * 2.0 if y is None else y, X, None),
    "main isolated": lambda s: pallasc.compile(triple, X, isolated=True, store=s, factor=5.0),
    "jitted isolated": lambda s: pallasc.compile(
        jax.jit(triple), X, isolated=True, store=s, factor=5.0
    ),
    "second architecture": lambda s: pallasc.compile(add, X, X, target="sm_80"),
    "second architecture isolated": lambda s: pallasc.compile(
        add, X, X, target="sm_100a", isolated=True, store=s, block_size=2048
    ),
    "not an array inside": lambda s: pallasc.compile(add, [X, {"a": 3}]),
    "keys of two types": lambda s: pallasc.compile(add, [{"x": X, 0: X}]),
    "no function": lambda s: pallasc.compile(3, X),
    "too many arrays": lambda s: pallasc.compile(triple, X, X),
    "too large": lambda s: pallasc.compile(triple, jax.ShapeDtypeStruct((2**40, 2**40), "int8")),
    "missing array": lambda s: pallasc.compile(add, X),
    "unknown static": lambda s: pallasc.compile(add, X, X, block_sise=1),
    "does not trace": lambda s: pallasc.compile(add, X, X, block_size=100),
    "closure isolated": lambda s: pallasc.compile(closure(3.0), X, isolated=True, store=s),
    "static isolated": lambda s: pallasc.compile(
        triple, X, isolated=True, store=s, factor=object()
    ),
    "ordered isolated": lambda s: pallasc.compile(
        triple, pallasc.Call("os:getcwd", x=OrderedDict(a=X)), isolated=True, store=s
    ),
    "a class in a call": lambda s: pallasc.compile(triple, pallasc.Call("os:getcwd", kind=Pair)),
    "no assembler": lambda s: pallasc.compile(add, X, X, ptxas="/no/ptxas"),
}


def outcome(call: Any, store: Store) -> Any:
    try:
        artifact = call(store)
    except pallasc.PallascError as error:
        return [type(error).__name__, error.exit_code, str(error)]
    assert artifact.cubin()
    assert artifact.plan.steps
    return artifact.digest


def record_programs() -> list[str]:
    """Return a list that gets the command of every program that Python starts here."""
    started: list[str] = []

    def heard(event: str, arguments: Any) -> None:
        if event == "subprocess.Popen":
            started.append(" ".join(map(str, arguments[1])))

    sys.addaudithook(heard)
    return started


def main() -> None:
    store, path = Store(sys.argv[1]), os.environ["PATH"]
    started = record_programs()
    results = {name: outcome(call, store) for name, call in CALLS.items()}
    same = os.environ["PATH"] == path
    asked = sum(command.endswith("ptxas --version") for command in started)
    told = {"path is as it was": same, "asked for its version": asked}
    print(json.dumps({"results": results, **told}))


if __name__ == "__main__":
    main()
