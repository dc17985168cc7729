"""Launch plans as text: exact lines for every kind of step and parameter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pallasc.cli.output.artifact_text import binding_text, launch_text, plan_text
from pallasc.specs.artifacts.plan import (
    Binding,
    Buffer,
    Bytes,
    Copy,
    Fill,
    Launch,
    LaunchPlan,
    Pointer,
    Step,
    TensorMap,
)

CUBIN = "c0ffee" * 10 + "abcd"
MAP = TensorMap(
    buffer=0,
    offset=0,
    dtype="float16",
    dims=(64, 1024),
    strides=(8192,),
    box=(64, 128),
    element_strides=(1, 1),
    swizzle=128,
)
LAUNCH = Launch(
    kernel="main_kernel",
    cubin=CUBIN,
    grid=(132, 1, 1),
    cluster=(2, 1, 1),
    block=(384, 1, 1),
    dynamic_smem_bytes=229440,
    pdl=True,
    parameters=(),
    label="custom-call.1",
)


def _plan(*steps: Step) -> LaunchPlan:
    return LaunchPlan(
        buffers=(Buffer("input", 4096), Buffer("temporary", 64)),
        inputs=(Binding("a", "f16", (32, 64), 0),),
        outputs=(Binding("out", "f16", (32, 64), 0),),
        steps=steps,
        input_tree={"a": 0},
        output_tree=0,
    )


def _step(step: Step) -> list[str]:
    return plan_text(_plan(step)).partition("steps: 1\n")[2].splitlines()


def test_buffers_are_numbered_with_role_size_and_arrays() -> None:
    constant = Buffer("constant", 16, 128, "ab" * 32)
    plan = replace(_plan(), buffers=(*_plan().buffers, constant))
    assert plan_text(plan) == (
        "buffers: 3\n"
        "   0: input      4096 bytes  input a: f16[32, 64]  output out: f16[32, 64]\n"
        "   1: temporary  64 bytes\n"
        "   2: constant   16 bytes  aligned to 128  abababababab\n"
        "steps: 0"
    )


@pytest.mark.parametrize(
    ("step", "line"),
    [
        (Fill(1, 0, 64), "   0: fill 64 bytes of buffer 1 with 0x00"),
        (Fill(1, 16, 32, 5, 4), "   0: fill 32 bytes of buffer 1+16 with 0x00000005"),
        (Copy(0, 0, 1, 8, 16), "   0: copy 16 bytes of buffer 0 to buffer 1+8"),
    ],
)
def test_a_fill_and_a_copy_take_one_line(step: Step, line: str) -> None:
    assert _step(step) == [line]


def test_a_launch_names_kernel_dimensions_shared_memory_and_cubin() -> None:
    assert _step(LAUNCH) == [
        "   0: launch main_kernel grid=(132,1,1) block=(384,1,1) cluster=(2,1,1) smem=229440 pdl",
        "      mosaic custom-call.1, cubin c0ffeec0ffee",
    ]


def test_a_launch_without_cluster_and_pdl_leaves_them_out() -> None:
    launch = replace(LAUNCH, cluster=None, pdl=False, dynamic_smem_bytes=0)
    assert launch_text(launch) == "main_kernel grid=(132,1,1) block=(384,1,1) smem=0"


@pytest.mark.parametrize(
    ("parameter", "lines"),
    [
        (Pointer(0, 0), ["param 0: pointer to buffer 0"]),
        (Pointer(1, 32), ["param 0: pointer to buffer 1+32"]),
        (Bytes(4, "01000000", ()), ["param 0: 4 bytes: data 01000000"]),
        (Bytes(4, "00000000", ()), ["param 0: 4 bytes"]),
        (
            Bytes(256, "", ((0, MAP), (128, replace(MAP, buffer=1, offset=8, swizzle=0)))),
            [
                "param 0: 256 bytes: 2 tensor maps",
                "  at 0: buffer 0 float16 dims=(64,1024) strides_bytes=(8192) box=(64,128)"
                " swizzle=128",
                "  at 128: buffer 1+8 float16 dims=(64,1024) strides_bytes=(8192) box=(64,128)"
                " swizzle=0",
            ],
        ),
        (
            Bytes(
                128,
                "",
                (
                    (
                        0,
                        replace(
                            MAP,
                            element_strides=(1, 2),
                            interleave=16,
                            l2_promotion=256,
                            nan_fill=True,
                            im2col={"pixels": 8, "channels": 4},
                        ),
                    ),
                ),
            ),
            [
                "param 0: 128 bytes: 1 tensor map",
                "  at 0: buffer 0 float16 dims=(64,1024) strides_bytes=(8192) box=(64,128)"
                " swizzle=128 element_strides=(1,2) interleave=16 l2_promotion=256 nan_fill"
                " im2col channels=4 pixels=8",
            ],
        ),
    ],
)
def test_every_parameter_has_a_line_and_every_tensor_map_too(
    parameter: Pointer | Bytes, lines: list[str]
) -> None:
    shown = _step(replace(LAUNCH, parameters=(parameter,)))[2:]
    assert shown == [f"      {line}" for line in lines]


def test_a_scalar_is_an_array_without_dimensions() -> None:
    assert binding_text(Binding("x", "f32", (), 0)) == "f32[]"
    assert binding_text(Binding("x", "f32", (4, 8), 0, (0, 1))) == "f32[4, 8]{0,1}"
