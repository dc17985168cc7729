"""The figures of points, of real kernels."""

from __future__ import annotations

from collections.abc import Mapping

from pallasc.analysis.metrics import all_metrics
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.tuning.plan import facts_of

STAGES = 3


def test_a_product_of_matrices_has_barriers_for_each_stage(
    artifacts: Mapping[str, Artifact],
) -> None:
    artifact = artifacts["hopper_matmul"]
    (launch,) = all_metrics([artifact])[artifact.digest]
    facts = facts_of(artifact)
    assert facts.digest == artifact.digest
    assert facts.spill_bytes == 0
    assert facts.mbarriers == 2 * STAGES  # filled, and read
    assert facts.smem_bytes == artifact.kernels[0].smem_bytes
    assert facts.waves == launch.occupancy.waves
