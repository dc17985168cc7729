"""A barrier without `orders_tensor_core=True` between accesses to tensor memory is a race."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(
    metadata.version("jax").startswith("0.10."), reason="spelled for JAX 0.11 and later"
)

KERNELS = """\
import functools
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

TILES = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))


def multiplied(body, a, b, orders, rows, tmem):
    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((rows, 128), jnp.float32),
        scratch_types=[
            plgpu.SMEM((128, 64), jnp.float16, transforms=TILES),
            plgpu.SMEM((64, 128), jnp.float16, transforms=TILES),
            plgpu.TMEM((128, 128), jnp.float32),
            tmem,
            plgpu.Barrier(num_arrivals=2),
            plgpu.Barrier(orders_tensor_core=True),
            plgpu.Barrier(orders_tensor_core=orders),
        ],
        num_threads=2,
        thread_name="wg",
    )(a, b)


def loaded(a, b, orders):
    def body(a, b, o, a_smem, b_smem, acc, _, full, done, free):
        @pl.when(jax.lax.axis_index("wg") == 0)
        def _():
            plgpu.copy_gmem_to_smem(a, a_smem, full)
            plgpu.copy_gmem_to_smem(b, b_smem, full)
            plgpu.barrier_wait(full)
            plgpu.tcgen05_mma(acc, a_smem, b_smem, done, accumulate=False)
            plgpu.barrier_wait(free)
            plgpu.tcgen05_mma(acc, a_smem, b_smem, done, accumulate=False)  # the second product

        @pl.when(jax.lax.axis_index("wg") == 1)
        def _():
            plgpu.barrier_wait(done)
            o[pl.ds(0, 128)] = plgpu.async_load_tmem(acc)  # the load
            plgpu.wait_load_tmem()
            plgpu.barrier_arrive(free)
            plgpu.barrier_wait(done)
            o[pl.ds(128, 128)] = plgpu.async_load_tmem(acc)

    return multiplied(body, a, b, orders, 256, plgpu.TMEM((128, 128), jnp.float32))


def stored(a, b, orders):
    def body(a, b, o, _, b_smem, acc, a_tmem, full, done, ready):
        @pl.when(jax.lax.axis_index("wg") == 0)
        def _():
            plgpu.copy_gmem_to_smem(b, b_smem, full)
            plgpu.barrier_arrive(full)
            plgpu.barrier_wait(full)
            plgpu.barrier_wait(ready)
            plgpu.tcgen05_mma(acc, a_tmem, b_smem, done, accumulate=False)  # reads what is stored
            plgpu.barrier_wait(done)
            o[...] = plgpu.async_load_tmem(acc)

        @pl.when(jax.lax.axis_index("wg") == 1)
        def _():
            layout = plgpu.Layout.TCGEN05
            plgpu.async_store_tmem(a_tmem, plgpu.load(a.at[...], layout=layout, optimized=False))
            plgpu.commit_tmem()
            plgpu.barrier_arrive(ready)

    return multiplied(body, a, b, orders, 128, plgpu.TMEM((128, 64), jnp.float16, packed=True))


loaded_in_order = functools.partial(loaded, orders=True)
loaded_too_early = functools.partial(loaded, orders=False)
stored_in_order = functools.partial(stored, orders=True)
stored_too_late = functools.partial(stored, orders=False)


def one(a, b):
    return jnp.dot(a, b, preferred_element_type=jnp.float32)


def two(a, b):
    return jnp.concatenate([one(a, b)] * 2)
"""
NAMES = {"loaded_in_order": "two", "loaded_too_early": "two"}
NAMES |= {"stored_in_order": "one", "stored_too_late": "one"}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, checking: Any) -> Any:
    folder: Path = tmp_path_factory.mktemp("fences")
    (folder / "kernels.py").write_text(KERNELS)
    kernels = [
        {"name": name, "args": ["f16[128, 64]", "f16[64, 128]"], "tolerance": {"atol": 0.01},
         "reference": f"kernels.py:{reference}"}
        for name, reference in NAMES.items()
    ]  # fmt: skip
    (folder / "spec.yaml").write_text(checking.spec_of(*kernels, targets=["sm_100a"]))
    words = ("spec.yaml", "--json", "--level", "artifact", "--schedules", "2")
    return checking.check(folder, *words).results


@pytest.mark.parametrize("name", ["loaded_in_order", "stored_in_order"])
def test_a_barrier_that_orders_the_tensor_core_is_enough(name: str, results: Any) -> None:
    assert results[name]["status"] == "passed", results[name]


@pytest.mark.parametrize(
    ("name", "text", "accesses"),
    [
        ("loaded_too_early", "the second product", "the load and the tcgen05.mma that overwrites"),
        ("stored_too_late", "reads what is stored", "the store and the tcgen05.mma that reads"),
    ],
)
def test_one_that_does_not_is_found_at_the_line_of_the_product(
    name: str, text: str, accesses: str, results: Any
) -> None:
    (finding,) = results[name]["findings"]
    assert finding["rule"] == "race"
    assert accesses in finding["message"]
    assert "orders_tensor_core=True" in finding["message"]
    (line,) = [n for n, each in enumerate(KERNELS.splitlines(), 1) if text in each]
    assert finding["location"]["line"] == line
