"""Matrix products of Blackwell's tensor cores: tcgen05.mma (PTX ISA 9.0, 9.7.16.10).

One instruction computes D = A · B (+ D) with a K of 32 bytes. D is in tensor memory, B in shared
memory, A in either. With `.cta_group::2` two blocks work together: each holds half of A's and B's
rows, and gets half of D's rows with all columns. Layouts of D in the lanes (9.7.16.10.5):

    M    blocks   layout
    128  1        D: row r in lane r
    256  2        A: the same in each block
    64   1        F: row r in lane r // 16 · 32 + r % 16, or 16 lanes on
    128  2        B: row r in lanes r and r + 64, the lower and upper half of the columns of D

With `.ws`, and M of 64 (layout E) or 32 (G), the halves or quarters of the columns of D are in
lanes 64 or 32 apart, as in layout B (`tmem_frg_ws` in CUTLASS' mma_traits_sm100_frag.hpp). See
`elements.multiply_add` for the rounding of sums.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pallasc.emulator.tensors import tcgen05_sparsity
from pallasc.emulator.tensors.block_scales import Cells, a_cells, a_scales, b_cells, b_scales
from pallasc.emulator.tensors.elements import multiply_add
from pallasc.emulator.tensors.misuse import unsupported
from pallasc.emulator.tensors.tcgen05_descriptors import (
    CHUNK_BYTES,
    k_major_chunks,
    mn_major_chunks,
    parse_shared,
    read_chunks,
)
from pallasc.emulator.tensors.tcgen05_elements import Element, decode
from pallasc.emulator.tensors.tcgen05_instructions import (
    K_BYTES,
    Instruction,
    MmaKind,
    decode_instruction,
)
from pallasc.emulator.tensors.tensor_memory import (
    LANES,
    LANES_PER_WARP,
    TensorCoreError,
    TensorMemory,
    split_address,
)


class Part(NamedTuple):
    """Lanes of one block that compute the same columns of D.

    Attributes:
        lanes: lanes of D in tensor memory.
        rows: rows of A and D in this block, one for each lane.
        columns: the range of D's columns.
    """

    lanes: NDArray[np.intp]
    rows: NDArray[np.intp]
    columns: range


@functools.lru_cache(maxsize=1024)
def parts(instruction: Instruction, first_lane: int) -> tuple[Part, ...]:
    """Return the division of work between the lanes of a block.

    Every 32 lanes are a separate part if they have separate scale factors.

    Args:
        instruction: the instruction.
        first_lane: the lane in the address of D.
    """
    lanes = np.arange(LANES)
    n, rows = instruction.n, instruction.rows
    if _uses_half_of_the_lanes(instruction):
        row = np.arange(rows)
        return (Part(row // 16 * 32 + row % 16 + first_lane, row, range(n)),)
    step = LANES_PER_WARP if instruction.kind.scale_vector else rows
    width = n * rows // LANES
    return tuple(
        Part(
            lanes[first : first + step],
            lanes[first : first + step] % rows,
            range(first // rows * width, first // rows * width + width),
        )
        for first in range(0, LANES, step)
    )


def _uses_half_of_the_lanes(instruction: Instruction) -> bool:
    kind = instruction.kind
    return instruction.m == 64 and not kind.weight_stationary


def mma(
    kind: MmaKind,
    idesc: int,
    d_address: int,
    a: int,
    a_in_tensor_memory: bool,
    b_descriptor: int,
    shared: Sequence[NDArray[np.uint8]],
    memories: Sequence[TensorMemory],
    enable_input_d: bool,
    *,
    metadata_address: int | None = None,
    a_scales_address: int | None = None,
    b_scales_address: int | None = None,
    disable_output_lane: Sequence[int] = (),
    scale_input_d: int = 0,
) -> None:
    """Execute a tcgen05.mma or tcgen05.mma.sp.

    Args:
        kind: the mnemonic.
        idesc: the instruction descriptor.
        d_address: the address of D in tensor memory; like all addresses, the same in both blocks of
            a pair.
        a: shared memory descriptor of A, or its address in tensor memory.
        a_in_tensor_memory: True if `a` is an address.
        b_descriptor: shared memory descriptor of B.
        shared: shared memory of each block of the group, the one with the even rank first.
        memories: tensor memory of each block.
        enable_input_d: True if the product is added to D.
        metadata_address: address in tensor memory of a sparse A's metadata.
        a_scales_address: address in tensor memory of A's block scales.
        b_scales_address: address in tensor memory of B's block scales.
        disable_output_lane: four words for each block; lanes whose bit is set keep their D.
        scale_input_d: D is divided by two to this power before the product is added.

    Raises:
        TensorCoreError: an operand is invalid, or outside its block's memory.
        UnsupportedError: pallasc does not support this form.
    """
    instruction = decode_instruction(kind, idesc)
    _check_operands(instruction, len(shared), len(memories), scale_input_d, disable_output_lane)
    lane, column = _accumulator(instruction, d_address)
    scaled = kind.scale_vector > 0
    if scaled != (a_scales_address is not None and b_scales_address is not None):
        raise TensorCoreError(f"{kind.opcode}: two addresses of scale factors with .block_scale")
    if kind.sparse != (metadata_address is not None):
        raise TensorCoreError(f"{kind.opcode}: an address of metadata with .sp")
    with np.errstate(all="ignore"):
        b = _b_matrix(instruction, b_descriptor, shared)
        for block, (data, memory) in enumerate(zip(shared, memories, strict=True)):
            whole = None if a_in_tensor_memory else _a_matrix(instruction, a, data)
            places = None
            if metadata_address is not None:
                places = tcgen05_sparsity.positions(memory, instruction, metadata_address)
            kept = _kept_lanes(disable_output_lane, block)
            for part in parts(instruction, lane):
                left = _a_lanes(instruction, a, part, memory) if whole is None else whole[part.rows]
                right = b[part.columns.start : part.columns.stop]
                if places is not None:
                    left = tcgen05_sparsity.expand(left, places[part.rows], instruction.k)
                if a_scales_address is not None and b_scales_address is not None:
                    quarter = int(part.lanes[0]) // LANES_PER_WARP
                    factors = a_scales(memory, instruction, a_scales_address, quarter)
                    left = _scaled(left, factors)
                    factors = b_scales(memory, instruction, b_scales_address, quarter, len(right))
                    right = _scaled(right, factors)
                lanes = part.lanes
                if kept is not None:
                    left, lanes = left[~kept[lanes]], lanes[~kept[lanes]]
                if len(lanes):
                    columns = range(column, column + len(part.columns))
                    scale = 2.0**-scale_input_d if enable_input_d else None
                    _accumulate(memory, instruction, lanes, columns, left, right, scale)


def operand_chunks(
    kind: MmaKind, idesc: int, a: int, a_in_tensor_memory: bool, b_descriptor: int
) -> NDArray[np.intp]:
    """Return the addresses of the 16-byte chunks that are read in each block's shared memory.

    They are sorted, unique, and the same in both blocks of a pair.
    """
    instruction = decode_instruction(kind, idesc)
    read = [_b_chunks(instruction, b_descriptor)]
    if not a_in_tensor_memory:
        read.append(_a_chunks(instruction, a))
    return np.unique(np.concatenate([chunks.ravel() for chunks in read]))


def tensor_memory_cells(
    kind: MmaKind,
    idesc: int,
    d_address: int,
    *,
    a_address: int | None = None,
    metadata_address: int | None = None,
    a_scales_address: int | None = None,
    b_scales_address: int | None = None,
) -> tuple[list[Cells], list[Cells]]:
    """Return the cells of tensor memory for D, and those for operands, in each block.

    D is written, and is also read if it is enabled as an input. Addresses are as for `mma`;
    `a_address` is given if A is in tensor memory.
    """
    instruction = decode_instruction(kind, idesc)
    lane, column = _accumulator(instruction, d_address)
    shares = parts(instruction, lane)
    results = [(p.lanes, range(column, column + len(p.columns))) for p in shares]
    operands: list[Cells] = []
    if metadata_address is not None:
        columns = tcgen05_sparsity.metadata_columns(instruction, metadata_address)
        operands.append((np.arange(LANES), columns))
    for part in shares:
        if a_address is not None:
            _, first = split_address(a_address)
            operands.append((part.lanes, range(first, first + K_BYTES // 4)))
        quarter = int(part.lanes[0]) // LANES_PER_WARP
        if a_scales_address is not None:
            operands.append(a_cells(instruction, a_scales_address, quarter))
        if b_scales_address is not None:
            operands.append(b_cells(b_scales_address, quarter, len(part.columns)))
    return results, operands


def _check_operands(
    instruction: Instruction, blocks: int, memories: int, scale: int, disabled: Sequence[int]
) -> None:
    kind = instruction.kind
    if (blocks, memories) != (kind.group, kind.group):
        raise TensorCoreError(
            f"{kind.opcode}: needs shared and tensor memory of {kind.group} blocks, got {blocks} "
            f"and {memories}"
        )
    if scale and kind.name not in ("f16", "tf32"):
        raise TensorCoreError(f"{kind.opcode}: only .kind::f16 and .kind::tf32 scale D")
    if not 0 <= scale <= 15:
        raise TensorCoreError(f"{kind.opcode}: the scale of D must be in 0…15, got {scale}")
    if len(disabled) not in (0, 4 * kind.group) or (disabled and kind.scale_vector):
        raise TensorCoreError(f"{kind.opcode}: a mask of lanes of {len(disabled)} words")


def _accumulator(instruction: Instruction, address: int) -> tuple[int, int]:
    lane, column = split_address(address)
    half = _uses_half_of_the_lanes(instruction)
    if lane not in ((0, 16) if half else (0,)):
        raise TensorCoreError(
            f"{instruction.kind.opcode}: D at {address:#010x} starts at lane {lane}, must start at "
            f"lane 0{' or 16' if half else ''}"
        )
    return lane, column


def _kept_lanes(disabled: Sequence[int], block: int) -> NDArray[np.bool_] | None:
    if not disabled:
        return None
    words = np.array(disabled[block * 4 : block * 4 + 4], np.uint32)
    return np.unpackbits(words.view(np.uint8), bitorder="little").astype(np.bool_)


def _a_chunks(instruction: Instruction, descriptor: int) -> NDArray[np.intp]:
    elements = K_BYTES // CHUNK_BYTES * instruction.a.per_chunk
    return _chunks(
        instruction, descriptor, instruction.a, instruction.a_mn_major, instruction.rows, elements
    )


def _b_chunks(instruction: Instruction, descriptor: int) -> NDArray[np.intp]:
    return _chunks(
        instruction,
        descriptor,
        instruction.b,
        instruction.b_mn_major,
        instruction.b_rows,
        instruction.k,
    )


def _chunks(
    instruction: Instruction, descriptor: int, element: Element, mn_major: bool, rows: int, k: int
) -> NDArray[np.intp]:
    """Return the chunks of a matrix with `rows` rows of `k` elements, in memory order."""
    matrix = parse_shared(descriptor)
    if not mn_major:
        return k_major_chunks(matrix, rows, k // element.per_chunk * CHUNK_BYTES)
    if (element.bits == 32) != (matrix.atom == 32):
        raise unsupported(
            f"{instruction.kind.opcode}: MN-major matrix of {element.name} with swizzling that "
            f"keeps {matrix.atom} bytes together"
        )
    if rows % element.per_chunk:
        raise TensorCoreError(
            f"{instruction.kind.opcode}: {rows} elements of an MN-major matrix, must be a multiple "
            f"of {element.per_chunk}"
        )
    return mn_major_chunks(matrix, k, rows // element.per_chunk * CHUNK_BYTES)


def _a_matrix(
    instruction: Instruction, descriptor: int, data: NDArray[np.uint8]
) -> NDArray[np.float64]:
    chunks = _a_chunks(instruction, descriptor)
    found = read_chunks(data, chunks, f"{instruction.kind.opcode} (A)")
    matrix = decode(instruction.a, found)
    return (matrix.T if instruction.a_mn_major else matrix) * instruction.a_sign


def _b_matrix(
    instruction: Instruction, descriptor: int, shared: Sequence[NDArray[np.uint8]]
) -> NDArray[np.float64]:
    """Return B with one row for each column of D: float64[n, k]."""
    chunks = _b_chunks(instruction, descriptor)
    user = f"{instruction.kind.opcode} (B)"
    found = [decode(instruction.b, read_chunks(data, chunks, user)) for data in shared]
    halves = [matrix.T if instruction.b_mn_major else matrix for matrix in found]
    return np.concatenate(halves) * instruction.b_sign


def _a_lanes(
    instruction: Instruction, address: int, part: Part, memory: TensorMemory
) -> NDArray[np.float64]:
    """Return A from tensor memory, where each lane has the row that it computes with."""
    opcode = instruction.kind.opcode
    if instruction.a_mn_major:
        raise TensorCoreError(f"{opcode}: A in tensor memory cannot be M-major")
    if instruction.kind.weight_stationary and instruction.rows < LANES:
        raise unsupported(f"{opcode}: A in tensor memory with {instruction.rows} rows")
    if instruction.a.padded:
        raise unsupported(f"{opcode}: A in tensor memory with elements {instruction.a.name}")
    lane, column = split_address(address)
    first = int(part.lanes[0]) % LANES_PER_WARP
    if lane != first:
        raise TensorCoreError(
            f"{opcode}: A at {address:#010x} starts at lane {lane}, D at lane {first}"
        )
    words = memory.read_block(part.lanes, range(column, column + K_BYTES // 4), f"{opcode} (A)")
    chunks = words.view(np.uint8).reshape(len(words), -1, CHUNK_BYTES)
    return decode(instruction.a, chunks) * instruction.a_sign


def _scaled(matrix: NDArray[np.float64], factors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Multiply each block along K by its factor."""
    blocks = matrix.reshape(*factors.shape, -1) * factors[:, :, None]
    return blocks.reshape(matrix.shape)


def _accumulate(
    memory: TensorMemory,
    instruction: Instruction,
    lanes: NDArray[np.intp],
    columns: range,
    left: NDArray[np.float64],
    right: NDArray[np.float64],
    scale: float | None,
) -> None:
    """Write left · right + D · scale to D; with `scale` None, D is not read."""
    user, result = f"{instruction.kind.opcode} (D)", instruction.result
    before: NDArray[Any] | None = None
    if scale is not None:
        words = memory.read_block(lanes, columns, user)
        before = words.astype(np.uint16) if result == "f16" else words
        before = before.view({"f16": np.float16, "f32": np.float32, "s32": np.int32}[result])
        before = before if scale == 1 else before * np.float64(scale)
    after = multiply_add(left, right, before, result, saturate=instruction.saturate)
    bits = after.view(np.uint16 if result == "f16" else np.uint32)
    memory.write_block(lanes, columns, bits.astype(np.uint32), user)
