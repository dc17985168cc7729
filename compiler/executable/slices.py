"""Slices of an executable's allocations, as places in a plan: (buffer, byte offset)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pallasc.compiler.executable.allocations import Places
from pallasc.errors import CompileError

_RELOCATION_ABSOLUTE_64 = 1


def numbered(buffers: Sequence[Any], number: int) -> Any:
    """Return the buffer that a fusion's slice names.

    Raises:
        CompileError: there is none of this number.
    """
    if not 0 <= number < len(buffers):
        raise CompileError(f"a slice names buffer {number} of {len(buffers)}")
    return buffers[number]


def place(piece: Any, places: Places) -> tuple[int, int]:
    """Return the buffer of the plan and the byte offset at which a `BufferAllocationSlice` starts.

    Raises:
        CompileError: it is of an allocation that the plan has no buffer for.
    """
    if piece.buffer_allocation_index not in places:
        raise CompileError(f"a step uses allocation {piece.buffer_allocation_index}, not known")
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
            raise CompileError(f"XLA's kernel {spec.kernel_name} packs an argument unknown here")
        result.append(slices[argument.relocations[0].argument_index])
    return result


def constant_start(shape: Any, offsets: Sequence[Any]) -> int:
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
