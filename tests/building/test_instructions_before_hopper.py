"""Mosaic before Hopper: instructions that do not exist there must not be in the kernels."""

from __future__ import annotations

from typing import Any

from pallasc.analysis.nvdisasm import sass


def test_kernels_before_hopper_have_nothing_of_hopper(project: Any) -> None:
    kernels = [
        {
            "name": "add",
            "entry": "pallasc.specs.library.elementwise:add",
            "args": {"x": "f32[128, 128]", "y": "f32[128, 128]"},
            "static": {"block_size": 2048},
        },
        {
            "name": "softmax",
            "entry": "pallasc.specs.library.softmax:softmax",
            "args": {"x": "f32[128, 256]"},
            "static": {"rows_per_block": 4},
        },
    ]
    project.spec(*kernels, targets=["sm_80"])
    report = project.build(jobs=1)
    assert [str(result.error) for result in report.failed] == []
    for result in report.results:
        assert result.artifact.target["arch"] == "sm_80"
        ptx = result.artifact.ptx()
        assert ".target sm_80" in ptx
        assert "elect.sync" not in ptx
        assert "fence.mbarrier_init" not in ptx
        assert "EXIT" in sass(result.artifact.cubin())
