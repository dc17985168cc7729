"""Artifacts as text: exact lines for each kind of step and parameter, resources, and metrics."""

from pathlib import Path
from typing import Any

from msgspec.structs import asdict, replace

from pallasc.analysis.loops import Loop
from pallasc.analysis.metrics import KernelMetrics, occupancy_of
from pallasc.analysis.roofline import Roofline
from pallasc.analysis.work import Work
from pallasc.cli.output.artifact_text import (
    binding_text,
    launch_text,
    metrics_text,
    plan_text,
    resources_text,
    summary_text,
)
from pallasc.cli.output.source_text import ptx_text, sass_text
from pallasc.specs.artifacts.artifact import Artifact, KernelResources
from pallasc.specs.artifacts.plan import (
    Binding,
    Buffer,
    Bytes,
    Copy,
    Fill,
    Launch,
    LaunchPlan,
    Peers,
    PeerTable,
    Pointer,
    TensorMap,
    plan_to_json,
)
from pallasc.specs.canonical import digest
from pallasc.specs.gpus import MODELS

PTX = b".version 9.0\n.target sm_90a\n"
CUBINS = [b"first", b"second"]
PAGE = Path(__file__).parents[2] / "docs" / "inspect.md"
MAP = TensorMap(0, 0, "float16", (64, 1024), (8192,), (64, 128), (1, 1), swizzle=128)
FULL_MAP = replace(
    MAP,
    buffer=1,
    offset=8,
    swizzle=0,
    element_strides=(1, 2),
    interleave=16,
    l2_promotion=256,
    nan_fill=True,
    im2col={"pixels": 8, "channels": 4},
)
LAUNCH = Launch(
    "main_kernel", "c0ffee" * 10 + "abcd", (132, 1, 1), (2, 1, 1), (384, 1, 1), 229440,
    True, (Pointer(0, 0), Pointer(1, 32), Bytes(4, "01000000", ()), Bytes(4, "00000000", ()),
           Bytes(256, "", ((0, MAP), (128, FULL_MAP)))),
    label="custom-call.1",
)  # fmt: skip


def test_a_plan_has_a_line_for_each_buffer_step_parameter_and_tensor_map() -> None:
    plan = LaunchPlan(
        (Buffer("input", 4096), Buffer("temporary", 64), Buffer("constant", 16, 128, "ab" * 32)),
        (Binding("a", "f16", (32, 64), 0),),
        (Binding("out", "f16", (32, 64), 0),),
        (Fill(1, 0, 64), Fill(1, 16, 32, 5, 4), Copy(0, 0, 1, 8, 16), LAUNCH),
        {"a": 0},
        0,
    )
    assert plan_text(plan).splitlines() == [
        "buffers: 3",
        "   0: input      4096 bytes  input a: f16[32, 64]  output out: f16[32, 64]",
        "   1: temporary  64 bytes",
        "   2: constant   16 bytes  aligned to 128  abababababab",
        "steps: 4",
        "   0: fill 64 bytes of buffer 1 with 0x00",
        "   1: fill 32 bytes of buffer 1+16 with 0x00000005",
        "   2: copy 16 bytes of buffer 0 to buffer 1+8",
        "   3: launch main_kernel grid=(132,1,1) block=(384,1,1) cluster=(2,1,1) smem=229440 pdl",
        "      mosaic custom-call.1, cubin c0ffeec0ffee",
        "      param 0: pointer to buffer 0",
        "      param 1: pointer to buffer 1+32",
        "      param 2: 4 bytes: data 01000000",
        "      param 3: 4 bytes",
        "      param 4: 256 bytes: 2 tensor maps",
        "        at 0: buffer 0 float16 dims=(64,1024) strides_bytes=(8192) box=(64,128)"
        " swizzle=128",
        "        at 128: buffer 1+8 float16 dims=(64,1024) strides_bytes=(8192) box=(64,128)"
        " swizzle=0 element_strides=(1,2) interleave=16 l2_promotion=256 nan_fill"
        " im2col channels=4 pixels=8",
    ]
    assert plan_text(replace(plan, steps=())).endswith("\nsteps: 0")
    launch = replace(LAUNCH, cluster=None, pdl=False, dynamic_smem_bytes=0)
    assert launch_text(launch) == "main_kernel grid=(132,1,1) block=(384,1,1) smem=0"
    assert binding_text(Binding("x", "f32", (), 0)) == "f32[]"
    assert binding_text(Binding("x", "f32", (4, 8), 0, (0, 1))) == "f32[4, 8]{0,1}"


def test_a_plan_over_devices_has_its_mesh_and_the_table_of_peers() -> None:
    table = PeerTable(4, ((0, 0), (1, 64)), (1,), multicast=True)
    launch = replace(LAUNCH, parameters=(Pointer(0, 0), Peers()), peer_table=table)
    lines = plan_text(LaunchPlan((), (), (), (launch,), [], [], mesh=(("x", 4),))).splitlines()
    assert lines[0] == "mesh: x=4 (4 devices, each with these buffers)"
    assert lines[-2:] == [
        "      param 1: pointer to the peer table",
        "      peers: 14 words, 4 ranks: buffer 0, buffer 1+64; symmetric buffer 1+64; multicast",
    ]


