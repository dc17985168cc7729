"""Prefetches that several blocks of a cluster repeat: the numbers are right."""

from __future__ import annotations

import json
from typing import Any

import pytest

KERNELS = """\
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

OLD = tuple(map(int, jax.__version__.split(".")[:2])) < (0, 11)
OUT = "out_shape" if OLD else "out_type"


def fetched(x, axes, semantics="Lane", cluster=True):
    def body(x, out):
        plgpu.async_prefetch(x, collective_axes=axes)
        out[lax.axis_index("i")] = x[...]

    parameters = plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics[semantics])
    shape = jax.ShapeDtypeStruct((2, 64, 64), jnp.float32)
    blocks = "cluster" if cluster else "grid"
    options = {blocks: (2,), f"{blocks}_names": ("i",), OUT: shape, "compiler_params": parameters}
    return plgpu.kernel(body, **options)(x)
"""
KINDS: dict[str, dict[str, Any]] = {
    "halves": {"axes": "i"},
    "lost_by_jax": {"axes": "i", "semantics": "Warpgroup"},
    "all_by_each": {"axes": None},
    "without_a_cluster": {"axes": None, "cluster": False},
}


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory, checking: Any) -> Any:
    folder = tmp_path_factory.mktemp("prefetches")
    (folder / "kernels.py").write_text(KERNELS)
    same = {"entry": "kernels.py:fetched", "args": {"x": "f32[64, 64]"}}
    kernels = [{"name": name, **same, "static": static} for name, static in KINDS.items()]
    spec = {"schema": 1, "targets": ["h100-sxm"], "kernels": kernels}
    (folder / "spec.yaml").write_text(json.dumps(spec))
    return checking.check(folder, "spec.yaml", "--json", "--level", "artifact")


@pytest.mark.parametrize("name", ["lost_by_jax", "all_by_each"])
def test_what_each_block_of_a_cluster_prefetches_is_a_note(name: str, checked: Any) -> None:
    (finding,) = checked.results[name]["findings"]
    assert (finding["rule"], finding["severity"]) == ("repeated-prefetch", "note")
    assert finding["message"] == (
        "blocks (0, 0, 0) and (1, 0, 0) of one cluster prefetch the same 16,384 bytes of x"
    )
    line = KERNELS.splitlines()[finding["location"]["line"] - 1]
    assert "plgpu.async_prefetch" in line


@pytest.mark.parametrize("name", ["halves", "without_a_cluster"])
def test_blocks_that_share_nothing_prefetch_what_they_like(name: str, checked: Any) -> None:
    assert (checked.results[name]["status"], checked.results[name]["findings"]) == ("passed", [])


def test_notes_do_not_fail_the_check(checked: Any) -> None:
    assert checked.code == 0
