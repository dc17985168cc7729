"""One kernel, written in YAML, with the decorator and for `pallasc.compile`: one artifact.

Each way compiles for itself: YAML and decorator into a store of their own, `pallasc.compile`
without a store, in another process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
    "nested": (nested, [{"a": V, "b": [V, None]}], {}),
}
if __name__ == "__main__":
    import json

    print(json.dumps({
        name: pallasc.compile(function, *arrays, **static).digest
        for name, (function, arrays, static) in CALLS.items()
    }))
"""

_V = "f32[256]"
_IN_YAML: dict[str, dict[str, Any]] = {
    "configured": {
        "args": {"x": _V}, "static": {"factor": 3.0, "steps": 2, "names": ["a", "b"]}
    },
    "nested": {"args": {"tree": {"a": _V, "b": [_V, None]}}},
}  # fmt: skip


def _built(project: Any, file: str) -> list[str]:
    results = project.build(file).results
    assert [(r.status, str(r.error)) for r in results] == [("compiled", "None")] * len(_IN_YAML)
    return [result.artifact.digest for result in results]


def test_three_ways_to_write_a_kernel_give_one_artifact(
    make_project: Callable[[], Any], run_program: Callable[..., Any]
) -> None:
    decorated, in_yaml = make_project(), make_project()
    file = decorated.write("kernels.py", KERNELS)
    in_yaml.write("kernels.py", KERNELS)
    in_yaml.spec(
        *({"name": f"{name}_in_yaml", "entry": f"kernels.py:{name}", **given}
          for name, given in _IN_YAML.items())
    )  # fmt: skip
    digests = _built(decorated, "kernels.py")
    assert len({*digests}) == len(_IN_YAML)
    assert _built(in_yaml, "spec.yaml") == digests
    compiled = run_program(file)
    assert [compiled[name] for name in _IN_YAML] == digests
