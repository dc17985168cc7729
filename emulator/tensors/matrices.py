"""Matrices of warps and warpgroups: `ldmatrix`, `stmatrix`, `mma.sync` and `wgmma`.

In registers, a matrix of `mma.sync` or `wgmma` is divided into tiles of 8 rows of 16 bytes. Lane
`l` of a warp holds the 4 bytes `l % 4` of row `l // 4` of each tile (PTX ISA 9.0, 9.7.14.5, "Matrix
Fragments for mma.m16n8k…"; 9.7.15.5.1.1 for `wgmma`). Register arrays are uint32[registers, lanes],
with the lanes of one warp, or of consecutive warps that hold 16 rows each. 64-bit elements have the
same layout in uint64, with four per row.

`ldmatrix` and `stmatrix` (9.7.14.5.15 and 9.7.14.5.16) move such tiles between shared memory and
the registers of a warp. The rows of tile `i` start at the addresses in lanes `8 i` to `8 i + 7`;
register `i` of every lane belongs to tile `i`. If 16-bit elements are transposed, lane `l` holds
rows `2 (l % 4)` and `2 (l % 4) + 1` of column `l // 4`. `m16n8` tiles of bytes, which only
`stmatrix` has, are transposed: lane `l` holds the same two rows of column `l // 4`, then of column
`l // 4 + 8` (CUTLASS, cute/atom/copy_traits_sm100.hpp, `SM100_U8x4_STSM_T`).

`mma.sync` (9.7.14.5) multiplies matrices in the registers of one warp. A is m × k by rows, B is k ×
8 by columns, C and D are m × 8.

`wgmma.mma_async` (9.7.15.5.2) multiplies matrices of a warpgroup: four consecutive warps. A (m × k)
comes from registers or shared memory, B (k × n) from shared memory; D is m × n. Arrays of B are
[n, k]. See `multiply_add` for the rounding of sums.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import ml_dtypes
import numpy as np

from pallasc.emulator.tensors.descriptors import (
    CHUNK_BYTES,
    OperandError,
    k_major_chunks,
    mn_major_chunks,
    parse_of_wgmma,
    read_chunks,
    unsupported,
)

ELEMENT_BYTES = {
    "f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1,
}  # fmt: skip
"""Element types of operands by their names in PTX, and their sizes."""

_ACCUMULATOR_TYPES = {
    "f32": np.float32, "f16": np.float16, "s32": np.int32, "f64": np.float64,
}  # fmt: skip

_TF32_MASK = np.uint32(0xFFFFE000)
_BYTES = np.arange(256, dtype=np.uint8)
_OF_BYTE = {
    name: _BYTES.view(dtype).astype(np.float64)
    for name, dtype in {
        "e4m3": ml_dtypes.float8_e4m3fn,
        "e5m2": ml_dtypes.float8_e5m2,
        "e2m3": ml_dtypes.float6_e2m3fn,
        "e3m2": ml_dtypes.float6_e3m2fn,
        "e2m1": ml_dtypes.float4_e2m1fn,
        "ue8m0": ml_dtypes.float8_e8m0fnu,
        "s8": np.int8,
        "u8": np.uint8,
    }.items()
}
"""For each type, the values of the 256 bytes; smaller elements are the low bits of a byte."""


def decode(raw: np.ndarray, dtype: str) -> np.ndarray:
    """Decode elements to float64, which represents all of them exactly.

    For tf32, the 13 low bits of 32 are ignored (PTX ISA 9.0, 5.2.3, leaves them undefined).

    Args:
        raw: unsigned integers of the type's size, at least a byte.
        dtype: f16, bf16, tf32, or a type of at most eight bits.

    Raises:
        UnsupportedError: any other type.
    """
    if dtype in _OF_BYTE:
        found: np.ndarray = _OF_BYTE[dtype][raw]
        return found
    if dtype == "f16":
        narrow: np.ndarray = raw.view(np.float16)
    elif dtype == "bf16":
        narrow = (raw.astype(np.uint32) << 16).view(np.float32)
    elif dtype == "tf32":
        narrow = (raw & _TF32_MASK).view(np.float32)
    else:
        raise unsupported(f"matrix elements of type {dtype}")
    return narrow.astype(np.float64)


def decode_words(words: np.ndarray, dtype: str) -> np.ndarray:
    """Decode elements packed in registers along the last dimension, lowest bits first.

    Args:
        words: uint32, or uint64 for f64.
        dtype: a type of `decode`, s4, u4 or f64.

    Raises:
        UnsupportedError: any other type.
    """
    if dtype == "f64":
        return words.view(np.float64)
    if dtype in ("s4", "u4"):
        packed = words.view(np.uint8)
        pairs = np.stack([packed & 15, packed >> 4], axis=-1).astype(np.float64)
        numbers = pairs.reshape(*packed.shape[:-1], -1)
        return np.where(numbers > 7, numbers - 16, numbers) if dtype == "s4" else numbers
    if dtype not in ELEMENT_BYTES:
        raise unsupported(f"matrix elements of type {dtype}")
    return decode(words.view(f"u{ELEMENT_BYTES[dtype]}"), dtype)


def multiply_add(
    a: np.ndarray,
    b: np.ndarray,
    accumulator: np.ndarray | None,
    dtype: str,
    *,
    saturate: bool = False,
) -> np.ndarray:
    """Return `a @ b.T + accumulator` in the type of an instruction's accumulators.

    Products are exact. The sum of all products of one instruction is computed in float64, the
    accumulator is added, and the result is rounded once, to nearest even. Tensor cores instead
    align all summands to the largest and truncate low bits, so that their last bits differ: for f32
    by about 2^-23 of the largest summand, for 8-bit floats on Hopper by about 2^-13 (CUTLASS
    promotes such sums to full precision for that reason). Integers are exact, and wrap unless they
    saturate.

    Args:
        a: float64[m, k].
        b: float64[n, k].
        accumulator: [m, n], of the type `dtype`; None for zeros.
        dtype: f32, f16, f64 or s32.
        saturate: True to clamp integers instead of wrapping.
    """
    with np.errstate(all="ignore"):
        total: np.ndarray = a @ b.T
        if dtype == "s32":
            exact: np.ndarray = total.astype(np.int64)
            if accumulator is not None:
                exact += accumulator
            if saturate:
                np.clip(exact, -(1 << 31), (1 << 31) - 1, out=exact)
            return exact.astype(np.int32)
        if accumulator is not None:
            total += accumulator
        return total.astype(_ACCUMULATOR_TYPES[dtype])


def rows_of_a(registers: np.ndarray, row_tiles: int = 2) -> np.ndarray:
    """Return operand A as [rows, words per row]; its registers go through the tiles by columns."""
    warps = registers.shape[1] // 32
    tiles = np.ascontiguousarray(registers).reshape(-1, row_tiles, warps, 8, 4)
    return tiles.transpose(2, 1, 3, 0, 4).reshape(warps * row_tiles * 8, -1)


def columns_of_b(registers: np.ndarray) -> np.ndarray:
    """Return operand B of one warp as [8 columns, words per column]."""
    return np.ascontiguousarray(registers).reshape(-1, 8, 4).transpose(1, 0, 2).reshape(8, -1)


def matrix_of(registers: np.ndarray, dtype: str, row_tiles: int = 2) -> np.ndarray:
    """Return the accumulators [rows, columns] in the type f32, f16, s32 or f64."""
    warps = registers.shape[1] // 32
    values = np.ascontiguousarray(registers).view(_ACCUMULATOR_TYPES[dtype])
    if dtype == "f16":
        tiles = values.reshape(-1, row_tiles, warps, 8, 4, 2).transpose(2, 1, 3, 0, 4, 5)
    else:
        tiles = values.reshape(-1, row_tiles, 2, warps, 8, 4).transpose(3, 1, 4, 0, 5, 2)
    return tiles.reshape(warps * row_tiles * 8, -1)


def registers_of(matrix: np.ndarray, row_tiles: int = 2) -> np.ndarray:
    """Return the registers that hold accumulators, the inverse of `matrix_of`."""
    rows, columns = matrix.shape
    warps = rows // (8 * row_tiles)
    tiles = matrix.reshape(warps, row_tiles, 8, columns // 8, 4, 2)
    if matrix.dtype == np.float16:
        values = np.ascontiguousarray(tiles.transpose(3, 1, 0, 2, 4, 5))
    else:
        values = np.ascontiguousarray(tiles.transpose(3, 1, 5, 0, 2, 4))
    words: np.ndarray = values.view(np.uint64 if matrix.dtype == np.float64 else np.uint32)
    return words.reshape(-1, 32 * warps)


ROW_BYTES = 16
"""Number of bytes at each lane's address, and the required alignment of the address."""

