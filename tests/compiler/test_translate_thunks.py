"""Thunks of XLA, each made for its test: the steps that they become, and what is refused."""

from typing import Any

import pytest

from pallasc.compiler.lowering import translate as module
from pallasc.compiler.lowering.serialized import message_type, refuse_unknown_fields
from pallasc.compiler.lowering.translate import translate
from pallasc.errors import CompileError, UnsupportedError
from pallasc.specs.artifacts.plan import Fill, Launch, Pointer


def _thunk(**fields: Any) -> Any:
    return message_type("Thunk")(**fields)


def _executable(*thunks: Any, sizes: tuple[int, ...] = (64, 64)) -> Any:
    """Return an executable with one output, one temporary for each further size, and thunks."""
    result = message_type("GpuExecutableProto")(thunks=list(thunks))
    for index, size in enumerate(sizes):
        result.buffer_allocations.values.add(index=index, size=size)
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
    same = {"slice": _slice(0)}  # a copy onto itself is left out
    copy = {"source_buffer": same, "destination_buffer": same, "mem_size": 64}
    assert translate(_executable(_thunk(copy_thunk=copy))).steps == []


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
    with pytest.raises(UnsupportedError, match="offset that is computed at run time"):
        translate(_fusion(byte_offset=0, byte_stride=32))  # it moves without a loop
    executable = _fusion(byte_offset=0)
    executable.thunks[0].dynamic_slice_fusion_thunk.parameters[0].parameter_number = 1
    with pytest.raises(CompileError, match="the executable's parts contradict each other"):
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
    with pytest.raises(UnsupportedError, match="offset that is computed at run time"):
        translate(_loop(2, _fusion(loop_index=1, byte_stride=32).thunks[0]))  # a loop further out


def _xla_kernel(result: Any, kernel: str, cubin_of: str, slices: list[int], **fields: Any) -> Any:
    """Return an executable that launches a kernel in a cubin of `result`."""
    (cubin,) = {la.cubin for la in result.plan.launches if la.kernel == cubin_of}
    spec = {"kernel_name": kernel, "cubin": {"data": result.artifact.blob(cubin)}}
    args = [{"slice": _slice(each)} for each in slices]
    body = {"args": args, "custom_kernel": {"kernel_spec": spec}, **fields}
    return _executable(_thunk(custom_kernel_thunk=body))


def test_zeroed_outputs_are_filled_before_their_kernel(functions: Any) -> None:
    name = "loop_sine_fusion"
    executable = _xla_kernel(
        functions["around"], name, name, [1, 0], zeroed_output_buffer_indices=[1]
    )
    fill, launch = translate(executable).steps
    assert fill == Fill(0, 0, 64)
    assert isinstance(launch, Launch)
    assert launch.parameters == (Pointer(1, 0), Pointer(0, 0))


def test_what_is_not_known_is_refused() -> None:
    packing = {"kernel_arguments": [{"relocations": [], "data": b"1234"}]}
    spec = {"kernel_name": "f", "cubin": {"data": b"x"}, "kernel_args_packing_spec": packing}
    with pytest.raises(CompileError, match="f packs an argument in an unknown way"):
        translate(_executable(_thunk(custom_kernel_thunk={"custom_kernel": {"kernel_spec": spec}})))
    with pytest.raises(CompileError, match="parts contradict each other"):
        translate(_executable(_thunk()))
    with pytest.raises(CompileError, match="parts contradict each other"):
        translate(_executable(_thunk(memzero_thunk={"dest_buffer": {"slice": _slice(7)}})))
    unknown = message_type("Memzero").FromString(b"\xa2\x06\x01x")
    with pytest.raises(CompileError, match="sets the unknown field 100 of Memzero"):
        refuse_unknown_fields(unknown)
    thunk = message_type("Thunk").FromString(b"\xba\x1f\x00")
    with pytest.raises(CompileError, match="sets the unknown field 503 of Thunk"):
        translate(_executable(thunk))


def test_parameters_are_checked_against_the_kernels_signature(functions: Any) -> None:
    result, name = functions["around"], "loop_sine_fusion"
    with pytest.raises(CompileError, match=r"of \[8\] bytes to .*, and its cubin says \[8, 8\]"):
        translate(_xla_kernel(result, name, name, [1]))
    with pytest.raises(CompileError, match="does not contain the kernel other"):
        translate(_xla_kernel(result, "other", name, [1, 0]))


def test_a_mosaic_kernel_over_several_devices_is_refused() -> None:
    attributes = {
        "attrs": [{"key": "uses_xla_collective_metadata", "value": {"scalar": {"b": True}}}]
    }
    call = {"target_name": module.MOSAIC_TARGET, "attributes": attributes}
    with pytest.raises(UnsupportedError, match="a Mosaic kernel over several devices"):
        translate(_executable(_thunk(custom_call_thunk=call)))
