"""Whole functions around kernels: every step, buffer and cubin of their plans."""

from __future__ import annotations

import runpy
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pallasc.compiler.executable import translate as module
from pallasc.compiler.executable.launch_parameters import check_signature
from pallasc.compiler.executable.translate import translate
from pallasc.compiler.executable.xla_schema import message_type, refuse_unknown_fields
from pallasc.errors import CompileError, UnsupportedError
from pallasc.specs.artifacts.cubin import Kernel, Parameter, parse_cubin
from pallasc.specs.artifacts.plan import Bytes, Copy, Fill, Launch, Pointer

JAX = tuple(int(part) for part in metadata.version("jax").split(".")[:2])
CONSTANTS = runpy.run_path(str(Path(__file__).parent / "programs" / "constants.py"))
_ARRAY = 128 * 128 * 4
_MOSAIC = "body_mosaic_gpu_kernel"


@pytest.fixture(scope="module")
def functions(build: Any) -> Any:
    return build("functions")


def _steps(result: Any) -> list[Any]:
    """Return the steps in short: (kernel, its pointers), or the step itself."""
    return [
        (step.kernel, [(p.buffer, p.offset) for p in step.parameters if isinstance(p, Pointer)])
        if isinstance(step, Launch)
        else step
        for step in result.plan.steps
    ]


def _buffers(result: Any) -> list[tuple[str, int]]:
    return [(buffer.role, buffer.size) for buffer in result.plan.buffers]


def _constant(result: Any) -> bytes:
    (found,) = [buffer for buffer in result.plan.buffers if buffer.role == "constant"]
    return result.artifact.blob(found.digest or "")


def test_work_around_a_kernel_becomes_five_launches_over_three_buffers(
    functions: Any,
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


def test_every_kernel_of_a_function_comes_with_its_cubin(functions: Any) -> None:
    result = functions["around"]
    launches = result.plan.launches
    assert len({launch.cubin for launch in launches}) == 4  # the Mosaic kernel is one
    for launch in launches:
        cubin = parse_cubin(result.artifact.blob(launch.cubin))
        assert cubin.sm == 90
        assert [p.size for p in cubin.kernels[launch.kernel].parameters] == [8, 8]


def test_a_constant_array_is_copied_and_zeros_that_add_nothing_vanish(
    functions: Any,
) -> None:
    result = functions["zeros_and_constant"]
    assert _buffers(result) == [
        ("input", _ARRAY), ("output", _ARRAY), ("output", 12), ("constant", 12),
    ]  # fmt: skip
    assert _steps(result) == [(_MOSAIC, [(0, 0), (1, 0)]), Copy(3, 0, 2, 0, 12)]
    assert _constant(result) == np.array([1, 2, 3], np.float32).tobytes()


@pytest.mark.parametrize("name", ["zeroed_kernel_input", "filled_kernel_input"])
def test_zeros_that_a_kernel_reads_are_written_into_a_temporary(functions: Any, name: str) -> None:
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
    functions: Any, name: str, order: Any
) -> None:
    result = functions[name]
    expected = np.arange(128 * 128, dtype=np.float32).reshape(128, 128)
    assert _buffers(result)[2] == ("constant", _ARRAY)
    assert _constant(result) == expected.tobytes(order)
    assert _steps(result) == [(_MOSAIC, [(0, 0), (2, 0), (1, 0), (3, 256)])]