_ROW = np.dtype((np.void, ROW_BYTES))


@dataclass(frozen=True, slots=True)
class MatrixMove:
    """One form of `ldmatrix` or `stmatrix`: the number of tiles, and the layout of elements."""

    opcode: str
    is_store: bool
    count: int
    transposed: bool
    element_bytes: int


@lru_cache(maxsize=64)
def parse_move(opcode: str) -> MatrixMove:
    """Parse an opcode such as `ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16`."""
    parts = opcode.split(".")
    element_bytes = 2 if parts[-1] == "b16" else 1
    return MatrixMove(
        opcode, parts[0] == "stmatrix", int(parts[4][1:]), "trans" in parts, element_bytes
    )


def row_addresses(move: MatrixMove, addresses: np.ndarray) -> np.ndarray:
    """Return int64[8 count]: the start of each row that an instruction reads or writes.

    Args:
        move: the instruction.
        addresses: uint32[32], each lane's address in shared memory.

    Raises:
        OperandError: an address is not a multiple of 16.
    """
    rows = addresses[: 8 * move.count].astype(np.int64)
    if (rows % ROW_BYTES).any():
        lane = int(np.flatnonzero(rows % ROW_BYTES)[0])
        raise OperandError(
            f"{move.opcode}: the address of lane {lane} is misaligned: {rows[lane]:#x} is "
            f"{rows[lane] % ROW_BYTES} bytes past a {ROW_BYTES}-byte boundary",
            rule="misaligned",
        )
    return rows


