"""What authors of kernels put into and around them, and what becomes of it in a plan.

Steps around kernels have tests in `test_translate`, what is refused in `test_unsupported`, several
devices in `test_device_mesh`, profiles in `test_profiles`.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from pallasc.specs.artifacts.plan import Bytes, Copy, Fill, Launch, Pointer


@pytest.fixture(scope="module")
def features(build: Any) -> Any:
    return build("features")


def _places(launch: Launch) -> set[tuple[int, int]]:
    """Return where the arrays of a launch lie, those behind tensor maps too."""
    found = set()
    for parameter in launch.parameters:
        if isinstance(parameter, Pointer):
            found.add((parameter.buffer, parameter.offset))
        elif isinstance(parameter, Bytes):
            found |= {(each.buffer, each.offset) for _, each in parameter.tensor_maps}
    return found


def _launches(result: Any) -> list[tuple[str, set[tuple[int, int]]]]:
    """Return the kernels and the places that they get."""
    return [(launch.kernel, _places(launch)) for launch in result.plan.launches]


def test_an_operand_that_becomes_the_result_is_copied_and_changed_there(features: Any) -> None:
    result = features["aliased"]
    assert result.plan.steps[0] == Copy(1, 0, 2, 0, 512)
    assert [binding.buffer for binding in result.plan.outputs] == [2]
    assert _launches(result)[0][1] == {(0, 0), (2, 0)}


def test_a_reference_is_changed_where_it_lies_by_each_kernel(features: Any) -> None:
    result = features["in_place"]
    assert result.plan.steps[0] == Copy(1, 0, 2, 0, 512)
    assert [places for _, places in _launches(result)] == [{(0, 0), (2, 0)}] * 2
    assert len(result.plan.buffers) == 3


def test_nested_arrays_go_through_one_kernel(features: Any) -> None:
    plan = features["tree"].plan
    assert [(array.path, array.shape) for array in plan.inputs] == [
        ("x", (128,)), ("more.left", (128,)), ("more.rest.0", (256,)),
    ]  # fmt: skip
    assert [(array.path, array.dtype, array.shape) for array in plan.outputs] == [
        ("out.a.0", "bf16", (128,)), ("out.a.1", "f32", ()), ("out.b", "f32", (256,)),
    ]  # fmt: skip
    assert plan.output_tree == {"dict": {"a": {"tuple": [0, 1]}, "b": 2}}
    assert len(plan.steps) == 1
    assert _launches(features["tree"])[0][1] == {(number, 0) for number in range(6)}


def test_a_kernel_reads_scalars_from_their_own_buffers(features: Any) -> None:
    result = features["scalars"]
    assert [result.plan.buffers[number].size for number in (1, 2)] == [4, 4]
    assert _launches(result)[0][1] == {(number, 0) for number in range(4)}


def test_a_kernel_takes_and_gives_arrays_without_elements(features: Any) -> None:
    plan = features["empty"].plan
    assert [(array.shape, plan.buffers[array.buffer].size) for array in plan.outputs] == [
        ((128,), 512), ((0, 4), 0),
    ]  # fmt: skip
    assert len(plan.launches) == 1
    assert not any(isinstance(step, Copy) for step in plan.steps)


def test_a_semaphore_is_zero_before_every_launch(features: Any) -> None:
    result = features["signalled"]
    zeros = {
        (number, 0)
        for number, buffer in enumerate(result.plan.buffers)
        if buffer.digest and not any(result.artifact.blob(buffer.digest))
    }
    launched = 0
    for step in result.plan.steps:
        if isinstance(step, Launch):
            assert zeros & _places(step)
            zeros -= _places(step)
            launched += 1
        elif isinstance(step, Copy) and (step.source, step.source_offset) in zeros:
            zeros.add((step.target, step.target_offset))
        elif isinstance(step, Fill) and step.value == 0:
            zeros.add((step.buffer, step.offset))
    assert launched == 2


def test_integers_of_four_bits_are_packed(features: Any) -> None:
    plan = features["int4"].plan
    assert (plan.inputs[0].dtype, plan.buffers[0].size) == ("i4", 64 * 64 // 2)
    assert (plan.outputs[0].dtype, plan.buffers[1].size) == ("bf16", 64 * 64 * 2)


def test_floats_of_eight_bits_are_read_and_written(features: Any) -> None:
    plan = features["float8"].plan
    assert [(array.dtype, plan.buffers[array.buffer].size) for array in plan.outputs] == [
        ("f32", 64 * 64 * 4), ("f8e4m3fn", 64 * 64),
    ]  # fmt: skip
    assert "e4m3x2" in features["float8"].artifact.ptx()


def test_a_product_of_floats_of_eight_bits_is_a_kernel_of_xlas(features: Any) -> None:
    origins = [launch.origin for launch in features["float8_product"].plan.launches]
    assert origins[0] == "xla"
    assert origins[-1] == "mosaic"


def test_a_kernel_under_vmap_has_a_block_for_each_row(features: Any) -> None:
    launches = features["mapped"].plan.launches
    assert [math.prod(launch.grid) for launch in launches] == [128, 128]
    assert all(launch.origin == "mosaic" for launch in launches)
    sizes = [features["mapped"].plan.buffers[n].size for n in range(4)]
    assert sizes == [128 * 128 * 4, 128 * 4, 128 * 128 * 4, 128 * 128 * 4]


def test_kernels_inside_of_jit_are_launched_in_their_order(features: Any) -> None:
    names = [name for name, _ in _launches(features["jitted"])]
    assert names == ["body_mosaic_gpu_kernel"] * 2 + ["loop_multiply_fusion"]


def test_forward_and_backward_of_a_custom_rule_are_two_artifacts(features: Any) -> None:
    forward, backward = features["forward"], features["backward"]
    assert _launches(forward) == [("forward_body_mosaic_gpu_kernel", {(0, 0), (1, 0)})]
    assert _launches(backward) == [("backward_body_mosaic_gpu_kernel", {(0, 0), (1, 0), (2, 0)})]
    assert forward.key != backward.key


def test_a_kernel_that_prints_has_the_text_and_calls_printf(features: Any) -> None:
    ptx = features["printing"].artifact.ptx()
    assert "vprintf" in ptx
    assert ",".join(str(ord(letter)) for letter in "x[0] is") in ptx.replace(" ", "")
