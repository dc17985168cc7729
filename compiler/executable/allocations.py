"""The buffers of a plan, from the allocations of an XLA executable.

`BufferAllocationProto` (`xla/service/buffer_assignment.proto`): parameters, outputs, constants and
temporaries. Dropped are thread-local allocations (scalars inside reductions) and whatever no step
refers to, such as the tables of addresses of tuples and constants that were folded into kernels.

A constant's bytes come from a `LiteralProto` (`xla/xla_data.proto`), which holds its elements in
the order of its shape's layout, each element type in a field of its own: numbers for 32 and 64
bits, bytes for the rest. Elements of one, two and four bits take a byte each there; in device
memory a byte holds several, the first in its lowest bits (`PackIntN` in `xla/util.h`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pallasc.errors import CompileError
from pallasc.specs.artifacts.plan import Buffer, Role

_TUPLE = 13
_SHARED_COLOURS = (1, 7)
"""`MemorySpaceColor` of symmetric memory (JAX 0.10) and of adjacent memory (JAX 0.12)."""
_ROLES: tuple[Role, ...] = ("input", "output", "constant", "temporary")

# Where a thunk carries other thunks whose allocations have numbers of their own.
_OWN_NUMBERS = {
    "DynamicSlice": ("embedded_thunk", "fake_allocations"),
    "DynamicSliceFusion": ("embedded_thunks", "slice_allocations"),
}

Places = Mapping[int, tuple[int, int]]
"""Where slices point: allocation index -> (buffer, byte offset of the allocation in it)."""


def number_buffers(
    executable: Any, *, ranks: int = 1
) -> tuple[list[Buffer], dict[int, tuple[int, int]]]:
    """Number the allocations: parameters in order, then outputs, constants, temporaries.

    Over several devices, memory that peers can reach has a colour of its own; which arrays need it
    is told again with each kernel.

    Raises:
        CompileError: the allocations contradict each other.
    """
    outputs: dict[int, int] = {}
    for rank, index in enumerate(output_allocations(executable)):
        outputs.setdefault(index, rank)
    used = {*outputs, *_used(executable.thunks)}

    def order(allocation: Any) -> tuple[int, int]:
        if allocation.is_entry_computation_parameter:
            return 0, allocation.parameter_number
        if allocation.index in outputs:
            return 1, outputs[allocation.index]
        return 2 if allocation.is_constant else 3, allocation.index

    ordered = sorted(
        (
            allocation
            for allocation in executable.buffer_allocations.values
            if allocation.is_entry_computation_parameter or allocation.index in used
        ),
        key=order,
    )
    for allocation in ordered:
        _check(allocation, colours=_SHARED_COLOURS if ranks > 1 else ())
    buffers = [Buffer(_ROLES[order(item)[0]], item.size) for item in ordered]
    return buffers, {item.index: (number, 0) for number, item in enumerate(ordered)}


def _check(allocation: Any, colours: Sequence[int]) -> None:
    if allocation.size < 0:
        raise CompileError(f"allocation {allocation.index} has {allocation.size} bytes")
    if allocation.is_thread_local:
        raise CompileError(f"a step uses allocation {allocation.index}, which is thread-local")
    if allocation.parameter_shape_index:
        raise CompileError(f"parameter {allocation.parameter_number} of the executable is a tuple")
    if allocation.color and allocation.color not in colours:
        raise CompileError(
            f"allocation {allocation.index} lies in memory space {allocation.color}, "
            "not in the device's own memory"
        )


def _used(thunks: Any) -> Iterator[int]:
    """Yield the indices of the allocations that thunks refer to."""
    for thunk in thunks:
        yield from _slices(thunk)


def _slices(message: Any) -> Iterator[int]:
    name = message.DESCRIPTOR.name
    if name == "Slice":
        yield message.buffer_allocation_index
        return
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None or descriptor.name in _OWN_NUMBERS.get(name, ()):
            continue
        for inner in value if hasattr(value, "add") else [value]:
            yield from _slices(inner)


def output_allocations(executable: Any) -> list[int]:
    """Return the allocation of each output leaf.

    Raises:
        CompileError: the executable does not say where an output lies.
    """
    places = {
        tuple(entry.shape_index.indexes): entry.output_info.allocation_index
        for entry in executable.output_info_map
    }
    shape = executable.program_shape.result
    leaves = [(leaf,) for leaf in range(len(shape.tuple_shapes))]
    indices: list[tuple[int, ...]] = [*leaves] if shape.element_type == _TUPLE else [()]
    for index in indices:
        if index not in places:
            raise CompileError(f"the executable does not say where output {index} lies")
    return [places[index] for index in indices]


def constant_bytes(executable: Any, places: Places, buffers: list[Buffer]) -> dict[int, bytes]:
    """Return the bytes of every constant buffer, by its number.

    Raises:
        CompileError: the executable does not hold them, or holds too few or too many.
    """
    literals = {
        instruction.name: instruction.literal
        for computation in executable.hlo_module_with_config.hlo_module.computations
        for instruction in computation.instructions
        if instruction.opcode == "constant"
    }
    contents: dict[int, bytes] = {}
    for constant in executable.constants:
        if constant.allocation_index in places:
            contents[places[constant.allocation_index][0]] = _content(constant, literals)
    for number, buffer in enumerate(buffers):
        if buffer.role != "constant":
            continue
        if number not in contents:
            raise CompileError(f"the executable does not say what constant buffer {number} holds")
        if len(contents[number]) != buffer.size:
            raise CompileError(
                f"constant buffer {number} takes {buffer.size} bytes, "
                f"its literal gives {len(contents[number])}"
            )
    return contents


def _content(constant: Any, literals: Mapping[str, object]) -> bytes:
    # XLA leaves the content out where the literal in the HLO module has it.
    name = constant.symbol_name.removeprefix("buffer_for_")
    data = bytes(constant.content.data)
    return literal_bytes(literals[name]) if not data and name in literals else data


# xla.PrimitiveType -> (field, struct format; None where the field holds the bytes as they are).
_FIELDS = {
    1: ("preds", "?"), 2: ("s8s", None), 3: ("s16s", None), 4: ("s32s", "i"), 5: ("s64s", "q"),
    6: ("u8s", None), 7: ("u16s", None), 8: ("u32s", "I"), 9: ("u64s", "Q"), 10: ("f16s", None),
    11: ("f32s", "I"), 12: ("f64s", "Q"), 15: ("c64s", "I"), 16: ("bf16s", None),
    18: ("c128s", "Q"), 19: ("f8e5m2s", None), 20: ("f8e4m3fns", None), 21: ("s4s", None),
    22: ("u4s", None), 23: ("f8e4m3b11fnuzs", None), 24: ("f8e5m2fnuzs", None),
    25: ("f8e4m3fnuzs", None), 26: ("s2s", None), 27: ("u2s", None), 28: ("f8e4m3s", None),
    29: ("f8e3m4s", None), 32: ("f4e2m1fns", None), 33: ("f8e8m0fnus", None),
    30: ("s1s", None), 31: ("u1s", None),
}  # fmt: skip

_PACKED_BITS = {21: 4, 22: 4, 26: 2, 27: 2, 30: 1, 31: 1, 32: 4}


def literal_bytes(literal: Any) -> bytes:
    """Return the bytes of a `LiteralProto`.

    Raises:
        CompileError: its element type has no field here.
    """
    kind = literal.shape.element_type
    if kind not in _FIELDS:
        raise CompileError(f"a constant has the unknown element type {kind}")
    name, code = _FIELDS[kind]
    value = getattr(literal, name)
    if code is not None:
        return struct.pack(f"<{len(value)}{code}", *value)
    bits = _PACKED_BITS.get(kind)
    return _packed(value, bits) if bits else bytes(value)


def _packed(elements: bytes, bits: int) -> bytes:
    """Return elements that take a byte each as a dense array of `bits` bits, a part of 8."""
    step, mask = 8 // bits, (1 << bits) - 1
    groups = (elements[start : start + step] for start in range(0, len(elements), step))
    return bytes(
        sum((element & mask) << (bits * place) for place, element in enumerate(group))
        for group in groups
    )
