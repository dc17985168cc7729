"""From what was translated to an artifact: arrays to buffers, architecture, driver."""

from typing import Any

import pytest
from msgspec.structs import replace

from pallasc.compiler.lowering.compile import build_plan, check_architecture, minimum_driver_of
from pallasc.compiler.lowering.translate import Translation
from pallasc.errors import CompileError, CorruptError
from pallasc.specs.artifacts.artifact import KernelResources
from pallasc.specs.artifacts.cubin import parse_cubin
from pallasc.specs.artifacts.plan import Binding, Buffer, LaunchPlan
from pallasc.specs.canonical import digest

_X = Binding("x", "f32", (4,), 0)
_OUT = Binding("out", "f32", (4,), 0)


def _signature(inputs: int, outputs: int) -> LaunchPlan:
    tree: Any = {str(n): n for n in range(inputs)}
    results = {"tuple": list(range(outputs))}
    return LaunchPlan((), (_X,) * inputs, (_OUT,) * outputs, (), tree, results)


def _translation() -> Translation:
    return Translation([Buffer("input", 16), Buffer("output", 16)], [1])


def test_arrays_are_bound_to_the_buffers_that_hold_them() -> None:
    plan = build_plan(_translation(), _signature(1, 1))
    assert [(b.path, b.buffer) for b in (*plan.inputs, *plan.outputs)] == [("x", 0), ("out", 1)]
    with pytest.raises(CompileError, match="the executable has 1 inputs, the function 2"):
        build_plan(_translation(), _signature(2, 1))
    with pytest.raises(CompileError, match="the executable has 1 outputs, the function 2"):
        build_plan(_translation(), _signature(1, 2))
    small = Translation([Buffer("input", 8), Buffer("output", 16)], [1])
    with pytest.raises(CorruptError, match="array x takes bytes 0 to 16 of buffer 0"):
        build_plan(small, _signature(1, 1))


@pytest.fixture(scope="module")
def mosaic(build: Any) -> tuple[Translation, KernelResources]:
    result = build("resources", "sm_90a")["small"]
    (kernel,) = result.artifact.kernels
    return Translation([], [], [], dict(result.blobs)), kernel


def test_a_cubin_for_another_architecture_is_refused(mosaic: Any) -> None:
    translation, kernel = mosaic
    check_architecture(translation, [kernel], "sm_90a")
    with pytest.raises(CompileError, match=r"asked for sm_100a, the cubin of body.* is for sm_90"):
        check_architecture(translation, [kernel], "sm_100a")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_a_record_says_for_what_it_was_compiled(build: Any, arch: str) -> None:
    record = build("resources", arch)["small"].record
    assert record["target"]["arch"] == arch
    toolkit = parse_cubin(build("resources", arch)["small"].artifact.cubin()).toolkit
    assert record["minimum_driver"]["cuda"] == f"{toolkit.split('.')[0]}.0"
    assert record["blobs"] == {
        key: len(b) for key, b in build("resources", arch)["small"].blobs.items()
    }


def test_a_function_without_kernels_needs_any_supported_driver(build: Any) -> None:
    record = build("signatures")["given_back"].record
    assert record["kernels"] == []
    assert record["minimum_driver"] == {"cuda": "12.0", "linux": "525.60.13"}


@pytest.mark.parametrize(
    ("arch", "ptxas", "driver"),
    [
        ("sm_80", "12.9.86", {"cuda": "12.0", "linux": "525.60.13"}),
        ("sm_90a", "12.9.86", {"cuda": "12.0", "linux": "525.60.13"}),
        ("sm_100a", "12.9.86", {"cuda": "12.8", "linux": "570.26"}),
    ],
)
def test_a_cubin_that_names_no_tool_is_from_the_toolkit_of_the_assembler(
    build: Any, arch: str, ptxas: str, driver: dict[str, str]
) -> None:
    """As ptxas 12.9 writes them before sm_100: without the notes of its tools."""
    artifact = build("resources", arch)["small"].artifact
    (kernel,) = artifact.kernels
    cubin = artifact.cubin().replace(b".note.nv.tkinfo", b".note.nv.absent")
    assert (parse_cubin(cubin).toolkit, parse_cubin(cubin).tools) == ("", ())
    unnamed = replace(kernel, cubin=digest(cubin))
    translation = Translation([], [], [], {unnamed.cubin: cubin})
    assert minimum_driver_of(translation, [unnamed], {"ptxas": ptxas}) == driver
    with pytest.raises(CompileError, match="from CUDA toolkit unknown"):
        minimum_driver_of(translation, [unnamed], {})
