"""`pallasc tune pick` decides by what `pallasc tune run` measured on the stand-in driver."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import tuned_jobs

from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.gpus import resolve_target
from pallasc.specs.tuning import Tune
from pallasc.tuning.pick import TunedKernel, pick, with_model
from pallasc.tuning.results import read_results

KERNELS = {
    # For the first key blocks of 512 and 1024 are close, for the second 1024 is fastest.
    "v0": {"us": 10.0, "noise": 0.003},
    "v1": {"us": 10.1, "noise": 0.003},
    "v2": {"us": 12.0, "noise": 0.003},
    "v3": {"us": 13.0, "noise": 0.003},
    "v4": {"us": 10.0, "noise": 0.003},
    "v5": {"us": 14.0, "noise": 0.003},
}
TUNE = Tune(over={"block": (512, 1024, 2048)}, by=("n",))


@pytest.mark.usefixtures("_library")
def test_measured_points_are_picked(tmp_path: Path) -> None:
    job = tuned_jobs.write_job(tmp_path / "job.pallasc", keys=(4096, 16384), points=3)
    output = tmp_path / "results.jsonl"
    subprocess.run(
        tuned_jobs.command(job, output),
        env=tuned_jobs.environment(tmp_path, KERNELS),
        check=True,
        capture_output=True,
    )
    # A model's description is what the driver calls the GPU.
    model = replace(resolve_target("h100-sxm"), description="Stand-in H100")
    results = with_model(read_results(output), [model])
    with open_bundle(job) as bundle:
        digests = {entry.id: entry.digest for entry in bundle.entries()}
    (decided,) = pick([results], {"scale_add": TunedKernel(TUNE, digests, ())}, 3)
    assert [(row.key, row.use) for row in decided.rows] == [
        ((16384,), {"block": 1024}),
        ((4096,), {"block": 1024}),
    ]
    assert not decided.beyond
    assert {row.artifact for row in decided.rows} == {
        digests[tuned_jobs.point_id(n, 1)] for n in (4096, 16384)
    }
    tight = pick([results], {"scale_add": TunedKernel(TUNE, digests, ())}, 0.1)[0]
    assert [own.option.use["block"] for own in tight.served] == [1024, 512]
