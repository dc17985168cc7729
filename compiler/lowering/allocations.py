"""Map the allocations of an XLA executable to the buffers of a plan and offsets in them.

The allocations (`BufferAllocationProto` in `xla/service/buffer_assignment.proto`) are parameters,
outputs, constants, and temporaries. Thread-local allocations (scalars inside reductions) are
dropped, and so are allocations that no step uses, such as address tables of tuples and constants
that were folded into kernels.

The bytes of a constant come from a `LiteralProto` (`xla/xla_data.proto`), which stores the elements
in the order of the shape's layout. Each element type has a separate field: numbers for 32 and 64
bits, bytes for the rest. Elements of one, two, and four bits take one byte each in a literal. In
device memory, they are packed into bytes, the first in the lowest bits (`PackIntN` in
`xla/util.h`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pallasc.compiler.lowering.serialized import submessages
from pallasc.errors import CompileError
from pallasc.specs.artifacts.plan import Buffer, Role

_TUPLE = 13
_SHARED_COLORS = (1, 7)
"""`MemorySpaceColor` of symmetric memory (JAX 0.10) and of adjacent memory (JAX 0.12)."""
_ROLES: tuple[Role, ...] = ("input", "output", "constant", "temporary")

_OWN_NUMBERS = ("embedded_thunks", "slice_allocations")
"""Fields of slice fusions, whose inner thunks number their allocations separately."""

Places = Mapping[int, tuple[int, int]]
"""Positions of allocations: allocation index -> (buffer, byte offset in it)."""


def number_buffers(
    executable: Any, *, ranks: int = 1
) -> tuple[list[Buffer], dict[int, tuple[int, int]]]:
    """Number the allocations: parameters in order, then outputs, constants, temporaries.

    If the executable runs on several devices, memory that peers can access has a separate color
    (memory space). The colors are not kept, since each kernel lists the arrays that need it.

    Raises:
        CompileError: the allocations contradict each other.
    """
    outputs: dict[int, int] = {}
    for rank, index in enumerate(output_allocations(executable)):
        outputs.setdefault(index, rank)
    used = {*outputs, *(index for thunk in executable.thunks for index in _slices(thunk))}

    def order(allocation: Any) -> tuple[int, int]:
        if allocation.is_entry_computation_parameter:
            return 0, allocation.parameter_number
        if allocation.index in outputs:
            return 1, outputs[allocation.index]
        return 2 if allocation.is_constant else 3, allocation.index

    allocations = executable.buffer_allocations.values
    ordered = sorted(
        (each for each in allocations if each.is_entry_computation_parameter or each.index in used),
        key=order,
    )
    for allocation in ordered:
        _check(allocation, colors=_SHARED_COLORS if ranks > 1 else ())
    buffers = [Buffer(_ROLES[order(item)[0]], item.size) for item in ordered]
    return buffers, {item.index: (number, 0) for number, item in enumerate(ordered)}


def _check(allocation: Any, colors: Sequence[int]) -> None:
    if allocation.is_thread_local:
        raise CompileError(f"a step uses allocation {allocation.index}, which is thread-local")
    if allocation.parameter_shape_index:
        raise CompileError(f"parameter {allocation.parameter_number} of the executable is a tuple")
    if allocation.color and allocation.color not in colors:
        raise CompileError(
            f"allocation {allocation.index} is in memory space {allocation.color}, "
            "not in the device's own memory"
        )


def _slices(message: Any) -> Iterator[int]:
    """Yield the indices of the allocations that a message refers to."""
    if message.DESCRIPTOR.name == "Slice":
        yield message.buffer_allocation_index
        return
    for field, inner in submessages(message):
        if field not in _OWN_NUMBERS:
            yield from _slices(inner)


def output_allocations(executable: Any) -> list[int]:
    """Return the allocation of each output leaf."""
    places = {
        tuple(entry.shape_index.indexes): entry.output_info.allocation_index
        for entry in executable.output_info_map
    }
    shape = executable.program_shape.result
    leaves = [(leaf,) for leaf in range(len(shape.tuple_shapes))]
    indices: list[tuple[int, ...]] = [*leaves] if shape.element_type == _TUPLE else [()]
    return [places[index] for index in indices]


def constant_bytes(executable: Any, places: Places, buffers: list[Buffer]) -> dict[int, bytes]:
    """Return the bytes of every constant buffer, by its number.

    Raises:
        CompileError: the executable has the wrong number of bytes for a constant.
        KeyError: the executable has no bytes for a constant.
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
            number, _ = places[constant.allocation_index]
            contents[number] = bytes(constant.content.data)
            # XLA omits the content if the literal in the HLO module has it.
            literal = literals.get(constant.symbol_name.removeprefix("buffer_for_"))
            if literal is not None and not contents[number]:
                contents[number] = literal_bytes(literal)
    for number, buffer in enumerate(buffers):
        if buffer.role != "constant":
            continue
        if len(contents[number]) != buffer.size:
            raise CompileError(
                f"constant buffer {number} takes {buffer.size} bytes, "
                f"its literal gives {len(contents[number])}"
            )
    return contents