def test_an_aligned_slice_is_an_offset_from_jax_0_11_on_and_a_copy_before(
    functions: Any,
) -> None:
    steps = _steps(functions["aligned_slice"])
    if JAX >= (0, 11):
        assert steps == [(_MOSAIC, [(0, _ARRAY // 2), (1, 0)])]
    else:
        half = _ARRAY // 2
        assert steps == [Copy(0, half, 2, 0, half), (_MOSAIC, [(2, 0), (1, 0)])]


def test_a_slice_along_the_last_dimension_is_a_kernel(functions: Any) -> None:
    steps = _steps(functions["slices"])
    assert steps[0][0].startswith("wrapped_slice")
    assert steps[-1][0] == "loop_add_fusion"


def test_a_slice_of_a_result_is_a_copy_from_its_offset(functions: Any) -> None:
    assert _steps(functions["slice_of_result"]) == [
        (_MOSAIC, [(0, 0), (2, 0)]),
        Copy(2, 3 * 128 * 4, 1, 0, 2 * 128 * 4),
    ]


def test_a_slice_that_is_not_aligned_is_copied_to_where_a_kernel_may_read_it(
    functions: Any,
) -> None:
    result = functions["misaligned_slice"]
    size = 64 * 32 * 4
    # Up to JAX 0.10 it is XLA that copies.
    assert _steps(result) == [Copy(0, 128, 2, 0, size), (_MOSAIC, [(2, 0), (1, 0)])]
    assert _buffers(result)[2] == ("temporary", size)


@pytest.mark.parametrize(
    "name", ["matmul", "big_matmul", "batched_matmul", "f64_matmul", "i8_matmul"]
)
def test_matrix_products_are_kernels_made_by_triton(functions: Any, name: str) -> None:
    launches = functions[name].plan.launches
    (product,) = [launch for launch in launches if launch.kernel.startswith("gemm_fusion_dot")]
    assert product.dynamic_smem_bytes > 0
    assert product.origin == "xla"


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("sort", "sort_"), ("top", "sort_"), ("uniform", "loop_add_fusion"),
        ("cumulative", "loop_add_fusion"), ("argmax", "input_reduce_fusion"),
        ("scatter", "input_scatter_fusion"), ("gather", "loop_gather_fusion"),
        ("dynamic", "loop_dynamic_slice_fusion"), ("updated", "loop_pad_fusion"),
        ("rbg", "input_concatenate_fusion"), ("column_sum", "input_reduce_fusion"),
        ("column_max", "input_reduce_fusion"),
    ],
)  # fmt: skip
def test_what_xla_makes_kernels_of_is_launched(functions: Any, name: str, kernel: str) -> None:
    assert any(launch.kernel.startswith(kernel) for launch in functions[name].plan.launches)


def test_several_outputs_lie_in_buffers_in_their_order(functions: Any) -> None:
    plan = functions["several"].plan
    assert [binding.buffer for binding in plan.outputs] == [2, 3, 4]
    assert [binding.path for binding in plan.outputs] == ["out.0", "out.1", "out.2"]
    assert plan.output_tree == {"tuple": [0, 1, 2]}


def test_an_unused_argument_keeps_its_place(functions: Any) -> None:
    plan = functions["unused"].plan
    assert [(b.path, b.dtype, b.shape, b.buffer) for b in plan.inputs] == [
        ("x", "f32", (128, 128), 0),
        ("y", "i32", (7,), 1),
    ]
    assert all(p.buffer != 1 for step in plan.launches for p in step.parameters)


def test_an_output_that_is_an_input_is_copied(functions: Any) -> None:
    assert Copy(1, 0, 2, 0, 28) in functions["passed_through"].plan.steps


def test_an_output_given_twice_lies_in_two_buffers(functions: Any) -> None:
    result = functions["twice"]
    assert [binding.buffer for binding in result.plan.outputs] == [1, 2]
    assert Copy(1, 0, 2, 0, _ARRAY) in result.plan.steps


def test_scalars_are_arrays_of_no_dimensions(functions: Any) -> None:
    plan = functions["scalars"].plan
    assert (plan.inputs[1].shape, plan.buffers[plan.inputs[1].buffer].size) == ((), 4)
    assert plan.outputs[1].shape == ()


def test_empty_arrays_have_buffers_of_no_bytes(functions: Any) -> None:
    plan = functions["empty"].plan
    assert [b.shape for b in plan.outputs] == [(128, 128), (0, 4), (0, 3)]
    assert [plan.buffers[b.buffer].size for b in plan.outputs] == [_ARRAY, 0, 0]
    assert functions["only_empty"].plan.steps == ()


def test_arrays_of_every_dtype_have_dense_buffers(functions: Any) -> None:
    plan = functions["all_dtypes"].plan
    sizes = {binding.dtype: plan.buffers[binding.buffer].size for binding in plan.inputs}
    assert sizes == {
        "i4": 16, "u4": 16, "bool": 32, "i8": 32, "u8": 32, "f8e4m3fn": 32, "f8e5m2": 32,
        "i16": 64, "u16": 64, "f16": 64, "bf16": 64, "i32": 128, "u32": 128, "f32": 128,
        "i64": 256, "u64": 256, "f64": 256, "c64": 256, "c128": 512,
    }  # fmt: skip
    assert {b.dtype for b in plan.outputs} == set(sizes)


def test_pytrees_keep_their_structure(functions: Any) -> None:
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


def test_arrays_by_position_take_the_names_of_the_parameters(functions: Any) -> None:
    plan = functions["by_position"].plan
    assert ([b.path for b in plan.inputs], plan.input_tree) == (["a", "b"], {"a": 0, "b": 1})


@pytest.mark.parametrize("name", sorted(CONSTANTS["CONSTANTS"]))
def test_a_constant_of_each_dtype_has_the_bytes_of_device_memory(functions: Any, name: str) -> None:
    assert _constant(functions[f"constant_{name}"]) == CONSTANTS["dense_bytes"](name)


def _thunk(**fields: Any) -> Any:
    return message_type("Thunk")(**fields)


def _executable(*thunks: Any, sizes: tuple[int, ...] = (64, 64)) -> Any:
    """Return an executable with one output, one temporary for each further size, and thunks."""
    result = message_type("GpuExecutableProto")(thunks=list(thunks))
    for index, size in enumerate(sizes):
        result.buffer_allocations.values.add(index=index, size=size, maybe_live_out=index == 0)
    result.output_info_map.add().output_info.allocation_index = 0
    result.program_shape.result.element_type = 11
    return result


def _slice(index: int, offset: int = 0, size: int = 64) -> dict[str, int]:
    return {"buffer_allocation_index": index, "offset": offset, "size": size}


def test_memset_and_memzero_become_fills() -> None:
    steps = translate(
        _executable(
            _thunk(memzero_thunk={"dest_buffer": {"slice": _slice(0, 16, 32)}}),
            _thunk(memset32bit_value_thunk={"dest_buffer": _slice(1), "value": 0x3FC00000}),
            _thunk(memzero_thunk={"dest_buffer": {"slice": _slice(0, 0, 0)}}),
        )
    ).steps
    assert steps == [Fill(0, 16, 32, 0, 1), Fill(1, 0, 64, 0x3FC00000, 4)]


def test_nested_and_asynchronous_thunks_run_in_order() -> None:
    def zero(at: int) -> Any:
        return _thunk(memzero_thunk={"dest_buffer": {"slice": _slice(0, at, 8)}})

    steps = translate(
        _executable(
            _thunk(sequential_thunk={"thunks": [zero(0), zero(8)]}),
            _thunk(async_start_thunk={"thunks": {"thunks": [zero(16)]}}),
            _thunk(async_done_thunk={}),
            zero(24),
        )
    ).steps
    assert [step.offset for step in steps] == [0, 8, 16, 24]  # type: ignore[union-attr]


def test_a_copy_onto_itself_is_left_out() -> None:
    same = {"slice": _slice(0)}
    copy = {"source_buffer": same, "destination_buffer": same, "mem_size": 64}
    assert translate(_executable(_thunk(copy_thunk=copy))).steps == []


def _sliced(offsets: Any, **more: Any) -> Any:
    """Return a thunk that zeroes a slice of allocation 1, by the rules before JAX 0.12."""
    shape = {"element_type": 11, "dimensions": [4, 8], "layout": {"minor_to_major": [1, 0]}}
    zero = _thunk(memzero_thunk={"dest_buffer": {"slice": _slice(0, 0, 32)}})
    body = {
        "embedded_thunk": {"thunks": [zero]},
        "arguments": [{"slice": _slice(1, 0, 128)}],
        "offsets": [{"offsets": {"offsets": offsets}}],
        "orig_shapes": [{"shape": shape}],
        **more,
    }
    return _executable(_thunk(dynamic_slice_thunk=body), sizes=(64, 128))


def test_a_slice_at_constant_offsets_is_a_place_in_its_buffer() -> None:
    steps = translate(_sliced([{"const_offset": 2}, {"const_offset": 0}])).steps
    assert steps == [Fill(1, 2 * 8 * 4, 32)]


def test_a_slice_at_an_offset_of_run_time_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="offset that is computed at run time"):
        translate(_sliced([{"slice_offset": _slice(1, 0, 4)}, {"const_offset": 0}]))


def _fusion(**config: Any) -> Any:
    zero = _thunk(memzero_thunk={"dest_buffer": {"slice": _slice(0, 0, 32)}})
    body = {
        "parameters": [{"parameter_number": 0, "slice_config": config}],
        "parameter_buffers": [_slice(1, 0, 128)],
        "slice_allocations": [{"size": 32}],
        "embedded_thunks": {"thunks": [zero]},
    }
    return _executable(_thunk(dynamic_slice_fusion_thunk=body), sizes=(64, 128))


def test_a_slice_fusion_adds_its_byte_offset() -> None:
    assert translate(_fusion(byte_offset=96)).steps == [Fill(1, 96, 32)]


def test_slices_of_one_buffer_have_an_inner_allocation_each() -> None:
    thunks = [
        _thunk(memzero_thunk={"dest_buffer": {"slice": _slice(index, 0, 32)}}) for index in (0, 1)
    ]
    body = {
        "parameters": [
            {"parameter_number": 0, "slice_config": {"byte_offset": 32}},
            {"parameter_number": 0, "slice_config": {"byte_offset": 64}},
        ],
        "parameter_buffers": [_slice(1, 0, 128)],
        "slice_allocations": [{"size": 32}, {"index": 1, "size": 32}],
        "embedded_thunks": {"thunks": thunks},
    }
    executable = _executable(_thunk(dynamic_slice_fusion_thunk=body), sizes=(64, 128))
    assert translate(executable).steps == [Fill(1, 32, 32), Fill(1, 64, 32)]


def test_a_slice_of_a_buffer_that_is_not_there_is_refused() -> None:
    executable = _fusion(byte_offset=0)
    executable.thunks[0].dynamic_slice_fusion_thunk.parameters[0].parameter_number = 1
    with pytest.raises(CompileError, match="a slice names buffer 1 of 1"):
        translate(executable)


def _loop(rounds: int | None, *thunks: Any, **more: Any) -> Any:
    body: dict[str, Any] = {"body_thunk_sequence": {"thunks": list(thunks)}, **more}
    if rounds is not None:
        body["trip_count"] = rounds
    return _executable(_thunk(while_thunk=body), sizes=(64, 128))


def test_a_loop_of_counted_rounds_is_its_body_again_and_again() -> None:
    zero = _thunk(memzero_thunk={"dest_buffer": {"slice": _slice(0, 8, 16)}})
    ones = _thunk(memset32bit_value_thunk={"dest_buffer": _slice(1), "value": 1})
    assert translate(_loop(3, zero, ones)).steps == [Fill(0, 8, 16), Fill(1, 0, 64, 1, 4)] * 3
    assert translate(_loop(0, zero)).steps == []


@pytest.mark.parametrize("rounds", [None, -1, 1 << 40, 2049])
def test_a_loop_whose_steps_are_not_counted_or_too_many_is_refused(rounds: int | None) -> None:
    zeros = [_thunk(memzero_thunk={"dest_buffer": {"slice": _slice(0)}}) for _ in range(2)]
    words = "control flow" if rounds is None else f"a loop of {rounds} rounds"
    with pytest.raises(UnsupportedError, match=words):
        translate(_loop(rounds, *zeros))


def test_a_slice_of_a_loop_moves_on_with_each_round() -> None:
    fusion = _fusion(loop_index=0, byte_offset=16, byte_stride=32).thunks[0]
    inner = _thunk(while_thunk={"trip_count": 2, "body_thunk_sequence": {"thunks": [fusion]}})
    assert [step.offset for step in translate(_loop(3, fusion)).steps] == [16, 48, 80]  # type: ignore[union-attr]
    # The innermost loop is the one that counts.
    assert [step.offset for step in translate(_loop(2, inner)).steps] == [16, 48] * 2  # type: ignore[union-attr]


def test_a_slice_of_a_loop_further_out_is_refused() -> None:
    fusion = _fusion(loop_index=1, byte_stride=32).thunks[0]
    with pytest.raises(UnsupportedError, match="offset that is computed at run time"):
        translate(_loop(2, fusion))


def test_a_slice_fusion_that_moves_without_a_loop_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="offset that is computed at run time"):
        translate(_fusion(byte_offset=0, byte_stride=32))


