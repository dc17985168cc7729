"""The numbers of launches, checked by hand."""

import json
from collections.abc import Mapping

import pytest

from pallasc.analysis.metrics import (
    KernelMetrics,
    all_metrics,
    artifact_metrics,
    metrics_json,
    occupancy_of,
)
from pallasc.compiler.toolchain import toolchain
from pallasc.specs.artifacts.artifact import Artifact, KernelResources
from pallasc.specs.artifacts.plan import Dim3, Launch
from pallasc.specs.gpus import MODELS
from pallasc.tuning.plan import facts_of

M, N, K = 1024, 4096, 4096


@pytest.fixture(scope="module")
def metrics(artifacts: Mapping[str, Artifact]) -> Mapping[str, KernelMetrics]:
    found = all_metrics(artifacts.values())
    return {name: found[artifact.digest][0] for name, artifact in artifacts.items()}


def test_a_product_of_matrices_moves_each_matrix_once_at_least(
    metrics: Mapping[str, KernelMetrics],
) -> None:
    found = metrics["hopper_matmul"]
    assert found.least_bytes == (M * K + K * N + M * N) * 2
    assert found.bound_s == pytest.approx(50331648 / 3_352_320_000_000)
    assert found.mix is not None
    assert found.loops is not None
    assert sum(found.mix.values()) == found.instructions
    (loop,) = (loop for loop in found.loops if "tensor" in loop.mix)
    # A step: a warpgroup's 64 rows of a tile, 4 instructions of K = 16.
    assert loop.mix["tensor"] == 4
    assert loop.tensor_flops == 2 * 64 * 128 * 64


# CUDA Occupancy Calculator, compute capability 9.0: 64 warps, 32 blocks, 65,536 registers, 228 kB.
@pytest.mark.parametrize(
    ("threads", "registers", "smem", "blocks", "limited_by"),
    [
        (256, 32, 0, 8, ("registers", "threads")),
        (128, 168, 40_000, 3, ("registers",)),
        (160, 80, 0, 4, ("registers",)),
        (32, 16, 0, 32, ("shared memory", "blocks")),
        (384, 168, 131_121, 1, ("registers", "shared memory")),
        (64, 32, 100_000, 2, ("shared memory",)),
    ],
)
def test_occupancy_is_that_of_the_calculator(
    threads: int, registers: int, smem: int, blocks: int, limited_by: tuple[str, ...]
) -> None:
    kernel = KernelResources("k", "", None, "mosaic", registers, 0, 0, 0, 0, smem, 0)
    launch = _launch((1000, 1, 1), (threads, 1, 1), smem)
    target = {"arch": "sm_90a", **MODELS["h100-sxm"].figures()}
    smem_limit = 233472 // (smem + 1024)
    occupancy = occupancy_of(launch, kernel, target)
    assert occupancy.blocks_per_sm == blocks
    assert occupancy.warps_per_sm == blocks * threads // 32
    assert occupancy.waves == pytest.approx(1000 / (132 * blocks))
    assert occupancy.limited_by == tuple(
        name for name in limited_by if name != "shared memory" or smem_limit <= blocks
    )
    # 132 multiprocessors hold 8 clusters of 16 at most.
    kernel = KernelResources("k", "", None, "mosaic", 168, 0, 0, 0, 0, 200_000, 0)
    launch = _launch((160, 1, 1), (128, 1, 1), 200_000, (16, 1, 1))
    assert occupancy_of(launch, kernel, target).waves == 10 / 8


def _launch(grid: Dim3, block: Dim3, smem: int, cluster: Dim3 | None = None) -> Launch:
    return Launch("k", "", grid, cluster, block, smem, False, ())


def test_without_a_disassembler_the_rest_is_there(
    artifacts: Mapping[str, Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "find_package", lambda name: None)
    (found,) = next(iter(all_metrics([artifacts["hopper_matmul"]]).values()))
    assert (found.instructions, found.mix, found.loops) == (None, None, None)
    assert "nvdisasm is not installed" in found.reasons["mix"]


def test_the_json_has_every_number_and_says_why_one_is_missing(
    artifacts: Mapping[str, Artifact], metrics: Mapping[str, KernelMetrics]
) -> None:
    data = json.loads(json.dumps(metrics_json(metrics["hopper_matmul"])))
    assert data["occupancy"]["limited_by"] == ["registers", "shared memory"]
    assert data["reasons"] == {}
    (without,) = artifact_metrics(artifacts["hopper_matmul"], codes={}, reason="why")
    data = metrics_json(without)
    null = {name for name, value in data.items() if value is None} - {"cluster"}
    assert null == set(data["reasons"]) == {"instructions", "mix", "loops"}


def test_a_product_of_matrices_has_barriers_for_each_stage(
    artifacts: Mapping[str, Artifact], metrics: Mapping[str, KernelMetrics]
) -> None:
    artifact = artifacts["hopper_matmul"]
    launch = metrics["hopper_matmul"]
    facts = facts_of(artifact)
    assert facts.digest == artifact.digest
    assert facts.spill_bytes == 0
    assert facts.mbarriers == 2 * 3  # filled, and read
    assert facts.smem_bytes == artifact.kernels[0].smem_bytes
    assert facts.waves == launch.occupancy.waves
