"""Whole functions around kernels: every step, buffer and cubin of their plans."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from conftest import JAX, Builder, Result
from pallasc.compiler import translate as module
from pallasc.compiler.translate import check_signature, refuse_unknown_fields, translate
from pallasc.compiler.xla_schema import message_type
from pallasc.errors import CompileError, UnsupportedError
from pallasc.specs.cubin import Kernel, Parameter, parse_cubin
from pallasc.specs.plan import Bytes, Copy, Fill, Launch, Pointer

_ARRAY = 128 * 128 * 4
_MOSAIC = "body_mosaic_gpu_kernel"


@pytest.fixture(scope="module")
def functions(build: Builder) -> dict[str, Result]:
    return build("functions")


def _steps(result: Result) -> list[Any]:
    """Return the steps in short: (kernel, its pointers), or the step itself."""
    return [
        (step.kernel, [(p.buffer, p.offset) for p in step.parameters if isinstance(p, Pointer)])
        if isinstance(step, Launch)
        else step
        for step in result.plan.steps
    ]


def _buffers(result: Result) -> list[tuple[str, int]]:
    return [(buffer.role, buffer.size) for buffer in result.plan.buffers]


def _constant(result: Result) -> bytes:
    (found,) = [buffer for buffer in result.plan.buffers if buffer.role == "constant"]
    return result.artifact.blob(found.digest or "")


def test_work_around_a_kernel_becomes_five_launches_over_three_buffers(
    functions: dict[str, Result],
) -> None:
    result = functions["around"]
    assert _buffers(result) == [("input", _ARRAY), ("output", _ARRAY), ("temporary", _ARRAY)]
    assert _steps(result) == [
        (_MOSAIC, [(0, 0), (1, 0)]),
        ("wrapped_transpose", [(1, 0), (2, 0)]),
        ("loop_sine_fusion", [(2, 0), (1, 0)]),
        (_MOSAIC, [(1, 0), (2, 0)]),
        ("loop_add_fusion", [(2, 0), (1, 0)]),
    ]
    assert [launch.origin for launch in result.plan.launches] == [
        "mosaic", "xla", "xla", "mosaic", "xla",
    ]  # fmt: skip
    assert [launch.grid for launch in result.plan.launches] == [
        (1, 1, 1), (16, 1, 1), (128, 1, 1), (1, 1, 1), (128, 1, 1),
    ]  # fmt: skip
    assert all(launch.block == (128, 1, 1) for launch in result.plan.launches)


def test_every_kernel_of_a_function_comes_with_its_cubin(functions: dict[str, Result]) -> None:
    result = functions["around"]
    launches = result.plan.launches
    assert len({launch.cubin for launch in launches}) == 4  # the Mosaic kernel is one
    for launch in launches:
        cubin = parse_cubin(result.artifact.blob(launch.cubin))
        assert cubin.sm == 90
        assert [p.size for p in cubin.kernels[launch.kernel].parameters] == [8, 8]


def test_a_constant_array_is_copied_and_zeros_that_add_nothing_vanish(
    functions: dict[str, Result],
) -> None:
    result = functions["zeros_and_constant"]
    assert _buffers(result) == [
        ("input", _ARRAY), ("output", _ARRAY), ("output", 12), ("constant", 12),
    ]  # fmt: skip
    assert _steps(result) == [(_MOSAIC, [(0, 0), (1, 0)]), Copy(3, 0, 2, 0, 12)]
    assert _constant(result) == np.array([1, 2, 3], np.float32).tobytes()


@pytest.mark.parametrize("name", ["zeroed_kernel_input", "filled_kernel_input"])
def test_zeros_that_a_kernel_reads_are_written_into_a_temporary(
    functions: dict[str, Result], name: str
) -> None:
    result = functions[name]
    # The temporary starts with a table of addresses that XLA keeps for the kernel's two results.
    assert _buffers(result)[2:] == [("temporary", 256 + 2 * _ARRAY)]
    assert _steps(result) == [
        ("loop_broadcast_fusion", [(2, 256)]),
        (_MOSAIC, [(0, 0), (2, 256), (1, 0), (2, 256 + _ARRAY)]),
    ]


@pytest.mark.parametrize(("name", "order"), [("constant_kernel_input", "C"),
                                             ("transposed_constant", "F")])  # fmt: skip
def test_a_constant_that_a_kernel_reads_is_a_buffer_with_its_bytes(
    functions: dict[str, Result], name: str, order: Any
) -> None:
    result = functions[name]
    expected = np.arange(128 * 128, dtype=np.float32).reshape(128, 128)
    assert _buffers(result)[2] == ("constant", _ARRAY)
    assert _constant(result) == expected.tobytes(order)
    assert _steps(result) == [(_MOSAIC, [(0, 0), (2, 0), (1, 0), (3, 256)])]


def test_an_aligned_slice_is_an_offset_from_jax_0_12_on_and_a_copy_before(
    functions: dict[str, Result],
) -> None:
    steps = _steps(functions["aligned_slice"])
    if JAX >= (0, 12):
        assert steps == [(_MOSAIC, [(0, _ARRAY // 2), (1, 0)])]
    else:
        half = _ARRAY // 2
        assert steps == [Copy(0, half, 2, 0, half), (_MOSAIC, [(2, 0), (1, 0)])]


def test_a_slice_along_the_last_dimension_is_a_kernel(functions: dict[str, Result]) -> None:
    steps = _steps(functions["slices"])
    assert steps[0][0].startswith("wrapped_slice")
    assert steps[-1][0] == "loop_add_fusion"


def test_a_slice_of_a_result_is_a_copy_from_its_offset(functions: dict[str, Result]) -> None:
    assert _steps(functions["slice_of_result"]) == [
        (_MOSAIC, [(0, 0), (2, 0)]),
        Copy(2, 3 * 128 * 4, 1, 0, 2 * 128 * 4),
    ]


def test_a_kernel_on_a_slice_that_is_not_aligned_is_refused_where_xla_does_not_copy_it(
    functions: dict[str, Result],
) -> None:
    result = functions["misaligned_slice"]
    if JAX >= (0, 12):
        assert "a Mosaic kernel on a slice that starts at byte 128" in result.error["message"]
    else:
        assert _steps(result)[0] == Copy(0, 128, 2, 0, 64 * 32 * 4)


@pytest.mark.parametrize(
    "name", ["matmul", "big_matmul", "batched_matmul", "f64_matmul", "i8_matmul"]
)
def test_matrix_products_are_kernels_made_by_triton(
    functions: dict[str, Result], name: str
) -> None:
    launches = functions[name].plan.launches
    (product,) = [launch for launch in launches if launch.kernel.startswith("gemm_fusion_dot")]
    assert product.dynamic_smem_bytes > 0
    assert product.origin == "xla"


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("sort", "sort_"), ("top", "sort_"), ("big_sort_free", ""), ("uniform", "loop_add_fusion"),
        ("cumulative", "loop_add_fusion"), ("argmax", "input_reduce_fusion"),
        ("scatter", "input_scatter_fusion"), ("gather", "loop_gather_fusion"),
        ("dynamic", "loop_dynamic_slice_fusion"), ("updated", "loop_pad_fusion"),
        ("rbg", "input_concatenate_fusion"), ("column_sum", "input_reduce_fusion"),
        ("column_max", "input_reduce_fusion"),
    ][:2] + [
        ("uniform", "loop_add_fusion"), ("cumulative", "loop_add_fusion"),
        ("argmax", "input_reduce_fusion"), ("scatter", "input_scatter_fusion"),
        ("gather", "loop_gather_fusion"), ("dynamic", "loop_dynamic_slice_fusion"),
        ("updated", "loop_pad_fusion"), ("rbg", "input_concatenate_fusion"),
        ("column_sum", "input_reduce_fusion"), ("column_max", "input_reduce_fusion"),
    ],
)  # fmt: skip
def test_what_xla_makes_kernels_of_is_launched(
    functions: dict[str, Result], name: str, kernel: str
) -> None:
    assert any(launch.kernel.startswith(kernel) for launch in functions[name].plan.launches)


def test_several_outputs_lie_in_buffers_in_their_order(functions: dict[str, Result]) -> None:
    plan = functions["several"].plan
    assert [binding.buffer for binding in plan.outputs] == [2, 3, 4]
    assert [binding.path for binding in plan.outputs] == ["out.0", "out.1", "out.2"]
    assert plan.output_tree == {"tuple": [0, 1, 2]}


def test_an_unused_argument_keeps_its_place(functions: dict[str, Result]) -> None:
    plan = functions["unused"].plan
    assert [(b.path, b.dtype, b.shape, b.buffer) for b in plan.inputs] == [
        ("x", "f32", (128, 128), 0),
        ("y", "i32", (7,), 1),
    ]
    assert all(p.buffer != 1 for step in plan.launches for p in step.parameters)  # type: ignore[union-attr]


def test_an_output_that_is_an_input_is_copied(functions: dict[str, Result]) -> None:
    assert Copy(1, 0, 2, 0, 28) in functions["passed_through"].plan.steps


def test_an_output_given_twice_lies_in_two_buffers(functions: dict[str, Result]) -> None:
    result = functions["twice"]
    assert [binding.buffer for binding in result.plan.outputs] == [1, 2]
    assert Copy(1, 0, 2, 0, _ARRAY) in result.plan.steps


def test_scalars_are_arrays_of_no_dimensions(functions: dict[str, Result]) -> None:
    plan = functions["scalars"].plan
    assert (plan.inputs[1].shape, plan.buffers[plan.inputs[1].buffer].size) == ((), 4)
    assert plan.outputs[1].shape == ()


def test_empty_arrays_have_buffers_of_no_bytes(functions: dict[str, Result]) -> None:
    plan = functions["empty"].plan
    assert [b.shape for b in plan.outputs] == [(128, 128), (0, 4), (0, 3)]
    assert [plan.buffers[b.buffer].size for b in plan.outputs] == [_ARRAY, 0, 0]
    assert functions["only_empty"].plan.steps == ()


def test_arrays_of_every_dtype_have_dense_buffers(functions: dict[str, Result]) -> None:
    plan = functions["all_dtypes"].plan
    sizes = {binding.dtype: plan.buffers[binding.buffer].size for binding in plan.inputs}
    assert sizes == {
        "i4": 16, "u4": 16, "bool": 32, "i8": 32, "u8": 32, "f8e4m3fn": 32, "f8e5m2": 32,
        "i16": 64, "u16": 64, "f16": 64, "bf16": 64, "i32": 128, "u32": 128, "f32": 128,
        "i64": 256, "u64": 256, "f64": 256, "c64": 256, "c128": 512,
    }  # fmt: skip
    assert {b.dtype for b in plan.outputs} == set(sizes)


def test_pytrees_keep_their_structure(functions: dict[str, Result]) -> None:
    plan = functions["nested"].plan
    assert [b.path for b in plan.inputs] == ["x", "more.first", "more.rest.0"]
    assert plan.input_tree == {"x": 0, "more": {"dict": {"first": 1, "rest": [2, None]}}}
    assert plan.output_tree == {
        "dict": {
            "a": [0, {"tuple": [1, None]}],
            "b": 2,
            "c": {"namedtuple": "Pair", "fields": {"left": 3, "right": 4}},
        }
    }


def test_arrays_by_position_are_named_by_it(functions: dict[str, Result]) -> None:
    plan = functions["by_position"].plan
    assert ([b.path for b in plan.inputs], plan.input_tree) == (["0", "1"], [0, 1])


def _constants() -> dict[str, Any]:
    """Return the constants of programs/functions.py, which itself imports JAX."""
    from ml_dtypes import bfloat16, float4_e2m1fn, int2, int4, uint2, uint4

    packed = {"i4": int4, "u4": uint4, "i2": int2, "u2": uint2, "f4e2m1fn": float4_e2m1fn}
    return {"bf16": bfloat16, **packed}


def _dense(values: Any, bits: int) -> bytes:
    """Return values of under 8 bits as they lie in memory, the first in the lowest bits."""
    raw = values.view(np.uint8) & ((1 << bits) - 1)
    each = [(int(byte) >> bit) & 1 for byte in raw for bit in range(bits)]
    return np.packbits(each, bitorder="little").tobytes()


def _load_constants() -> dict[str, Any]:
    import ml_dtypes as ml

    return {
        "bool": np.arange(5) % 2 == 0,
        "i8": np.array([-128, 127, 3], np.int8),
        "u8": np.array([0, 255, 3], np.uint8),
        "i16": np.array([-32768, 3], np.int16),
        "u16": np.array([65535, 3], np.uint16),
        "i32": np.array([-(2**31), 3], np.int32),
        "u32": np.array([2**32 - 1, 3], np.uint32),
        "i64": np.array([-(2**63), 3], np.int64),
        "u64": np.array([2**64 - 1, 3], np.uint64),
        "f16": np.array([1.5, -2, np.inf], np.float16),
        "bf16": np.array([1.5, -2, 3e38], ml.bfloat16),
        "f32": np.array([1.5, -0.0, np.inf], np.float32),
        "f64": np.array([1e300, -0.0], np.float64),
        "c64": np.array([1 + 2j, -3j], np.complex64),
        "c128": np.array([1 + 2j, -3j], np.complex128),
    }
