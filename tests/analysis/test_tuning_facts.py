"""The figures of points, of real kernels."""

from __future__ import annotations

from collections.abc import Mapping

from pallasc.analysis.metrics import KernelMetrics, all_metrics
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.tuning.rules import facts_of

STAGES, TILE_K = 3, 64


def _metrics(artifact: Artifact) -> tuple[KernelMetrics, ...]:
    return all_metrics([artifact])[artifact.digest]


def test_a_product_of_matrices_has_barriers_for_each_stage_and_a_tile_in_its_loop(
    artifacts: Mapping[str, Artifact],
) -> None:
    artifact = artifacts["hopper_matmul"]
    (launch,) = _metrics(artifact)
    facts = facts_of(artifact, [launch])
    assert facts.digest == artifact.digest
    assert facts.spill_bytes == 0
    assert facts.mbarriers == 2 * STAGES  # filled, and read
    # One warpgroup has half of the 128 rows of a tile, and 128 columns.
    assert facts.tile_flops == 2 * 64 * 128 * TILE_K
    assert facts.load_bytes == launch.work.tma_load_bytes
    assert facts.store_bytes == launch.work.tma_store_bytes
    assert facts.smem_bytes == artifact.kernels[0].smem_bytes
    assert facts.waves == launch.occupancy.waves
    assert facts.warps_per_sm == launch.occupancy.warps_per_sm