def test_zeroed_outputs_are_filled_before_their_kernel(functions: Any) -> None:
    result = functions["around"]
    (cubin,) = {la.cubin for la in result.plan.launches if la.kernel == "loop_sine_fusion"}
    body = {
        "args": [{"slice": _slice(1)}, {"slice": _slice(0)}],
        "zeroed_output_buffer_indices": [1],
        "custom_kernel": {
            "kernel_spec": {
                "kernel_name": "loop_sine_fusion",
                "cubin": {"data": result.artifact.blob(cubin)},
            }
        },
    }
    fill, launch = translate(_executable(_thunk(custom_kernel_thunk=body))).steps
    assert fill == Fill(0, 0, 64)
    assert isinstance(launch, Launch)
    assert launch.parameters == (Pointer(1, 0), Pointer(0, 0))


def test_a_kernel_of_the_whole_module_comes_from_the_module_cubin(functions: Any) -> None:
    result = functions["around"]
    (cubin,) = {la.cubin for la in result.plan.launches if la.kernel == "loop_sine_fusion"}
    body = {
        "args": [_slice(1), _slice(0)],
        "kernel_name": "loop_sine_fusion",
        "launch_dimensions": {
            "block_counts": {"coordinates": {"x": 4, "y": 1, "z": 1}},
            "thread_counts_per_block": {"coordinates": {"x": 32, "y": 2, "z": 1}},
        },
        "cluster_dim": {"coordinates": {"x": 2, "y": 1, "z": 1}},
        "shmem_bytes": 512,
    }
    executable = _executable(_thunk(kernel_thunk=body))
    executable.binary = result.artifact.blob(cubin)
    (launch,) = translate(executable).steps
    assert isinstance(launch, Launch)
    assert (launch.grid, launch.block, launch.cluster) == ((4, 1, 1), (32, 2, 1), (2, 1, 1))
    assert (launch.dynamic_smem_bytes, launch.cubin) == (512, cubin)


