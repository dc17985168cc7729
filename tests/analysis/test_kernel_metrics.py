"""The numbers of launches, checked by hand."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from pallasc.analysis.metrics import (
    KernelMetrics,
    all_metrics,
    artifact_metrics,
    metrics_json,
    occupancy_of,
)
from pallasc.analysis.roofline import roofline_of
from pallasc.analysis.work import Work
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


def test_a_product_of_matrices_takes_two_operations_for_each_term_and_moves_tiles_at_each_step(
    metrics: Mapping[str, KernelMetrics],
) -> None:
    assert metrics["jax_blackwell_matmul"].work.tensor_flops == {"f16": 2 * M * N * K}
    work = metrics["hopper_matmul"].work
    assert work.tensor_flops == {"f16": 2 * M * N * K}
    m, n, k = 128, 128, 64
    tiles, steps = (M // m) * (N // n), K // k
    assert work.tma_load_bytes == tiles * steps * (m * k + k * n) * 2
    assert work.tma_store_bytes == M * N * 2
    roofline = metrics["hopper_matmul"].roofline
    assert roofline.least_bytes == (M * K + K * N + M * N) * 2
    assert roofline.seconds_of_bytes == pytest.approx(50331648 / 3_352_320_000_000)
    assert roofline.seconds_of_flops == pytest.approx(2 * M * N * K / 989.4e12)
    assert (roofline.bound_s, roofline.limited_by) == (roofline.seconds_of_flops, "tensor")
    found = metrics["hopper_matmul"]
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
    target = MODELS["h100-sxm"]
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
    assert found.work.tensor_flops == {"f16": 2 * M * N * K}


def test_the_json_has_every_number_and_says_why_one_is_missing(
    artifacts: Mapping[str, Artifact], metrics: Mapping[str, KernelMetrics]
) -> None:
    data = json.loads(json.dumps(metrics_json(metrics["hopper_matmul"])))
    assert data["occupancy"]["limited_by"] == ["registers", "shared memory"]
    assert data["reasons"] == {}
    (without,) = artifact_metrics(_without_ptx(artifacts["hopper_matmul"]), codes={}, reason="why")
    data = metrics_json(without)
    null = {name for name, value in data.items() if value is None} - {"cluster"}
    assert null | {"seconds_of_flops"} == set(data["reasons"])
    assert data["roofline"]["seconds_of_flops"] is None
    assert data["roofline"]["limited_by"] == "memory"


def _without_ptx(artifact: Artifact) -> Artifact:
    record: Any = dict(artifact.record)
    record["kernels"] = [{**kernel, "ptx": None} for kernel in record["kernels"]]
    return Artifact(record, artifact.blob)


def test_the_models_have_peaks_of_tensor_cores(artifacts: Mapping[str, Artifact]) -> None:
    def seconds(model: str, kind: str) -> float | None:
        plan, launch = artifacts["hopper_matmul"].plan, _launch((1, 1, 1), (32, 1, 1), 0)
        target = replace(MODELS["h100-sxm"], name=model)
        return roofline_of(launch, plan, target, Work({kind: 10**12}, 0, 0)).seconds_of_flops

    for kind in ("f16", "tf32"):
        assert {name for name in MODELS if seconds(name, kind) is None} == {
            *("gb10", "thor", "rtx-pro-6000")
        }
    assert seconds("h100-sxm", "f16") == pytest.approx(1 / 989.4)
    assert seconds("h100-sxm", "f4") is None
    assert seconds("unheard-of", "f16") is None


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
