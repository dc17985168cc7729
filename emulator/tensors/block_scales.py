"""Scale factors of block-scaled tcgen05.mma in tensor memory (PTX ISA 9.0, 9.7.16.10.7).

A cell holds up to four factors of one row of A, or of one row of N of B. Row r is in lane r % 32
and column r // 32, counted from the operand's address. Each of the four quarters of 32 lanes has
its own copy. If both halves of the lanes hold the same rows of D (M of 128 over two blocks), the
lower half of the lanes has the factors of the lower half of N, and the upper half has the factors
of the upper half. `tmem_sf_frg` in CUTLASS' mma_traits_sm100_frag.hpp has these layouts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pallasc.emulator.tensors.tcgen05_elements import decode_scales
from pallasc.emulator.tensors.tcgen05_instructions import Instruction
from pallasc.emulator.tensors.tensor_memory import (
    LANES_PER_WARP,
    TensorCoreError,
    TensorMemory,
    split_address,
)

# Lanes and columns of a rectangle of tensor memory.
Cells = tuple[NDArray[np.intp], range]


def a_cells(instruction: Instruction, address: int, quarter: int) -> Cells:
    """Return the cells with the factors of the 32 rows of A that a quarter computes.

    Raises:
        TensorCoreError: the address is not at lane 0.
    """
    block = quarter % (instruction.rows // LANES_PER_WARP)
    return _cells(address, quarter, block, 1)


def b_cells(address: int, quarter: int, rows: int) -> Cells:
    """Return the cells with the factors of a quarter's `rows` of N; errors as for `a_cells`."""
    return _cells(address, quarter, 0, -(-rows // LANES_PER_WARP))


def _cells(address: int, quarter: int, first: int, count: int) -> Cells:
    # The upper two bits of the address may hold the byte that the instruction descriptor names.
    lane, column = split_address(address & 0x3FFF_FFFF)
    if lane:
        raise TensorCoreError(f"scale factors at {address:#010x} must start at lane 0, not {lane}")
    lanes = np.arange(quarter * LANES_PER_WARP, (quarter + 1) * LANES_PER_WARP)
    return lanes, range(column + first, column + first + count)


def a_scales(
    memory: TensorMemory, instruction: Instruction, address: int, quarter: int
) -> NDArray[np.float64]:
    """Return A's factors for the 32 rows that a quarter computes: float64[32, factors]."""
    cells = a_cells(instruction, address, quarter)
    return _read(memory, instruction, cells, instruction.a_scale)


def b_scales(
    memory: TensorMemory, instruction: Instruction, address: int, quarter: int, rows: int
) -> NDArray[np.float64]:
    """Return B's factors for the `rows` of N that a quarter computes: float64[rows, factors]."""
    cells = b_cells(address, quarter, rows)
    return _read(memory, instruction, cells, instruction.b_scale)[:rows]


def _read(
    memory: TensorMemory, instruction: Instruction, cells: Cells, first: int
) -> NDArray[np.float64]:
    words = memory.read_block(*cells, f"{instruction.kind.opcode} (scale factors)")
    patterns = np.ascontiguousarray(words.T).reshape(-1, 1).view(np.uint8)
    selected = patterns[:, first : first + instruction.kind.scale_vector]
    return decode_scales(instruction.scales, selected)
