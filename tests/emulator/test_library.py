"""Kernels of the library, compiled for real, give right numbers when their PTX is executed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from opcode_patterns import unlisted

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.emulator.machine.machine import Machine, Policy
from pallasc.emulator.run_plan import PlanRun
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml

TARGETS = ["sm_80", "sm_90a", "sm_100a", "sm_120a"]
DTYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16}


def kernel(name: str, args: dict[str, str], static: dict[str, Any], **fields: Any) -> Any:
    entry = "pallasc.specs.library." + name
    return {
        "name": name.partition(":")[2],
        "entry": entry,
        "args": args,
        "static": static,
        **fields,
    }


SPEC = {
    "schema": 1,
    "targets": ["sm_90a"],
    "kernels": [
        kernel(
            "elementwise:add",
            {"x": "{dtype}[2, 4096]", "y": "{dtype}[2, 4096]"},
            {"block_size": 2048},
            matrix={"dtype": list(DTYPES)},
            targets=TARGETS,
        ),
        kernel("softmax:softmax", {"x": "f32[4, 1024]"}, {"rows_per_block": 4}),
        kernel("reduction:row_sum", {"x": "f32[8, 2048]"}, {"chunk_size": 1024}),
        kernel(
            "rms_norm:rms_norm",
            {"x": "f32[4, 1024]", "weight": "f32[1024]"},
            {"epsilon": 1e-6, "rows_per_block": 4},
        ),
    ],
}

Compiled = Mapping[tuple[str, str, str], Artifact]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """Return the artifacts by kernel, element type and architecture."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "spec.yaml").write_text(json.dumps(SPEC))
    variants = expand(load_yaml(folder / "spec.yaml"))
    report = build(variants, store=Store(folder / "store"), options=Options(jobs=1))
    made = {}
    for result in report.results:
        assert result.artifact is not None, result.error
        variant = result.variant
        dtype = str(dict(variant.params).get("dtype", "f32"))
        made[variant.name, dtype, variant.target.arch] = result.artifact
    return made


def emulate(artifact: Artifact, *arrays: np.ndarray, policy: Policy | None = None) -> np.ndarray:
    """Run an artifact; return its first result."""
    assert not unlisted(artifact)
    ((result, *_),) = PlanRun(artifact, Machine(policy or Policy())).run([arrays])
    return result


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_add(compiled: Compiled, target: str, dtype: str) -> None:
    x = normal(2, 4096, dtype=DTYPES[dtype])
    y = x[:, ::-1].copy()
    np.testing.assert_array_equal(emulate(compiled["add", dtype, target], x, y), x + y)


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_softmax_in_any_order_of_warps(compiled: Compiled, seed: int | None) -> None:
    x = normal(4, 1024)
    policy = Policy() if seed is None else Policy(seed=seed, shuffle=True, eagerness=0.5)
    found = emulate(compiled["softmax", "f32", "sm_90a"], x, policy=policy)
    powers = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(found, powers / powers.sum(1, keepdims=True), rtol=1e-5, atol=1e-7)


def test_row_sum(compiled: Compiled) -> None:
    x = normal(8, 2048)
    found = emulate(compiled["row_sum", "f32", "sm_90a"], x)
    np.testing.assert_allclose(found, x.sum(1), rtol=1e-5, atol=1e-4)


def test_rms_norm(compiled: Compiled) -> None:
    x, weight = normal(4, 1024), normal(1024)
    found = emulate(compiled["rms_norm", "f32", "sm_90a"], x, weight)
    expected = x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6) * weight
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
