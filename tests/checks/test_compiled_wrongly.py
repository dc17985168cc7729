"""What JAX compiles wrongly is found by `pallasc check`: its interpreter gives other numbers."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

KERNELS = """\
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu


def rows(x):
    def body(x, o, smem, barrier):
        plgpu.copy_gmem_to_smem(x.at[pl.dslice(0, 64, 2)], smem, barrier)  # JAX loses the stride
        plgpu.barrier_wait(barrier)
        o[...] = smem[...]

    shape = jax.ShapeDtypeStruct((64, 128), jnp.float32)
    memory = [plgpu.SMEM((64, 128), jnp.float32), plgpu.Barrier()]
    return plgpu.kernel(body, out_type=shape, scratch_types=memory)(x)


def every_second(x):
    return x[::2]
"""


@pytest.mark.skipif(
    metadata.version("jax").startswith("0.10."), reason="JAX 0.10 refuses slices with a stride"
)
def test_a_lost_stride_is_found_with_reference_and_interpreter(
    tmp_path: Path, checking: Any
) -> None:
    (tmp_path / "kernels.py").write_text(KERNELS)
    one = {"name": "rows", "args": ["f32[128, 128]"], "reference": "kernels.py:every_second"}
    (tmp_path / "spec.yaml").write_text(checking.spec_of(one))
    ran = checking.check(tmp_path, "spec.yaml", "--json", "--level", "all")
    by_level = {result["level"]: result for result in ran.report["variants"][0]["results"]}
    assert by_level["interpreter"]["status"] == "passed", by_level["interpreter"]
    (finding,) = by_level["artifact"]["findings"]
    assert finding["rule"] == "compiled-wrongly"
    assert "[1, 0] is " in finding["message"]
    assert "elements differ" in finding["message"]
    assert "wrote it in body_mosaic_gpu_kernel" in finding["message"]
    assert finding["instruction"].startswith("st.global")
    assert finding["location"]["file"].endswith("kernels.py")
    assert ran.code == 1
