"""Sparse A of tcgen05.mma.sp: the positions of the stored elements in a row.

Metadata has 2 bits for each stored element, or pair of 4-bit elements; `.kind::tf32` has 4 bits
(PTX ISA 9.0, 9.7.16.10.8). It is in tensor memory; `tmem_e_frg` in CUTLASS'
mma_traits_sm100_frag.hpp and `format_tcgen05_sparse_metadata` of JAX have the layouts:

* 8 bits and less: row r has 64 bits in lane r, in the column of the address and the next one.
* 16 and 32 bits: row 16 a + 8 b + c has 32 bits, in half b of the words of lanes 16 a + c and 16 a
  + 8 + c. The sparsity selector chooses one of two columns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pallasc.emulator.tensors.tcgen05_instructions import Instruction
from pallasc.emulator.tensors.tensor_memory import (
    LANES,
    TensorCoreError,
    TensorMemory,
    split_address,
)

# The pairs of positions in a group of four that the manual allows, as first | second << 2.
_PAIRS = np.isin(np.arange(16), [0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b0110, 0b1110])
_SINGLES = np.isin(np.arange(16), [0b0100, 0b1110])


def metadata_columns(instruction: Instruction, address: int) -> range:
    """Return the columns that hold the metadata, in all lanes.

    Raises:
        TensorCoreError: the address is not at lane 0 and an even column.
    """
    lane, column = split_address(address)
    if lane or column % 2:
        raise TensorCoreError(
            f"{instruction.kind.opcode}: metadata at {address:#010x} must start at lane 0 and an "
            f"even column"
        )
    if instruction.a.bits > 8:
        return range(column + instruction.selector, column + instruction.selector + 1)
    return range(column, column + 2)


def positions(memory: TensorMemory, instruction: Instruction, address: int) -> NDArray[np.intp]:
    """Return the position in its row of each stored element of A: int[128, k / 2].

    Raises:
        TensorCoreError: the metadata contains invalid positions.
    """
    columns = metadata_columns(instruction, address)
    words = memory.read_block(np.arange(LANES), columns, f"{instruction.kind.opcode} (metadata)")
    if instruction.a.bits > 8:
        halves = words.view(np.uint16).reshape(8, 2, 8, 2)  # a, lane's half, c, b
        words = np.ascontiguousarray(halves.transpose(0, 3, 2, 1)).reshape(LANES, 2).view(np.uint32)
    nibbles = np.stack([words.view(np.uint8) & 15, words.view(np.uint8) >> 4], axis=-1)
    nibbles = nibbles.reshape(LANES, -1)
    single = instruction.a.bits == 32
    valid = (_SINGLES if single else _PAIRS)[nibbles]
    if not valid.all():
        row, group = np.argwhere(~valid)[0]
        raise TensorCoreError(
            f"{instruction.kind.opcode}: metadata of row {row}, group {group} is "
            f"{nibbles[row, group]:#06b}, which names no two places"
        )
    group = np.arange(nibbles.shape[1])
    if single:
        return (group * 2 + (nibbles >> 3)).astype(np.intp)
    chosen = np.stack([nibbles & 3, nibbles >> 2], axis=-1) + group[:, None] * 4
    chosen = chosen.reshape(LANES, -1).astype(np.intp)
    if instruction.a.name != "e2m1x2":
        return chosen
    return np.stack([chosen * 2, chosen * 2 + 1], axis=-1).reshape(LANES, -1)


def expand(stored: NDArray[np.float64], places: NDArray[np.intp], k: int) -> NDArray[np.float64]:
    """Return a matrix with `k` columns that has the stored elements in their places, else zeros."""
    matrix = np.zeros((len(stored), k))
    np.put_along_axis(matrix, places, stored, axis=1)
    return matrix