def _kernel(cubin: bytes, *, ptx: bytes | None, name: str = "kernel") -> dict[str, Any]:
    return {
        "name": name,
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
    }


def _artifact(*kernels: dict[str, Any]) -> Artifact:
    blobs = {digest(data): data for data in [PTX, *CUBINS]}
    buffers = [{"role": "temporary", "size": 64, "alignment": 256, "digest": None}]
    plan = LaunchPlan((), (), (), (Fill(0, 0, 8), Copy(0, 0, 0, 8, 8), Fill(0, 0, 8)), [], [])
    record = {
        "schema": 1,
        "target": asdict(MODELS["h100-sxm"]),
        "toolchain": {"versions": {"jax": "0.12.0"}, "ptxas": "13.5.37"},
        "minimum_driver": {"cuda": "13.0", "linux": "580.65.06"},
        "plan": {**plan_to_json(plan), "buffers": buffers},
        "kernels": list(kernels),
        "blobs": {key: len(data) for key, data in blobs.items()},
    }
    return Artifact(record, blobs.__getitem__)


def test_kernels_of_one_name_are_two_rows_and_ptx_that_they_share_is_shown_once() -> None:
    first, second = (_kernel(cubin, ptx=PTX) for cubin in CUBINS)
    text = resources_text(_artifact(first, second))
    assert [line.split() for line in text.splitlines()[1:]] == [
        ["kernel", "mosaic", "40", "8", "?", "?", "16", "32", "1", "5"],
        ["kernel", "mosaic", "40", "8", "?", "?", "16", "32", "1", "6"],
    ]
    fusion = _kernel(CUBINS[1], ptx=None, name="fusion")
    assert ptx_text(_artifact(first, first, fusion)) == (
        ".version 9.0\n.target sm_90a\n\n// fusion: a kernel from XLA, which has no PTX"
    )


def test_a_plan_without_kernels_says_so_in_every_view() -> None:
    artifact = _artifact()
    assert ptx_text(artifact) == sass_text(artifact) == "// no kernels"
    assert resources_text(artifact) == "no kernels"
    lines = summary_text(artifact).splitlines()
    assert lines[1:8] == [
        "target     h100-sxm (sm_90a)",
        "toolchain  jax 0.12.0, ptxas 13.5.37",
        "driver     CUDA 13.0, Linux 580.65.06 or newer",
        "inputs     none",
        "outputs    none",
        "buffers    1 temporary; 64 bytes",
        "steps      2 fills, 1 copy",
    ]
    assert lines[-3:] == ["launches", "resources", "  no kernels"]


def _metrics(work: Work, roofline: Roofline, **changes: object) -> str:
    """Return the numbers of the product of matrices that docs/inspect.md shows."""
    kernel = KernelResources(
        "matmul_body_mosaic_gpu_kernel", "", None, "mosaic", 168, 0, 0, 0, 1, 131_120, 16
    )
    launch = Launch(kernel.name, "", (32, 8, 1), None, (384, 1, 1), 131_120, False, ())
    target = MODELS["h100-sxm"]
    fields: dict[str, Any] = {"instructions": None, "mix": None, "loops": None, **changes}
    metrics = KernelMetrics(
        launch=0,
        kernel=kernel.name,
        origin="mosaic",
        grid=launch.grid,
        block=launch.block,
        cluster=launch.cluster,
        occupancy=occupancy_of(launch, kernel, target),
        work=work,
        roofline=roofline,
        reasons=work.reasons,
        **fields,
    )
    return metrics_text(metrics)


def test_metrics_are_the_text_of_the_documentation() -> None:
    work = Work({"f16": 2 * 1024 * 4096 * 4096}, 536870912, 8388608)
    roofline = Roofline(50331648, 15.0139e-6, 34.7278e-6, 34.7278e-6, "tensor")
    mix = {
        "tensor": 4, "tma": 16, "shared": 8, "constant": 2, "barrier": 59, "integer": 105,
        "conversion": 32, "warp": 11, "move": 97, "uniform": 195, "control": 37,
    }  # fmt: skip
    first = {"tma": 4, "uniform": 60, "integer": 30, "move": 17, "barrier": 14, "control": 12}
    third = {"tensor": 4, "tma": 1, "uniform": 49, "integer": 8, "barrier": 6, "control": 5}
    loops = (
        Loop(0xC70, 1, None, is_wait=False, mix=first, tensor_flops=0),
        Loop(0x1520, 1, None, is_wait=False, mix={"move": 1, "control": 3}, tensor_flops=0),
        Loop(0x1820, 1, None, is_wait=False, mix=third, tensor_flops=2 * 64 * 128 * 64),
        *(Loop(n, 1, None, is_wait=True, mix={}, tensor_flops=0) for n in range(6)),
    )
    text = _metrics(work, roofline, instructions=566, mix=mix, loops=loops)
    assert text in PAGE.read_text("utf-8")


def test_a_launch_without_work_has_no_bound() -> None:
    assert "bound" in _metrics(Work({}, 0, 0), Roofline(1, 1e-9, 0.0, 1e-9, "memory"))
    assert "bound" not in _metrics(Work({}, 0, 0), Roofline(0, 0.0, 0.0, 0.0, "memory"))
