"""Views of an artifact: what the record does not have, and kernels that share names or cubins."""

from __future__ import annotations

from typing import Any

from pallasc.cli.output.artifact_text import ptx_text, resources_text, sass_text, summary_text
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.plan import Copy, Fill, LaunchPlan, plan_to_json
from pallasc.specs.canonical import digest

PTX = b".version 9.0\n.target sm_90a\n"
CUBINS = [b"first", b"second"]


def _kernel(cubin: bytes, *, ptx: bytes | None, **changes: Any) -> dict[str, Any]:
    return {
        "name": "kernel",
        "cubin": digest(cubin),
        "ptx": digest(ptx) if ptx else None,
        "origin": "mosaic" if ptx else "xla",
        "registers": 40,
        "stack_bytes": 8,
        "spill_store_bytes": None,
        "spill_load_bytes": None,
        "static_smem_bytes": 16,
        "dynamic_smem_bytes": 32,
        "barriers": 1,
        **changes,
    }


def _artifact(*kernels: dict[str, Any]) -> Artifact:
    blobs = {digest(data): data for data in [PTX, *CUBINS]}
    buffers = [{"role": "temporary", "size": 64, "alignment": 256, "digest": None}]
    plan = LaunchPlan((), (), (), (Fill(0, 0, 8), Copy(0, 0, 0, 8, 8), Fill(0, 0, 8)), [], [])
    record = {
        "schema": 1,
        "target": {"name": "h100-sxm", "arch": "sm_90a"},
        "toolchain": {"versions": {"jax": "0.12.0"}, "ptxas": "13.5.37"},
        "minimum_driver": {"cuda": "13.0", "linux": "580.65.06"},
        "plan": {**plan_to_json(plan), "buffers": buffers},
        "kernels": list(kernels),
        "blobs": {key: len(data) for key, data in blobs.items()},
    }
    return Artifact(record, blobs.__getitem__)


def test_resources_of_two_kernels_of_one_name_are_two_rows() -> None:
    text = resources_text(_artifact(*(_kernel(cubin, ptx=PTX) for cubin in CUBINS)))
    assert [line.split() for line in text.splitlines()[1:]] == [
        ["kernel", "mosaic", "40", "8", "?", "?", "16", "32", "1", "5"],
        ["kernel", "mosaic", "40", "8", "?", "?", "16", "32", "1", "6"],
    ]


def test_a_plan_without_kernels_says_so_in_every_view() -> None:
    artifact = _artifact()
    assert ptx_text(artifact) == "// no kernels"
    assert sass_text(artifact) == "// no kernels"
    assert resources_text(artifact) == "no kernels"
    assert summary_text(artifact).endswith("launches\nresources\n  no kernels")


def test_ptx_shared_by_kernels_is_shown_once_and_what_lacks_it_is_named() -> None:
    kernels = [
        _kernel(CUBINS[0], ptx=PTX),
        _kernel(CUBINS[0], ptx=PTX),
        _kernel(CUBINS[1], ptx=None, name="fusion"),
    ]
    assert ptx_text(_artifact(*kernels)) == (
        ".version 9.0\n.target sm_90a\n\n// fusion: a kernel from XLA, which has no PTX"
    )


def test_the_summary_of_a_plan_without_launches_is_whole() -> None:
    lines = summary_text(_artifact()).splitlines()
    assert lines[1:8] == [
        "target     h100-sxm (sm_90a)",
        "toolchain  jax 0.12.0, ptxas 13.5.37",
        "driver     CUDA 13.0, Linux 580.65.06 or newer",
        "inputs     none",
        "outputs    none",
        "buffers    1 temporary; 64 bytes",
        "steps      2 fills, 1 copy",
    ]
