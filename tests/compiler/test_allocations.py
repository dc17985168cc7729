"""Buffers from an executable's allocations: their order, what is dropped, what is refused."""

from typing import Any

import numpy as np
import pytest

from pallasc.compiler.lowering.allocations import (
    constant_bytes,
    literal_bytes,
    number_buffers,
    output_allocations,
)
from pallasc.compiler.lowering.serialized import message_type
from pallasc.errors import CompileError


def _executable(allocations: list[dict[str, Any]], outputs: list[int], used: list[int]) -> Any:
    """Return an executable with these allocations, outputs and slices in steps."""
    result = message_type("GpuExecutableProto")()
    for allocation in allocations:
        result.buffer_allocations.values.add(**allocation)
    result.program_shape.result.element_type = 13
    for leaf, index in enumerate(outputs):
        result.program_shape.result.tuple_shapes.add(element_type=11)
        entry = result.output_info_map.add(output_info={"allocation_index": index})
        entry.shape_index.indexes.append(leaf)
    for index in used:
        where = {"slice": {"buffer_allocation_index": index, "size": 4}}
        result.thunks.add(memzero_thunk={"dest_buffer": where})
    return result


def _input(index: int, number: int, **more: Any) -> dict[str, Any]:
    return {
        "index": index, "size": 8, "is_entry_computation_parameter": True,
        "parameter_number": number, **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("allocation", "words"),
    [
        ({"index": 1, "is_thread_local": True}, "uses allocation 1, which is thread-local"),
        ({"index": 1, "color": 5}, "is in memory space 5"),
        (_input(1, 0, parameter_shape_index=[0]), "parameter 0 of the executable is a tuple"),
    ],
)
def test_an_allocation_that_cannot_be_a_buffer_is_refused(
    allocation: dict[str, Any], words: str
) -> None:
    with pytest.raises(CompileError, match=words):
        number_buffers(_executable([{"index": 0, "size": 4}, allocation], [0], [1]))


def test_an_output_without_a_place_is_refused() -> None:
    executable = _executable([{"index": 0}], [0], [])
    del executable.output_info_map[:]
    with pytest.raises(KeyError):
        output_allocations(executable)


def _constant(size: int, *, literal: bool = True, content: bytes = b"") -> Any:
    executable = _executable(
        [{"index": 0, "size": size, "is_constant": True}], outputs=[], used=[0]
    )
    executable.constants.add(
        symbol_name="buffer_for_c_0", allocation_index=0, content={"data": content}
    )
    if literal:
        computation = executable.hlo_module_with_config.hlo_module.computations.add()
        instruction = computation.instructions.add(name="c_0", opcode="constant")
        instruction.literal.shape.element_type = 4
        instruction.literal.s32s.append(7)
    return executable


def _bytes(executable: Any) -> dict[int, bytes]:
    buffers, places = number_buffers(executable)
    return constant_bytes(executable, places, buffers)


def test_a_constant_without_bytes_or_of_another_size_is_refused() -> None:
    with pytest.raises(CompileError, match="buffer 0 takes 8 bytes, its literal gives 4"):
        _bytes(_constant(8))
    with pytest.raises(CompileError, match="buffer 0 takes 4 bytes, its literal gives 0"):
        _bytes(_constant(4, literal=False))
    executable = _constant(4)
    del executable.constants[:]
    with pytest.raises(KeyError):
        _bytes(executable)


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        (1, {"preds": [True, False, True]}, b"\1\0\1"),
        (15, {"c64s": [0x3F800000, 0]}, np.array([1], np.complex64).tobytes()),
        (21, {"s4s": b"\x08\x07\x0f"}, b"\x78\x0f"),
        (26, {"s2s": b"\x03\x01\x00\x02\x01"}, b"\x87\x01"),
        (30, {"s1s": b"\x01\x00\x01\x01\x00\x00\x00\x01\x01"}, b"\x8d\x01"),
    ],
)
def test_elements_are_packed_as_the_device_reads_them(
    kind: int, fields: dict[str, object], expected: bytes
) -> None:
    literal = message_type("Literal")(shape={"element_type": kind}, **fields)
    assert literal_bytes(literal) == expected
