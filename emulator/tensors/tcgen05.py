"""Blackwell's tensor core: `tcgen05.mma`, its scale factors and sparsity, and `tcgen05.cp`.

**Scale factors** of a block-scaled tcgen05.mma are in tensor memory (PTX ISA 9.0, 9.7.16.10.7). A
cell holds up to four factors of one row of A, or of one column of B. Row (or column) r is in lane r
% 32 and column r // 32, counted from the operand's address. Each of the four quarters of 32 lanes
has its own copy. If both halves of the lanes hold the same rows of D (M of 128 over two blocks),
the lower half of the lanes has the factors of the lower half of N, and the upper half has the
factors of the upper half. `tmem_sf_frg` in CUTLASS' mma_traits_sm100_frag.hpp has these layouts.

**Metadata** of a sparse A (tcgen05.mma.sp) has the positions of the stored elements in a row: 2
bits for each stored element, or pair of 4-bit elements; 4 bits for `.kind::tf32` (9.7.16.10.8). It
is in tensor memory; `tmem_e_frg` in CUTLASS' mma_traits_sm100_frag.hpp and
`format_tcgen05_sparse_metadata` of JAX have the layouts:

* 8 bits and less: row r has 64 bits in lane r, in the column of the address and the next one.
* 16 and 32 bits: row 16 a + 8 b + c has 32 bits, in half b of the words of lanes 16 a + c and 16 a
  + 8 + c. The sparsity selector chooses one of two columns.

**tcgen05.cp** copies from shared to tensor memory (9.7.16.9.2). The source is a K-major matrix; the
shape names its number of rows. Shapes with fewer than 128 rows write every row to several warps'
lanes; CUTLASS' copy_traits_sm100.hpp has the tables.

**tcgen05.mma** computes D = A · B (+ D) with a K of 32 bytes (9.7.16.10). D is in tensor memory, B
in shared memory, A in either. With `.cta_group::2`, two blocks work together: each holds half of
A's rows and half of B's columns, and gets half of D's rows with all columns. Layouts of D in the
lanes (9.7.16.10.5):

    M    blocks   layout
    128  1        D: row r in lane r
    256  2        A: the same in each block
    64   1        F: row r in lane r // 16 · 32 + r % 16, or 16 lanes higher
    128  2        B: row r in lanes r and r + 64, the lower and upper half of the columns of D

With `.ws`, and M of 64 (layout E) or 32 (G), the halves or quarters of the columns of D are in
lanes 64 or 32 apart, as in layout B (`tmem_frg_ws` in CUTLASS' mma_traits_sm100_frag.hpp). See
`multiply_add` for the rounding of sums.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pallasc.emulator.tensors.descriptors import (
    CHUNK_BYTES,
    OperandError,
    k_major_chunks,
    mn_major_chunks,
    parse_shared,
    read_chunks,
    unsupported,
)
from pallasc.emulator.tensors.matrices import multiply_add
from pallasc.emulator.tensors.tcgen05_instructions import (
    K_BYTES,
    Element,
    Instruction,
    MmaKind,
    decode,
    decode_instruction,
    decode_scales,
)
from pallasc.emulator.tensors.tensor_memory import (
    LANES,
    LANES_PER_WARP,
    TensorMemory,
    split_address,
)

# Lanes and columns of a rectangle of tensor memory.
Cells = tuple[NDArray[np.intp], range]


def a_cells(instruction: Instruction, address: int, part: Part) -> Cells:
    """Return the cells with the factors of the 32 rows of A that a quarter of the lanes computes.

    Raises:
        OperandError: the address is not at lane 0.
    """
    block = part.quarter % (instruction.rows // LANES_PER_WARP)
    return _cells(address, part.quarter, block, 1)


def b_cells(address: int, part: Part) -> Cells:
    """Return the cells with the factors of a part's columns of B; errors as for `a_cells`."""
    return _cells(address, part.quarter, 0, -(-len(part.columns) // LANES_PER_WARP))


def _cells(address: int, quarter: int, first: int, count: int) -> Cells:
    # The upper two bits of the address may hold the byte that the instruction descriptor names.
    lane, column = split_address(address & 0x3FFF_FFFF)
    if lane:
        raise OperandError(f"scale factors at {address:#010x} must start at lane 0, not {lane}")
    lanes = np.arange(quarter * LANES_PER_WARP, (quarter + 1) * LANES_PER_WARP)
    return lanes, range(column + first, column + first + count)


def _scaled(
    matrix: NDArray[np.float64],
    memory: TensorMemory,
    instruction: Instruction,
    cells: Cells,
    first: int,
) -> NDArray[np.float64]:
    """Multiply each block along K by its factor; a cell's factors start at its byte `first`."""
    words = memory.read_block(*cells, f"{instruction.kind.opcode} (scale factors)")
    patterns = np.ascontiguousarray(words.T).reshape(-1, 1).view(np.uint8)
    selected = patterns[: len(matrix), first : first + instruction.kind.scale_vector]
    factors = decode_scales(instruction.scales, selected)
    blocks = matrix.reshape(*factors.shape, -1) * factors[:, :, None]
    return blocks.reshape(matrix.shape)


# The pairs of positions in a group of four that the manual allows, as first | second << 2.
_PAIRS = np.isin(np.arange(16), [0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b0110, 0b1110])
_SINGLES = np.isin(np.arange(16), [0b0100, 0b1110])


def metadata_columns(instruction: Instruction, address: int) -> range:
    """Return the columns that hold the metadata, in all lanes.

    Raises:
        OperandError: the address is not at lane 0 and an even column.
    """
    lane, column = split_address(address)
    if lane or column % 2:
        raise OperandError(
            f"{instruction.kind.opcode}: metadata at {address:#010x} must start at lane 0 and an "
            f"even column"
        )
    if instruction.a.bits > 8:
        return range(column + instruction.selector, column + instruction.selector + 1)
    return range(column, column + 2)


def positions(memory: TensorMemory, instruction: Instruction, address: int) -> NDArray[np.intp]:
    """Return the position in its row of each stored element of A: int[128, k / 2].

    Raises:
        OperandError: the metadata contains invalid positions.
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
        raise OperandError(
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


# shape and multicast -> rows, bytes per row, and for each copy of the rows the lanes of rows 0, 32,
# and so on. The rows of `4x256b` are 32 lanes apart.
_COPY_SHAPES: dict[tuple[str, ...], tuple[int, int, tuple[tuple[int, ...], ...]]] = {
    ("128x256b",): (128, 32, ((0, 32, 64, 96),)),
    ("128x128b",): (128, 16, ((0, 32, 64, 96),)),
    ("4x256b",): (4, 32, ()),
    ("64x128b", "warpx2::02_13"): (64, 16, ((0, 32), (64, 96))),
    ("64x128b", "warpx2::01_23"): (64, 16, ((0, 64), (32, 96))),
    ("32x128b", "warpx4"): (32, 16, ((0,), (32,), (64,), (96,))),
}


@dataclass(frozen=True, slots=True)
class Copy:
    """One tcgen05.cp.

    Attributes:
        opcode: the whole mnemonic.
        group: number of blocks whose tensor memory is written, each from its own shared memory.
        rows: number of rows of the source.
        row_bytes: bytes per row of the source.
        shape: shape and multicast, as in the mnemonic.
    """

    opcode: str
    group: int
    rows: int
    row_bytes: int
    shape: tuple[str, ...]


@functools.cache
def parse_copy(opcode: str) -> Copy:
    """Parse the mnemonic of a tcgen05.cp."""
    _, _, group, *shape = opcode.split(".")
    rows, row_bytes, _ = _COPY_SHAPES[tuple(shape)]
    return Copy(opcode, int(group[-1]), rows, row_bytes, tuple(shape))


@functools.cache
def _lanes(shape: tuple[str, ...]) -> NDArray[np.intp]:
    """Return the lane of each row in each of its copies: int[copies, rows]."""
    rows, _, starts = _COPY_SHAPES[shape]
    if not starts:
        return np.arange(rows)[None] * 32
    row = np.arange(rows)
    return np.stack([np.array(start)[row // 32] + row % 32 for start in starts])


def copied_chunks(copy: Copy, descriptor: int) -> NDArray[np.intp]:
    """Return the addresses of the 16-byte chunks that a copy reads from each block."""
    return k_major_chunks(parse_shared(descriptor), copy.rows, copy.row_bytes)


def written_cells(copy: Copy, address: int) -> list[tuple[NDArray[np.intp], range]]:
    """Return lanes and columns of tensor memory that a copy writes in each block."""
    lane, column = split_address(address)
    columns = range(column, column + copy.row_bytes // 4)
    return [(lanes, columns) for lanes in _lanes(copy.shape) + lane]


def execute_copy(
    copy: Copy,
    address: int,
    descriptor: int,
    shared: Sequence[NDArray[np.uint8]],
    memories: Sequence[TensorMemory],
) -> None:
    """Copy into the tensor memory of one block or of both blocks of a pair.

    Args:
        copy: the instruction.
        address: address of the destination, the same in both blocks.
        descriptor: descriptor of the source, the same in both blocks.
        shared: shared memory of each block of the group.
        memories: tensor memory of each block.

    Raises:
        OperandError: source or destination is outside the block's memory.
    """
    chunks = copied_chunks(copy, descriptor)
    cells = written_cells(copy, address)
    for source, memory in zip(shared, memories, strict=True):
        words = read_chunks(source, chunks, copy.opcode).reshape(copy.rows, -1).view(np.uint32)
        for lanes, columns in cells:
            memory.write_block(lanes, columns, words, copy.opcode)


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

    @property
    def quarter(self) -> int:
        """The quarter of the 128 lanes, 0 to 3, in which the part starts."""
        return int(self.lanes[0]) // LANES_PER_WARP


@functools.lru_cache(maxsize=1024)
def parts(instruction: Instruction, first_lane: int) -> tuple[Part, ...]:
    """Divide the work between the lanes of a block.

    With scale factors, every 32 lanes are a separate part.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Mma:
    """The operands of a tcgen05.mma or tcgen05.mma.sp.

    Attributes:
        kind: the mnemonic.
        idesc: the instruction descriptor.
        d: the address of D in tensor memory; like all addresses, the same in both blocks of a pair.
        a: shared memory descriptor of A, or its address in tensor memory.
        a_in_memory: True if `a` is an address.
        b: shared memory descriptor of B.
        enable: True if the product is added to D.
        metadata: address in tensor memory of a sparse A's metadata.
        a_scales, b_scales: addresses in tensor memory of the block scales.
        disabled: four words for each block; lanes whose bit is set keep their D.
        scale: D is divided by two to this power before the product is added.
    """

    kind: MmaKind
    idesc: int
    d: int
    a: int
    a_in_memory: bool
    b: int
    enable: bool
    metadata: int | None = None
    a_scales: int | None = None
    b_scales: int | None = None
    disabled: Sequence[int] = ()
    scale: int = 0

    @property
    def instruction(self) -> Instruction:
        """The decoded instruction descriptor."""
        return decode_instruction(self.kind, self.idesc)


def mma(
    operands: Mma, shared: Sequence[NDArray[np.uint8]], memories: Sequence[TensorMemory]
) -> None:
    """Execute a tcgen05.mma or tcgen05.mma.sp.

    Args:
        operands: its operands.
        shared: shared memory of each block of the group, the one with the even rank first.
        memories: tensor memory of each block.

    Raises:
        OperandError: an operand is invalid, or outside its block's memory.
        UnsupportedError: pallasc does not support this form.
    """
    instruction = operands.instruction
    _check_operands(operands, len(shared), len(memories))
    lane, column = _accumulator(instruction, operands.d)
    scale = 2.0**-operands.scale if operands.enable else None
    with np.errstate(all="ignore"):
        b = _b_matrix(instruction, operands.b, shared)
        for block, (data, memory) in enumerate(zip(shared, memories, strict=True)):
            whole = None if operands.a_in_memory else _a_matrix(instruction, operands.a, data)
            places = None
            if operands.metadata is not None:
                places = positions(memory, instruction, operands.metadata)
            kept = _kept_lanes(operands.disabled, block)
            for part in parts(instruction, lane):
                if whole is None:
                    left = _a_lanes(instruction, operands.a, part, memory)
                else:
                    left = whole[part.rows]
                right = b[part.columns.start : part.columns.stop]
                if places is not None:
                    left = expand(left, places[part.rows], instruction.k)
                if operands.a_scales is not None and operands.b_scales is not None:
                    cells = a_cells(instruction, operands.a_scales, part)
                    left = _scaled(left, memory, instruction, cells, instruction.a_scale)
                    cells = b_cells(operands.b_scales, part)
                    right = _scaled(right, memory, instruction, cells, instruction.b_scale)
                lanes = part.lanes
                if kept is not None:
                    left, lanes = left[~kept[lanes]], lanes[~kept[lanes]]
                if len(lanes):
                    columns = range(column, column + len(part.columns))
                    _accumulate(memory, instruction, lanes, columns, left, right, scale)


def operand_chunks(operands: Mma) -> NDArray[np.intp]:
    """Return the addresses of the 16-byte chunks that an MMA reads from each block's shared memory.

    They are sorted, unique, and the same in both blocks of a pair.
    """
    read = [_b_chunks(operands.instruction, operands.b)]
    if not operands.a_in_memory:
        read.append(_a_chunks(operands.instruction, operands.a))
    return np.unique(np.concatenate([chunks.ravel() for chunks in read]))


def tensor_memory_cells(operands: Mma) -> tuple[list[Cells], list[Cells]]:
    """Return the cells of D, and the cells of other operands, in each block's tensor memory.

    An MMA writes D, and also reads it if it is enabled as an input.
    """
    instruction = operands.instruction
    lane, column = _accumulator(instruction, operands.d)
    shares = parts(instruction, lane)
    results = [(p.lanes, range(column, column + len(p.columns))) for p in shares]
    read: list[Cells] = []
    if operands.metadata is not None:
        read.append((np.arange(LANES), metadata_columns(instruction, operands.metadata)))
    for part in shares:
        if operands.a_in_memory:
            _, first = split_address(operands.a)
            read.append((part.lanes, range(first, first + K_BYTES // 4)))
        if operands.a_scales is not None:
            read.append(a_cells(instruction, operands.a_scales, part))
        if operands.b_scales is not None:
            read.append(b_cells(operands.b_scales, part))
    return results, read


def _check_operands(operands: Mma, blocks: int, memories: int) -> None:
    kind, scale, disabled = operands.kind, operands.scale, operands.disabled
    if (blocks, memories) != (kind.group, kind.group):
        raise OperandError(
            f"{kind.opcode}: needs shared and tensor memory of {kind.group} blocks, got {blocks} "
            f"and {memories}"
        )
    if scale and kind.name not in ("f16", "tf32"):
        raise OperandError(f"{kind.opcode}: only .kind::f16 and .kind::tf32 scale D")
    if not 0 <= scale <= 15:
        raise OperandError(f"{kind.opcode}: the scale of D must be in 0…15, got {scale}")
    if len(disabled) not in (0, 4 * kind.group) or (disabled and kind.scale_vector):
        raise OperandError(f"{kind.opcode}: a mask of lanes of {len(disabled)} words")


def _accumulator(instruction: Instruction, address: int) -> tuple[int, int]:
    lane, column = split_address(address)
    half = _uses_half_of_the_lanes(instruction)
    if lane not in ((0, 16) if half else (0,)):
        raise OperandError(
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
        raise OperandError(
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
        raise OperandError(f"{opcode}: A in tensor memory cannot be M-major")
    if instruction.kind.weight_stationary and instruction.rows < LANES:
        raise unsupported(f"{opcode}: A in tensor memory with {instruction.rows} rows")
    if instruction.a.padded:
        raise unsupported(f"{opcode}: A in tensor memory with elements {instruction.a.name}")
    lane, column = split_address(address)
    first = int(part.lanes[0]) % LANES_PER_WARP
    if lane != first:
        raise OperandError(
            f"{opcode}: A at {address:#010x} starts at lane {lane}, D at lane {first}"
        )
    words = memory.read_block(part.lanes, range(column, column + K_BYTES // 4), f"{opcode} (A)")
    chunks = words.view(np.uint8).reshape(len(words), -1, CHUNK_BYTES)
    return decode(instruction.a, chunks) * instruction.a_sign


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