def test_an_argument_packing_that_is_not_known_is_refused() -> None:
    packing = {"kernel_arguments": [{"relocations": [], "data": b"1234"}]}
    spec = {"kernel_name": "f", "cubin": {"data": b"x"}, "kernel_args_packing_spec": packing}
    with pytest.raises(CompileError, match="f packs an argument in an unknown way"):
        translate(_executable(_thunk(custom_kernel_thunk={"custom_kernel": {"kernel_spec": spec}})))


def test_a_thunk_of_no_kind_is_refused() -> None:
    with pytest.raises(CompileError, match="has 0 kinds instead of one"):
        translate(_executable(_thunk()))


def test_a_field_that_is_not_known_is_refused_by_its_number() -> None:
    unknown = message_type("Memzero").FromString(b"\xa2\x06\x01x")
    with pytest.raises(CompileError, match="sets the unknown field 100 of Memzero"):
        refuse_unknown_fields(unknown)
    thunk = message_type("Thunk").FromString(b"\xba\x1f\x00")
    with pytest.raises(CompileError, match="sets the unknown field 503 of Thunk"):
        translate(_executable(thunk))


def test_a_step_on_an_allocation_that_does_not_exist_is_refused() -> None:
    with pytest.raises(CompileError, match="unknown allocation 7"):
        translate(_executable(_thunk(memzero_thunk={"dest_buffer": {"slice": _slice(7)}})))


def test_parameters_are_checked_against_the_kernels_signature() -> None:
    kernel = Kernel("k", (Parameter(0, 8), Parameter(64, 128)), 8, 0, 0, 0)
    launch = Launch("k", "", (1, 1, 1), None, (1, 1, 1), 0, False, (Pointer(0, 0),))
    with pytest.raises(CompileError, match=r"of \[8\] bytes to k, whose signature has \[8, 128\]"):
        check_signature(launch, {"k": kernel})
    with pytest.raises(CompileError, match="does not contain the kernel k"):
        check_signature(launch, {})
    both = (Pointer(0, 0), Bytes(128, "", ()))
    check_signature(Launch("k", "", (1, 1, 1), None, (1, 1, 1), 0, False, both), {"k": kernel})


def test_a_mosaic_kernel_over_several_devices_is_refused() -> None:
    attributes = {
        "attrs": [{"key": "uses_xla_collective_metadata", "value": {"scalar": {"b": True}}}]
    }
    call = {"target_name": module.MOSAIC_TARGET, "attributes": attributes}
    with pytest.raises(UnsupportedError, match="a Mosaic kernel over several devices"):
        translate(_executable(_thunk(custom_call_thunk=call)))
