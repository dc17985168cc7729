"""One kernel, written in YAML, with the decorator and for `pallasc.compile`: one artifact.

Each way compiles for itself: YAML and decorator into a store of their own, `pallasc.compile`
without a store, in another process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

KERNELS = """
import jax
import jax.numpy as jnp
import pallasc
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

V = "f32[256]"
LIKE = jax.ShapeDtypeStruct((256,), jnp.float32)
MESH = plgpu.Mesh(grid=(1,), grid_names=("block",))


@pallasc.kernel(
    args={"x": V}, static={"factor": 3.0, "steps": 2, "names": ["a", "b"]}, targets=["sm_90a"]
)
def configured(x, *, factor, steps, names):
    def body(x_ref, o_ref):
        value = x_ref[...]
        for _ in range(steps * len(names)):
            value = value * factor
        o_ref[...] = value

    return plgpu.kernel(body, out_type=LIKE)(x)


def add_into(x_ref, ref):
    ref[...] = ref[...] + x_ref[...]


@pallasc.kernel(args={"x": V, "y": V}, targets=["sm_90a"])
def changed_in_place(x, y):
    ref = jax.new_ref(y)
    pl.kernel(add_into, out_type=(), mesh=MESH, compiler_params=plgpu.CompilerParams())(x, ref)
    return ref[...]


@pallasc.kernel(args={"tree": {"a": V, "b": [V, None]}}, targets=["sm_90a"])
def nested(tree):
    total = changed_in_place(tree["a"], tree["b"][0])
    return {"total": total, "rest": [jnp.sin(total)]}


CALLS = {
    "configured": (configured, [V], {"factor": 3.0, "steps": 2, "names": ["a", "b"]}),
    "changed_in_place": (changed_in_place, [V, V], {}),
    "nested": (nested, [{"a": V, "b": [V, None]}], {}),
}
"""

_V = "f32[256]"
_IN_YAML: dict[str, dict[str, Any]] = {
    "configured": {
        "args": {"x": _V}, "static": {"factor": 3.0, "steps": 2, "names": ["a", "b"]}
    },
    "changed_in_place": {"args": {"x": _V, "y": _V}},
    "nested": {"args": {"tree": {"a": _V, "b": [_V, None]}}},
}  # fmt: skip


@pytest.fixture(scope="module")
def digests(
    make_project: Callable[[], Any], run_program: Callable[..., Any]
) -> dict[str, dict[str, str]]:
    """Return the artifacts' digests by kernel, of each way."""
    decorated, in_yaml = make_project(), make_project()
    file = decorated.write("kernels.py", KERNELS)
    in_yaml.write("kernels.py", KERNELS)
    in_yaml.spec(
        *({"name": f"{name}_in_yaml", "entry": f"kernels.py:{name}", **given}
          for name, given in _IN_YAML.items())
    )  # fmt: skip
    return {
        "decorator": _built(decorated, "kernels.py"),
        "YAML": {
            name.removesuffix("_in_yaml"): digest
            for name, digest in _built(in_yaml, "spec.yaml").items()
        },
        "pallasc.compile": run_program("three_ways.py", file),
    }


def _built(project: Any, file: str) -> dict[str, str]:
    results = project.build(file).results
    assert [(r.status, r.error and r.error.message) for r in results] == (
        [("compiled", None)] * len(_IN_YAML)
    )
    return {result.variant.name: result.artifact.digest for result in results}


@pytest.mark.parametrize("name", _IN_YAML)
def test_three_ways_to_write_a_kernel_give_one_artifact(
    digests: dict[str, dict[str, str]], name: str
) -> None:
    found = {way: by_name[name] for way, by_name in digests.items()}
    assert sorted(found) == ["YAML", "decorator", "pallasc.compile"]
    assert len(set(found.values())) == 1, found


def test_different_kernels_have_different_artifacts(digests: dict[str, dict[str, str]]) -> None:
    for by_name in digests.values():
        assert sorted(by_name) == sorted(_IN_YAML)
        assert len({*by_name.values()}) == len(_IN_YAML)
