"""Kernels of the library, compiled for real, give right numbers when their PTX is executed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from opcode_patterns import unlisted

from pallasc.cache.store import Store
from pallasc.compiler.api import compile as compile_kernel
from pallasc.emulator.machine.machine import Machine, Policy
from pallasc.emulator.run_plan import PlanRun
from pallasc.specs.library import elementwise, reduction, rms_norm, softmax

NAMES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "int8": "i8"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("store"))


def emulate(
    store: Store,
    function: Callable[..., Any],
    *arrays: np.ndarray,
    target: str = "sm_90a",
    policy: Policy | None = None,
    **static: Any,
) -> np.ndarray:
    """Compile a function for these arrays and run it; return its first result."""
    specs = [f"{NAMES[str(a.dtype)]}[{','.join(map(str, a.shape))}]" for a in arrays]
    artifact = compile_kernel(function, *specs, target=target, store=store, isolated=True, **static)
    assert not unlisted(artifact)
    ((result, *_),) = PlanRun(artifact, Machine(policy or Policy())).run([arrays])
    return result


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
def test_add(store: Store, target: str, dtype: Any) -> None:
    x, y = normal(2, 4096, dtype=dtype), normal(2, 4096, dtype=dtype)[:, ::-1].copy()
    found = emulate(store, elementwise.add, x, y, target=target, block_size=2048)
    np.testing.assert_array_equal(found, x + y)


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_softmax_in_any_order_of_warps(store: Store, seed: int | None) -> None:
    x = normal(4, 1024)
    policy = Policy() if seed is None else Policy(seed=seed, shuffle=True, eagerness=0.5)
    found = emulate(store, softmax.softmax, x, policy=policy, rows_per_block=4)
    powers = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(found, powers / powers.sum(1, keepdims=True), rtol=1e-5, atol=1e-7)


def test_row_sum(store: Store) -> None:
    x = normal(8, 2048)
    found = emulate(store, reduction.row_sum, x, chunk_size=1024)
    np.testing.assert_allclose(found, x.sum(1), rtol=1e-5, atol=1e-4)


def test_rms_norm(store: Store) -> None:
    x, weight = normal(4, 1024), normal(1024)
    found = emulate(store, rms_norm.rms_norm, x, weight, epsilon=1e-6, rows_per_block=4)
    expected = x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6) * weight
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
