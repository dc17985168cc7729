"""Memory that nothing has written: who may read it, and results that depend on it.

The same checks show that each model has room for as many blocks as it has multiprocessors.
"""

from __future__ import annotations

from importlib import metadata
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(
    metadata.version("jax").startswith("0.10."), reason="the kernels are written for JAX 0.11"
)

KERNELS = """\
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

TILED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
LANE = plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane)


def through_tiles(fill):
    def body(x, o, tiles):
        value = plgpu.load(x, layout=plgpu.Layout.WGMMA, optimized=False).astype(jnp.bfloat16)
        fill(tiles, value)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(tiles, o)
        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((64, 64), jnp.bfloat16),
        scratch_types=[plgpu.SMEM((64, 64), jnp.bfloat16, transforms=TILED)],
        compiler_params=LANE,
    )


def swapped(x):
    def fill(tiles, value):
        tiles[...] = value  # JAX lowers it to a swap, whose old value nobody uses

    return through_tiles(fill)(x)


def old_is_used(x):
    def fill(tiles, value):
        old = plgpu.load(tiles, layout=plgpu.Layout.WGMMA)
        tiles[...] = value + old * 0  # OLD

    return through_tiles(fill)(x)


def half(fill):
    def body(x, o):
        o[pl.ds(0, 128)] = jnp.full((128,), fill, jnp.int32)

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct((256,), jnp.int32))


def half_of_ones(x):
    return half(-1)(x)


def half_of_sevens(x):
    return half(7)(x)


def meeting(x):
    def body(x, o, fills):
        i = lax.axis_index("i")
        met = pl.get_global(plgpu.SemaphoreType.REGULAR)
        pl.semaphore_signal(met, 1)
        pl.semaphore_wait(met, 152, decrement=False)
        o[i] = x[...]

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((152, 128), jnp.float32),
        scratch_types=[plgpu.SMEM((48 * 1024,), jnp.float32)],
        grid=(152,),
        grid_names=("i",),
    )(x)


def halved(x):
    return x.astype(jnp.bfloat16)


def ones(x):
    return jnp.full((256,), -1, jnp.int32)


def sevens(x):
    return jnp.full((256,), 7, jnp.int32)


def rows(x):
    return jnp.tile(x, (152, 1))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, checking: Any) -> dict[tuple[str, str], Any]:
    """Return results by kernel and target."""
    folder = tmp_path_factory.mktemp("unwritten")
    (folder / "kernels.py").write_text(KERNELS)
    matrix = {"args": ["f32[64, 64]"], "reference": "kernels.py:halved"}
    kernels = [
        {"name": "swapped", **matrix},
        {"name": "old_is_used", **matrix},
        {"name": "half_of_ones", "reference": "kernels.py:ones"},
        {"name": "half_of_sevens", "reference": "kernels.py:sevens"},
        {"name": "meeting", "reference": "kernels.py:rows", "targets": ["gb200", "b200"]},
    ]
    (folder / "spec.yaml").write_text(checking.spec_of(*kernels))
    arguments = ("spec.yaml", "--json", "--level", "artifact", "--schedules", "2")
    ran = checking.check(folder, *arguments)
    variants = ran.report["variants"]
    return {(each["name"], each["target"]): each["results"][0] for each in variants}


def test_the_load_of_a_swap_whose_old_value_nobody_uses_is_no_fault(results: Any) -> None:
    result = results["swapped", "h100-sxm"]
    assert (result["status"], result["findings"]) == ("passed", []), result


def test_an_old_value_that_is_used_is_an_uninitialized_read(results: Any) -> None:
    findings = results["old_is_used", "h100-sxm"]["findings"]
    assert {finding["rule"] for finding in findings} == {"uninitialized-read"}
    line = 1 + KERNELS.partition("  # OLD")[0].count("\n")
    assert {f["location"]["line"] for f in findings} & {line - 1, line}


@pytest.mark.parametrize("name", ["half_of_ones", "half_of_sevens"])
def test_integers_that_nothing_wrote_are_found_even_where_they_would_be_right(
    name: str, results: Any
) -> None:
    """The bytes of memory that nothing wrote are all ones in the first schedule."""
    (finding,) = results[name, "h100-sxm"]["findings"]
    assert finding["rule"] == "uninitialized-read"
    assert "out[128] depends on memory that was never written" in finding["message"]


def test_as_many_blocks_meet_as_the_model_has_multiprocessors(results: Any) -> None:
    assert results["meeting", "gb200"]["status"] == "passed", results["meeting", "gb200"]
    (finding,) = results["meeting", "b200"]["findings"]
    assert finding["rule"] == "deadlock"
