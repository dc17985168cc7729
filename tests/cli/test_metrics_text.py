"""The numbers of launches as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from pallasc.analysis.metrics import KernelMetrics, LoopMetrics, occupancy_of
from pallasc.analysis.roofline import Roofline
from pallasc.analysis.work import Work, unknown_work
from pallasc.cli.output.artifact_text import amount, metrics_text
from pallasc.specs.artifacts.artifact import KernelResources
from pallasc.specs.artifacts.plan import Launch
from pallasc.specs.gpus import MODELS

PAGE = Path(__file__).parents[2] / "docs" / "inspect.md"


def _metrics(work: Work, roofline: Roofline, **changes: object) -> KernelMetrics:
    """Return the numbers of the product of matrices that docs/inspect.md shows."""
    kernel = KernelResources(
        "matmul_body_mosaic_gpu_kernel", "", None, "mosaic", 168, 0, 0, 0, 1, 131_120, 16
    )
    launch = Launch(kernel.name, "", (32, 8, 1), None, (384, 1, 1), 131_120, False, ())
    target = {"arch": "sm_90a", **MODELS["h100-sxm"].figures()}
    fields = {"instructions": None, "mix": None, "loops": None, "reasons": work.reasons, **changes}
    return KernelMetrics(
        launch=0,
        kernel=kernel.name,
        origin="mosaic",
        grid=launch.grid,
        block=launch.block,
        cluster=launch.cluster,
        occupancy=occupancy_of(launch, kernel, target),
        work=work,
        roofline=roofline,
        **fields,  # type: ignore[arg-type]
    )


def _known() -> KernelMetrics:
    work = Work({"f16": 2 * 1024 * 4096 * 4096}, 536870912, 8388608, 0, 0)
    roofline = Roofline(50331648, 15.0139e-6, 34.7278e-6, 34.7278e-6, "tensor")
    mix = {
        "tensor": 4, "tma": 16, "shared": 8, "constant": 2, "barrier": 59, "integer": 105,
        "conversion": 32, "warp": 11, "move": 97, "uniform": 195, "control": 37,
    }  # fmt: skip
    first = {"tma": 4, "uniform": 60, "integer": 30, "move": 17, "barrier": 14, "control": 12}
    third = {"tensor": 4, "tma": 1, "uniform": 49, "integer": 8, "barrier": 6, "control": 5}
    loops = (
        LoopMetrics(0xC70, 1, None, is_wait=False, mix=first, tensor_flops=0),
        LoopMetrics(0x1520, 1, None, is_wait=False, mix={"move": 1, "control": 3}, tensor_flops=0),
        LoopMetrics(0x1820, 1, None, is_wait=False, mix=third, tensor_flops=2 * 64 * 128 * 64),
        *(LoopMetrics(n, 1, None, is_wait=True, mix={}, tensor_flops=0) for n in range(6)),
    )
    return _metrics(work, roofline, instructions=566, mix=mix, loops=loops)


def test_the_text_is_that_of_the_documentation() -> None:
    text = metrics_text(_known())
    assert text in PAGE.read_text("utf-8")
    assert max(map(len, text.splitlines())) <= 80


def test_what_is_not_known_says_why() -> None:
    roofline = Roofline(50331648, 15.0139e-6, None, 15.0139e-6, "memory")
    lines = metrics_text(_metrics(unknown_work("a trip count depends on data"), roofline))
    assert "tensor cores  unknown: a trip count depends on data" in lines
    assert "TMA           unknown: a trip count depends on data" in lines
    assert "50.33 MB of arrays take 15.01 µs (tensor\n" in lines
    assert "instructions" not in lines


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 "), (999, "999 "), (1000, "1 k"), (34359738368, "34.36 G"), (2.5e12, "2.5 T")],
)
def test_amounts(number: float, text: str) -> None:
    assert amount(number) == text
