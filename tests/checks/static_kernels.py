"""Small kernels in PTX for the tests of the static level, and the examples of its page."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from pallasc.checks.findings import Finding
from pallasc.checks.static.check import check
from pallasc.specs.artifacts.artifact import KernelResources
from pallasc.specs.artifacts.plan import (
    Binding,
    Buffer,
    Bytes,
    Launch,
    LaunchPlan,
    Pointer,
    TensorMap,
)
from pallasc.specs.gpus import MODELS, Target

PAGE = Path(__file__).resolve().parents[2] / "docs" / "check-rules.md"
H100 = MODELS["h100-sxm"]
HEAD = """\
.version 8.7
.target sm_90a
.address_size 64
.visible .entry kernel(
.param .align 64 .b8 kernel_param_0[128],
.param .u64 kernel_param_1,
.param .u64 kernel_param_2
)
.maxntid 128, 1, 1
{
.reg .pred %p<9>;
.reg .pred %leader;
.reg .pred %elected;
.reg .b32 %r<99>;
.reg .b32 %thread;
.reg .b32 %smem;
.reg .b64 %rd<99>;
.reg .b64 %map;
.reg .b64 %x;
.reg .b64 %y;
.shared .align 16 .b8 __dynamic_shmem__0;
mov.u32 %thread, %tid.x;
elect.sync %r98|%elected, -1;
shr.u32 %r97, %thread, 5;
setp.eq.and.b32 %leader, %r97, 0, %elected;
mov.b64 %rd98, __dynamic_shmem__0;
cvt.u32.u64 %smem, %rd98;
mov.b64 %rd97, kernel_param_0;
cvta.param.u64 %map, %rd97;
ld.param.b64 %x, [kernel_param_1];
ld.param.b64 %y, [kernel_param_2];
"""
MAP = TensorMap(
    buffer=0, offset=0, dtype="bfloat16", dims=(64, 1024), strides=(128,), box=(64, 64),
    element_strides=(1, 1),
)  # fmt: skip
RESOURCES = KernelResources("kernel", "0" * 64, "1" * 64, "mosaic", 40, 0, 0, 0, 0, 65536, 1)
FIRST_LINE = HEAD.count("\n") + 1


def plan_of(body: str, tensor: TensorMap = MAP, **launched: Any) -> LaunchPlan:
    """Return a plan that launches a kernel; it has the output `y` where the body uses it."""
    launch = Launch(
        "kernel", "0" * 64, (1, 1, 1), None, (128, 1, 1), 65536, False,
        (Bytes(128, "", ((0, tensor),)), Pointer(1, 0), Pointer(2, 0)),
    )  # fmt: skip
    launch = dataclasses.replace(launch, **launched)
    buffers = (Buffer("input", 131072), Buffer("input", 1024), Buffer("output", 1024))
    outputs = (Binding("y", "f32", (256,), 2),) if "%y" in body else ()
    inputs = (Binding("a", "bf16", (1024, 64), 0), Binding("x", "f32", (256,), 1))
    return LaunchPlan(buffers, inputs, outputs, (launch,), [0, 1], [0])


def ptx_of(body: str) -> dict[tuple[str, str], str]:
    """Return the PTX of a kernel with a body, by its cubin and name."""
    return {("0" * 64, "kernel"): f"{HEAD}{body.strip()}\nret;\n}}\n"}


def found_in(body: str, target: Target = H100, **launched: Any) -> list[Finding]:
    """Return what the level finds in a kernel with a body."""
    return check(plan_of(body, **launched), [RESOURCES], ptx_of(body), target)


def rules_in(body: str, **launched: Any) -> set[str]:
    """Return the rules that a kernel with a body breaks."""
    return {finding.rule for finding in found_in(body, **launched)}


def examples() -> dict[str, list[tuple[str, str]]]:
    """Return the examples of the page by rule: language and text, the wrong one first."""
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    return {
        section.partition("\n")[0]: re.findall(r"```(ptx|json)\n(.*?)```", section, re.DOTALL)
        for section in sections
    }


EXAMPLES = examples()


def edited(rule: str, *changes: tuple[str, str], which: int = 0) -> str:
    """Return an example of a rule with parts replaced, each of which is there."""
    text = EXAMPLES[rule][which][1]
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text
