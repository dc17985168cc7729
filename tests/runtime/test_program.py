"""Programs: what the driver gets is what the plan says."""

from typing import Any

import made
import pytest
from msgspec.structs import replace

from pallasc.errors import CorruptError
from pallasc.runtime.calls.launch import Program, load_program
from pallasc.runtime.device.devices import get_device
from pallasc.runtime.matching.candidates import Candidate
from pallasc.specs.artifacts.plan import Bytes, Pointer


def _program(artifact: Any, device: int = 0) -> Program:
    return Program(Candidate("made", {}, artifact), get_device(device))


def _run(artifact: Any, *pointers: int) -> None:
    _launch(_program(artifact), *pointers)


def _launch(program: Program, *pointers: int, workspace: int = 0) -> None:
    program.launch(0, pointers, workspace)


@pytest.fixture(autouse=True, params=["C", "cuda-python"])
def way(request: pytest.FixtureRequest) -> None:
    """Launch each in both ways."""
    if request.param == "C":
        request.getfixturevalue("native")
    else:
        request.getfixturevalue("python_only")


def test_grid_block_memory_cluster_and_pdl_are_as_in_the_plan(runtime: Any, framework: Any) -> None:
    step = made.launch(
        "three", 0, 1, 2, grid=(8, 3, 2), block=(64, 2, 1), cluster=(2, 1, 2),
        dynamic_smem_bytes=150_000, pdl=True,
    )  # fmt: skip
    _run(made.artifact(step), *(framework.tensor("f32[4, 64]").pointer for _ in range(3)))
    (launch,) = runtime.launches
    assert (launch.grid, launch.block, launch.cluster) == ((8, 3, 2), (64, 2, 1), (2, 1, 2))
    assert (launch.smem_bytes, launch.pdl) == (150_000, True)
    assert sorted(id_ for id_, _ in launch.attributes) == [4, 6]


@pytest.mark.parametrize(
    ("changes", "sets"),
    [({}, 0), ({"dynamic_smem_bytes": 49_152}, 0), ({"dynamic_smem_bytes": 49_153}, 1),
     ({"grid": (16, 1, 1), "cluster": (8, 1, 1)}, 0),
     ({"grid": (16, 1, 1), "cluster": (16, 1, 1)}, 1)],
)  # fmt: skip
def test_large_memory_and_clusters_are_allowed_first(
    changes: dict[str, Any], sets: int, runtime: Any, framework: Any
) -> None:
    artifact = made.artifact(made.launch("three", 0, 1, 2, **changes))
    _run(artifact, *(framework.tensor("f32[4, 64]").pointer for _ in range(3)))
    assert runtime.count("cuKernelSetAttribute") == sets
    assert runtime.launches[0].cluster == changes.get("cluster")


def test_tensor_maps_of_windows_are_encoded_too(runtime: Any, framework: Any) -> None:
    bounds = {"lower": [-1, -2], "upper": [0, 1]}
    window = {**bounds, "channels_per_pixel": 32, "pixels_per_column": 64}
    wanted = replace(
        made.tensor_map(0, dims=(64, 8, 16, 2)),
        box=(),
        element_strides=(1, 2, 1, 1),
        swizzle=64,
        im2col=window,
    )
    step = made.launch("mapped", 1, made.maps(*[wanted] * 4))
    shape = "f16[2, 16, 8, 64]"
    program = _program(made.artifact(step, inputs={"a": shape}, outputs=["f16[4]"]))
    for _ in range(2):  # the second time they are copied
        a, out = framework.tensor(shape).pointer, framework.tensor("f16[4]").pointer
        _launch(program, a, out)
        for _, got in runtime.launches[-1].maps(1):
            assert got.address == a
            for name in ("dtype", "dims", "strides", "element_strides", "swizzle", "box"):
                assert getattr(got, name) == getattr(wanted, name), name
            assert got.im2col == {
                "lower": (-1, -2), "upper": (0, 1), "channels": 32, "pixels": 64,
            }  # fmt: skip


def test_values_are_passed_byte_by_byte(runtime: Any, framework: Any) -> None:
    artifact = made.artifact(
        made.launch("valued", Bytes(4, "01020304", ()), 1), inputs={"a": "f32[4, 64]"}
    )
    a, out = (framework.tensor("f32[4, 64]").pointer for _ in range(2))
    _run(artifact, a, out)
    assert runtime.launches[0].parameters[0] == bytes([1, 2, 3, 4])


def test_temporaries_lie_in_order_in_the_workspace(runtime: Any, framework: Any) -> None:
    artifact = made.artifact(
        made.launch("four", 0, 3, Pointer(4, 4), 2), temporaries=[100, 300], outputs=["f32[4, 64]"]
    )
    program = _program(artifact)
    assert program.workspace_bytes == 256 + 512
    pointers = [framework.tensor("f32[4, 64]").pointer for _ in range(3)]
    workspace = framework.tensor("u8[768]").pointer
    _launch(program, *pointers, workspace=workspace)
    (launch,) = runtime.launches
    assert [launch.pointer(n) for n in (1, 2)] == [workspace, workspace + 256 + 4]


def test_a_variant_is_loaded_at_once_and_once_for_all_devices(runtime: Any) -> None:
    runtime.devices("9.0", "9.0")
    candidate = Candidate("made", {}, made.add())
    assert load_program(candidate, get_device(0)) is load_program(candidate, get_device(0))
    assert runtime.count("cuKernelGetFunction") == runtime.count("cuFuncLoad") == 1
    load_program(candidate, get_device(1))
    assert runtime.count("cuLibraryLoadData") == 1
    assert runtime.count("cuKernelGetFunction") == 2
    with pytest.raises(CorruptError, match="for sm_100a, but its cubin is for sm_90"):
        _program(made.add(arch="sm_100a"))


def test_a_constant_of_another_size_is_refused(runtime: Any) -> None:
    whole = made.artifact(made.launch("four", 0, 1, 2, 3), constants=[bytes(64)])
    larger = made.changed(whole, lambda plan: plan["buffers"][3].update(size=128))
    with pytest.raises(CorruptError, match="constant 3 has 64 bytes, not 128"):
        _program(larger)
