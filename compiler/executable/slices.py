"""Slices of an executable's allocations, as places in a plan: (buffer, byte offset)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pallasc.compiler.executable.allocations import Places
from pallasc.errors import CompileError

_RELOCATION_ABSOLUTE_64 = 1


def place(piece: Any, places: Places) -> tuple[int, int]:
    """Return the buffer of the plan and the byte offset at which a `BufferAllocationSlice` starts.

    Raises:
        CompileError: it is of an allocation that the plan has no buffer for.
    """
    if piece.buffer_allocation_index not in places:
        raise CompileError(f"a step uses the unknown allocation {piece.buffer_allocation_index}")
    buffer, offset = places[piece.buffer_allocation_index]
    return buffer, offset + piece.offset


def packed(slices: list[Any], spec: Any) -> list[Any]:
    """Return the slices in the order in which a kernel that brings its cubin takes them.

    Raises:
        CompileError: an argument is packed otherwise than as one address.
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


def constant_places(body: Any, places: Places) -> Places | None:
    """Return the places of the slices that a `DynamicSliceThunk` runs on.

    None where an offset is computed at run time.
    """
    inner = {}
    for index, (argument, offsets) in enumerate(zip(body.arguments, body.offsets, strict=True)):
        if not argument.HasField("slice"):
            continue
        buffer, start = place(argument.slice, places)
        constants = offsets.offsets.offsets if offsets.HasField("offsets") else []
        if any(each.HasField("slice_offset") or each.hlo_module_offset_idx for each in constants):
            return None
        shape = body.orig_shapes[index].shape if constants else None
        inner[index] = (buffer, start + _constant_start(shape, constants))
    return inner


def _constant_start(shape: Any, offsets: Sequence[Any]) -> int:
    """Return the byte offset of constant element offsets into an array of `shape`."""
    if shape is None:
        return 0
    stride = _ELEMENT_BYTES[shape.element_type]
    total = 0
    for dimension in shape.layout.minor_to_major:
        total += offsets[dimension].const_offset * stride
        stride *= shape.dimensions[dimension]
    return total


# Bytes of an element by `xla.PrimitiveType`; sub-byte types are not sliced in place.
_ELEMENT_BYTES = {
    1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 2, 8: 4, 9: 8, 10: 2, 11: 4, 12: 8, 15: 8, 16: 2,
    18: 16, 19: 1, 20: 1, 23: 1, 24: 1, 25: 1, 28: 1, 29: 1, 33: 1,
}  # fmt: skip


def fusion_places(body: Any, places: Places, rounds: Sequence[int]) -> Places | None:
    """Return the places of the slices that a `DynamicSliceFusionThunk` (from JAX 0.11 on) runs on.

    Inner allocation i is slice i, first those of parameters, then those of results; several slices
    may be of one buffer.

    Args:
        body: the thunk.
        places: those of the allocations around it.
        rounds: the numbers of the rounds of the loops around it, the innermost last.

    Returns:
        The places, None where an offset is computed at run time.

    Raises:
        CompileError: the thunk contradicts itself.
    """
    slices = [
        (_numbered(body.parameter_buffers, each.parameter_number), each.slice_offsets,
         each.slice_config if each.HasField("slice_config") else None)
        for each in body.parameters
    ] + [
        (_numbered(body.result_buffers, each.result_number), each.update_offsets,
         each.update_config if each.HasField("update_config") else None)
        for each in body.results
    ]  # fmt: skip
    if len(slices) != len(body.slice_allocations):
        raise CompileError(
            f"a slice has {len(slices)} buffers and {len(body.slice_allocations)} allocations"
        )
    inner = {}
    for index, (piece, offsets, config) in enumerate(slices):
        buffer, start = place(piece, places)
        inside = _start_in_round(offsets, config, rounds)
        if inside is None:
            return None
        inner[index] = (buffer, start + inside)
    return inner


def _numbered(buffers: Sequence[Any], number: int) -> Any:
    if not 0 <= number < len(buffers):
        raise CompileError(f"a slice names buffer {number} of {len(buffers)}")
    return buffers[number]


def _start_in_round(offsets: Sequence[Any], config: Any, rounds: Sequence[int]) -> int | None:
    """Return where a slice starts in its buffer, None if that is computed at run time."""
    if config is None:
        return None if offsets else 0
    if config.table:
        return None
    where = config.linear if config.HasField("linear") else config
    start, stride = int(where.byte_offset), int(where.byte_stride)
    if stride and (config.loop_index or not rounds):
        return None
    # Index 0 is the innermost loop; no executable seen so far names another.
    return start + stride * rounds[-1] if stride else start