def ldmatrix(move: MatrixMove, shared: np.ndarray, addresses: np.ndarray) -> np.ndarray:
    """Return uint32[count, 32]: the registers that an `ldmatrix` loads.

    Args:
        move: the instruction.
        shared: uint8[n], the shared memory of a block.
        addresses: uint32[32], each lane's address.

    Raises:
        OperandError: an address is misaligned or outside shared memory.
    """
    tiles = _rows(move, shared, addresses)
    found = tiles[0][tiles[1]]
    if not move.transposed:
        words: np.ndarray = found.view(np.uint32)
    else:
        halves = found.view(np.uint16).reshape(move.count, 4, 2, 8)
        words = np.ascontiguousarray(halves.transpose(0, 3, 1, 2)).view(np.uint32)
    return words.reshape(move.count, 32)


def stmatrix(
    move: MatrixMove, shared: np.ndarray, addresses: np.ndarray, registers: np.ndarray
) -> None:
    """Store the registers of an `stmatrix` to shared memory.

    Args:
        move: the instruction.
        shared: uint8[n], the shared memory of a block.
        addresses: uint32[32], each lane's address.
        registers: uint32[count, 32].

    Raises:
        OperandError: an address is misaligned or outside shared memory.
    """
    tiles = _rows(move, shared, addresses)
    found = np.ascontiguousarray(registers)
    if move.element_bytes == 1:
        # Byte 2 c + h of lane (g, q) is row 2 q + h, column g + 8 c.
        places = found.view(np.uint8).reshape(move.count, 8, 4, 2, 2)
        found = np.ascontiguousarray(places.transpose(0, 2, 4, 3, 1))
    elif move.transposed:
        halves = found.view(np.uint16).reshape(move.count, 8, 4, 2)
        found = np.ascontiguousarray(halves.transpose(0, 2, 3, 1))
    tiles[0][tiles[1]] = found.reshape(-1).view(_ROW)