_FORMATS = {3: "q", 4: "Q", 5: "i", 6: "Q", 7: "I", 8: "?", 13: "I"}
"""Format of an element by `FieldDescriptorProto.Type`; other fields hold the bytes themselves."""
_PACKED_BITS = {21: 4, 22: 4, 26: 2, 27: 2, 30: 1, 31: 1, 32: 4}


def literal_bytes(literal: Any) -> bytes:
    """Return the bytes of a `LiteralProto`; they are in its only field other than `shape`."""
    for descriptor, value in literal.ListFields():
        if descriptor.type in _FORMATS:
            return struct.pack(f"<{len(value)}{_FORMATS[descriptor.type]}", *value)
        if descriptor.name != "shape":
            bits = _PACKED_BITS.get(literal.shape.element_type)
            return _packed(value, bits) if bits else bytes(value)
    return b""


def _packed(elements: bytes, bits: int) -> bytes:
    """Pack one-byte elements into a dense array with `bits` bits each."""
    import numpy as np

    column = np.frombuffer(elements, np.uint8)[:, None]
    kept = np.unpackbits(column, axis=1, count=bits, bitorder="little")
    return np.packbits(kept, bitorder="little").tobytes()


# ---- slices

_RELOCATION_ABSOLUTE_64 = 1


def place(piece: Any, places: Places) -> tuple[int, int]:
    """Return the plan's buffer and the byte offset at which a `BufferAllocationSlice` starts.

    Raises:
        KeyError: the plan has no buffer for its allocation.
    """
    buffer, offset = places[piece.buffer_allocation_index]
    return buffer, offset + piece.offset


def packed(slices: list[Any], spec: Any) -> list[Any]:
    """Return the slices of a launch in the order of the kernel's arguments.

    Raises:
        CompileError: an argument is not packed as one address.
    """
    if not spec.HasField("kernel_args_packing_spec"):
        return slices
    result = []
    for argument in spec.kernel_args_packing_spec.kernel_arguments:
        kinds = [relocation.kind for relocation in argument.relocations]
        if kinds != [_RELOCATION_ABSOLUTE_64] or len(argument.data) not in (0, 8):
            raise CompileError(
                f"XLA's kernel {spec.kernel_name} packs an argument in an unknown way"
            )
        result.append(slices[argument.relocations[0].argument_index])
    return result


def fusion_places(body: Any, places: Places, rounds: Sequence[int]) -> Places | None:
    """Return the places of the slices that a `DynamicSliceFusionThunk` uses.

    Inside the fusion, allocation i is slice i: slices of parameters first, then slices of results.
    Several slices may be in one buffer.

    Args:
        body: the thunk.
        places: the places of the allocations around it.
        rounds: the iteration numbers of the enclosing loops, innermost last.

    Returns:
        The places, None if an offset is computed at run time.

    Raises:
        CompileError: the thunk contradicts itself.
    """
    slices: list[tuple[Any, Any, Any]] = []
    for each in body.parameters:
        config = each.slice_config if each.HasField("slice_config") else None
        slices.append((body.parameter_buffers[each.parameter_number], each.slice_offsets, config))
    for each in body.results:
        config = each.update_config if each.HasField("update_config") else None
        slices.append((body.result_buffers[each.result_number], each.update_offsets, config))
    inner = {}
    for index, (piece, offsets, config) in enumerate(slices):
        buffer, start = place(piece, places)
        inside = _start_in_round(offsets, config, rounds)
        if inside is None:
            return None
        inner[index] = (buffer, start + inside)
    return inner


def _start_in_round(offsets: Sequence[Any], config: Any, rounds: Sequence[int]) -> int | None:
    """Return the start of a slice in its buffer, None if it is computed at run time."""
    if config is None:
        return None if offsets else 0
    if config.table:
        return None
    where = config.linear if config.HasField("linear") else config
    start, stride = int(where.byte_offset), int(where.byte_stride)
    if stride and (config.loop_index or not rounds):
        return None
    # Index 0 is the innermost loop; no known executable uses another.
    return start + stride * rounds[-1] if stride else start
