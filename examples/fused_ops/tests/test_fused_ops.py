"""The wheel contains every expected kernel, and on a GPU each returns correct results.

`pallasc run kernels/` compares all kernels with the JAX references; these tests use the public API.
"""

from __future__ import annotations

import fused_ops
import numpy as np
import pytest

import pallasc

ARCHITECTURES = {"sm_90a", "sm_100a"}


@pytest.fixture
def gpu() -> None:
    try:
        fused_ops.kernels().preload()
    except pallasc.DeviceError as error:
        pytest.skip(str(error).splitlines()[0])


@pytest.mark.parametrize("name", ["add_rms_norm", "bias_gelu", "linear_gelu"])
def test_every_kernel_is_there_for_every_architecture_and_shape(name: str) -> None:
    variants = fused_ops.kernels()[name].variants
    assert {(one.arch, one.params["rows"]) for one in variants} == {
        (arch, rows) for arch in ARCHITECTURES for rows in (128, 1024)
    }


def test_no_other_kernel_is_there() -> None:
    assert set(fused_ops.kernels()) == {"add_rms_norm", "bias_gelu", "linear_gelu"}


@pytest.mark.usefixtures("gpu")
def test_the_sum_of_add_rms_norm_is_exact_and_its_rows_have_norm_one() -> None:
    import ml_dtypes

    x, residual = (np.full((128, 4096), n, dtype=ml_dtypes.bfloat16) for n in (1.0, 2.0))
    weight = np.ones(4096, dtype=ml_dtypes.bfloat16)
    total, normalized = fused_ops.add_rms_norm(x, residual, weight)
    assert (total == 3.0).all()
    np.testing.assert_allclose(normalized.astype(np.float32), 1.0, rtol=1e-2)


def test_a_shape_without_a_kernel_is_refused() -> None:
    x = np.zeros((100, 4096), dtype=np.float32)
    with pytest.raises(pallasc.ArgumentError, match="bias_gelu has no variant for"):
        fused_ops.bias_gelu(x, np.zeros(4096, dtype=np.float32))