def _rows(
    move: MatrixMove, shared: np.ndarray, addresses: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return shared memory as rows of 16 bytes, and the indices of the rows that the lanes name."""
    rows = row_addresses(move, addresses)
    whole = len(shared) // ROW_BYTES
    if (rows >= whole * ROW_BYTES).any():
        lane = int(np.argmax(rows))
        raise OperandError(
            f"{move.opcode}: the address of lane {lane}, {rows[lane]:#x}, is outside of the "
            f"{len(shared):#x} bytes of shared memory",
            rule="out-of-bounds",
        )
    return shared[: whole * ROW_BYTES].view(_ROW), rows // ROW_BYTES


_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")


WARP_ROWS = 16
"""Rows of A and D that each warp of a warpgroup computes."""


@dataclass(frozen=True, slots=True)
class Product:
    """One form of `mma` or `wgmma`: shape and types."""

    m: int
    n: int
    k: int
    d: str
    a: str
    b: str
    satfinite: bool

    @property
    def d_registers(self) -> int:
        """The registers of D per thread of a warpgroup."""
        return self.n // 4 if self.d == "f16" else self.n // 2


@lru_cache(maxsize=512)
def parse_product(opcode: str) -> Product:
    """Parse an opcode such as `mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32`."""
    m, n, k = map(int, _SHAPE.findall(opcode)[0])
    parts = opcode.split(".")
    d, a, b = parts[-3:] if parts[0] == "wgmma" else parts[-4:-1]
    return Product(m, n, k, d, a, b, "satfinite" in parts)


def mma(form: Product, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return the registers of D = A B + C.

    Args:
        form: the instruction.
        a: registers of 32 lanes.
        b: registers of 32 lanes.
        c: registers of 32 lanes, in the layout of D.
    """
    row_tiles = form.m // 8
    left = decode_words(rows_of_a(np.asarray(a), row_tiles), form.a)
    right = decode_words(columns_of_b(np.asarray(b)), form.b)
    accumulator = matrix_of(np.asarray(c), form.d, row_tiles)
    product = multiply_add(left, right, accumulator, form.d, saturate=form.satfinite)
    return registers_of(product, row_tiles)


def operand_chunks(
    w: Product, descriptor: int, which: str, *, transposed: bool = False, first_row: int | None
) -> np.ndarray:
    """Return the addresses of an operand's chunks of 16 bytes in shared memory.

    Args:
        w: the instruction.
        descriptor: its matrix descriptor.
        which: "a", whose rows are the matrix's rows, or "b", whose rows are the matrix's columns.
        transposed: the immediate `imm-trans-a` or `imm-trans-b`: M or N is contiguous.
        first_row: the first of 16 rows to return; None for all rows.

    Returns:
        int64[rows, chunks], or int64[k, chunks] if the operand is transposed.

    Raises:
        UnsupportedError: the descriptor is not supported, or transposed elements do not have 16
            bits.
    """
    rows, dtype = (w.m, w.a) if which == "a" else (w.n, w.b)
    size, matrix = ELEMENT_BYTES[dtype], parse_of_wgmma(descriptor)
    if not transposed:
        chunks = k_major_chunks(matrix, rows, w.k * size)
        return chunks if first_row is None else chunks[first_row : first_row + WARP_ROWS]
    if size != 2:
        raise unsupported(f"wgmma with a transposed operand of type {dtype}")
    chunks = mn_major_chunks(matrix, w.k, rows * size)
    if first_row is None:
        return chunks
    first, count = (number * size // CHUNK_BYTES for number in (first_row, WARP_ROWS))
    return chunks[:, first : first + count]


def read_operand(
    w: Product,
    shared: np.ndarray,
    descriptor: int,
    which: str,
    *,
    transposed: bool = False,
    first_row: int | None = None,
) -> np.ndarray:
    """Return float64[rows, k]: an operand from shared memory; arguments as `operand_chunks`.

    Raises:
        OperandError: the operand exceeds shared memory.
        UnsupportedError: as for `operand_chunks`.
    """
    dtype = w.a if which == "a" else w.b
    chunks = operand_chunks(w, descriptor, which, transposed=transposed, first_row=first_row)
    found = read_chunks(shared, chunks, "wgmma").reshape(len(chunks), -1)
    matrix = decode(found.view(f"u{ELEMENT_BYTES[dtype]}"), dtype)
    return np.ascontiguousarray(matrix.T) if transposed else matrix


def a_from_registers(w: Product, registers: np.ndarray) -> np.ndarray:
    """Return float64[rows, k]: the operand A from uint32[4, 32] of each warp."""
    words = rows_of_a(registers)
    return decode(words.view(f"u{ELEMENT_BYTES[w.a]}"), w.a)


def multiply(
    a: np.ndarray,
    b: np.ndarray,
    w: Product,
    *,
    accumulator: np.ndarray | None = None,
    negate: bool = False,
) -> np.ndarray:
    """Return D[m, n] in its type.

    Args:
        a: float64[m, k].
        b: float64[n, k].
        w: the instruction.
        accumulator: the previous D, if `scale-d` is true.
        negate: True if exactly one of `imm-scale-a` and `imm-scale-b` is -1.
    """
    return multiply_add(-a if negate else a, b, accumulator, w.d, saturate=w.satfinite)
