"""Matrices of warps and warpgroups: `ldmatrix`, `stmatrix`, `mma.sync` and `wgmma`.

Swizzles of shared memory.

A swizzle of 32, 64 or 128 bytes exchanges pieces of 16 bytes: bits 4 and up of an address are XORed
with the same number of bits from bit 7 up (CUTLASS: `Swizzle<B, 4, 3>`). Tensor copies and matrix
descriptors both apply it to the address in the shared window, regardless of a tile's start.

Matrix descriptors of `wgmma`: the location of operands in shared memory.

A descriptor (PTX ISA 9.0, 9.7.15.5.1.2.2, "Matrix Descriptor") is 64 bits:

    0-13 start address, 16-29 leading byte offset, 32-45 stride byte offset, each in units of 16
    bytes; 49-51 base offset; 62-63 swizzle: 0 none, 1 128 bytes, 2 64 bytes, 3 32 bytes

Operands consist of tiles of 8 rows, each row as wide as the swizzle (16 bytes without one). The
meaning of the two offsets depends on the contiguous dimension (CUTLASS,
cute/atom/mma_traits_sm90_gmma.hpp, `make_gmma_desc`):

    contiguous   swizzle   leading byte offset             stride byte offset
    K            none      to the next 16 bytes along K    to the next 8 rows of M or N
    K            some      unused                          to the next 8 rows of M or N
    M or N       none      to the next 8 of K              to the next 16 bytes along M or N
    M or N       some      to the next row width of M/N    to the next 8 of K

The swizzle applies to the final sum, so that a start address may be inside a tile.

Decoding and arithmetic of the element types of matrix instructions.

Layouts of the matrices of `mma.sync` and `wgmma` in the registers of warps.

For each tile of 8 rows and 16 bytes, lane `l` of a warp holds the 4 bytes `l % 4` of row `l // 4`
(PTX ISA 9.0, 9.7.14.5, "Matrix Fragments for mma.m16n8k…"; 9.7.15.5.1.1 for `wgmma`). Register
arrays are uint32[registers, lanes], with the lanes of one warp, or of consecutive warps that hold
16 rows each. 64-bit elements have the same layout in uint64, with four per row.

`ldmatrix` and `stmatrix`: tiles of 8 rows of 16 bytes between shared memory and a warp.

PTX ISA 9.0, 9.7.14.5.15 and 9.7.14.5.16. The rows of tile `i` start at the addresses in lanes `8 i`
to `8 i + 7`; register `i` of every lane belongs to tile `i`. Lane `l` holds the 4 bytes `l % 4` of
row `l // 4`. If 16-bit elements are transposed, lane `l` holds rows `2 (l % 4)` and the next one of
column `l // 4`. In `m16n8` tiles of bytes, which only `stmatrix` has, it holds the same two rows of
column `l // 4` and then of column `l // 4 + 8` (CUTLASS, cute/atom/copy_traits_sm100.hpp,
`SM100_U8x4_STSM_T`).

`mma.sync`: matrix products of one warp, from registers to registers.

PTX ISA 9.0, 9.7.14.5. A is m × k by rows, B is k × 8 by columns, C and D are m × 8. Registers are
uint32[registers, 32], or uint64[registers, 32] for f64. See `multiply_add` for the
rounding of sums.

`wgmma.mma_async`: matrix products of a warpgroup, 128 threads of four consecutive warps.

PTX ISA 9.0, 9.7.15.5.2. A (m × k) comes from registers or shared memory, B (k × n) from shared
memory; D is m × n. Here B is held as [n, k], as listed by `operand_addresses`. See
`multiply_add` for the rounding of sums.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import ml_dtypes
import numpy as np

from pallasc.errors import CheckError, UnsupportedError


class OperandError(CheckError):
    """An instruction has operands that the hardware does not allow.

    The machine converts it to a fault with a location; `rule` is the fault's rule.
    """

    def __init__(
        self, message: str, *, rule: str = "invalid-operand", hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.rule = rule


def unsupported(what: str) -> UnsupportedError:
    """Return the error for something that the emulator does not support: an opcode, or a noun."""
    return UnsupportedError(f"the emulator does not support {what}")


PIECE_BYTES = 16
"""The unit that a swizzle moves as a whole."""

PERIOD_BYTES = 1024
"""Addresses that differ by a multiple of this are swizzled in the same way."""

_MASKS = {0: 0, 32: 0x10, 64: 0x30, 128: 0x70}


def swizzled(addresses: np.ndarray, swizzle_bytes: int) -> np.ndarray:
    """Return the swizzled addresses in shared memory.

    Raises:
        UnsupportedError: there is no swizzle of this width.
    """
    mask = _mask(swizzle_bytes)
    return addresses ^ (addresses >> 3 & mask) if mask else addresses


@lru_cache(maxsize=512)
def piece_order(start: int, pieces: int, swizzle_bytes: int) -> np.ndarray:
    """Return the index of the tile's piece in each piece of shared memory from `start` on.

    A swizzle is its own inverse, so this is also the destination of each piece of the tile.

    Args:
        start: the first address modulo `PERIOD_BYTES`, a multiple of the swizzle's width.
        pieces: number of pieces of 16 bytes.
        swizzle_bytes: 32, 64 or 128.
    """
    addresses = start + PIECE_BYTES * np.arange(pieces, dtype=np.int64)
    order = (swizzled(addresses, swizzle_bytes) - start) // PIECE_BYTES
    order.flags.writeable = False
    return order


def _mask(swizzle_bytes: int) -> int:
    if swizzle_bytes not in _MASKS:
        raise unsupported(f"a swizzle of {swizzle_bytes} bytes")
    return _MASKS[swizzle_bytes]


_SWIZZLES = (0, 128, 64, 32)
_UNIT = 16
_FIELD = (1 << 14) - 1
_USED_BITS = _FIELD | _FIELD << 16 | _FIELD << 32 | 7 << 49 | 3 << 62
_TILE_ROWS = 8


@dataclass(frozen=True, slots=True)
class MatrixDescriptor:
    """A decoded descriptor; all fields except `base_offset` are in bytes."""

    start: int
    leading: int
    stride: int
    base_offset: int
    swizzle: int


@lru_cache(maxsize=4096)
def decode_descriptor(descriptor: int) -> MatrixDescriptor:
    """Decode a descriptor of `wgmma`.

    Raises:
        UnsupportedError: reserved bits are set.
    """
    if descriptor & ~_USED_BITS:
        raise unsupported(f"a matrix descriptor {descriptor:#018x} with reserved bits set")
    return MatrixDescriptor(
        start=(descriptor & _FIELD) * _UNIT,
        leading=(descriptor >> 16 & _FIELD) * _UNIT,
        stride=(descriptor >> 32 & _FIELD) * _UNIT,
        base_offset=descriptor >> 49 & 7,
        swizzle=_SWIZZLES[descriptor >> 62],
    )


def matrix_addresses(
    descriptor: MatrixDescriptor, *, rows: int, k: int, element_bytes: int, transposed: bool
) -> np.ndarray:
    """Return int64[rows, k]: the address in shared memory of each element.

    Args:
        descriptor: the decoded descriptor.
        rows: M or N.
        k: number of elements along K.
        element_bytes: the size of an element.
        transposed: True if M or N is contiguous, instead of K.

    Raises:
        UnsupportedError: the descriptor has a base offset.
    """
    if descriptor.base_offset:
        raise unsupported(f"a matrix descriptor with base offset {descriptor.base_offset}")
    low = descriptor.start % PERIOD_BYTES
    addresses = _addresses(
        low,
        descriptor.leading,
        descriptor.stride,
        descriptor.swizzle,
        rows,
        k,
        element_bytes,
        transposed,
    )
    return addresses + (descriptor.start - low)


def read_matrix(shared: np.ndarray, addresses: np.ndarray, element_bytes: int) -> np.ndarray:
    """Return the elements at `addresses` as unsigned integers of their size.

    Raises:
        OperandError: an address is outside shared memory.
    """
    last = int(addresses.max()) + element_bytes
    if last > len(shared):
        raise OperandError(
            f"a matrix operand reaches byte {last - 1:#x} of the {len(shared):#x} bytes of shared "
            f"memory",
            rule="out-of-bounds",
        )
    whole = shared[: len(shared) // element_bytes * element_bytes]
    found: np.ndarray = whole.view(f"u{element_bytes}")[addresses // element_bytes]
    return found


@lru_cache(maxsize=1024)
def _addresses(
    start: int,
    leading: int,
    stride: int,
    swizzle: int,
    rows: int,
    k: int,
    element_bytes: int,
    transposed: bool,
) -> np.ndarray:
    row = np.arange(rows, dtype=np.int64)[:, None]
    column = np.arange(k, dtype=np.int64)[None, :]
    width = swizzle or PIECE_BYTES
    across, down = (row, column) if transposed else (column, row)
    across_bytes = across * element_bytes
    if swizzle and not transposed:
        # K is at most 32 bytes, and continues from the start address within the row.
        across_offset = across_bytes
    else:
        step = stride if transposed and not swizzle else leading
        across_offset = across_bytes % width + across_bytes // width * step
    step = leading if transposed and not swizzle else stride
    down_offset = down % _TILE_ROWS * width + down // _TILE_ROWS * step
    addresses = swizzled(start + across_offset + down_offset, swizzle)
    addresses.flags.writeable = False
    return addresses


ELEMENT_BYTES = {
    "f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1,
}  # fmt: skip
"""Element types of operands by their names in PTX, and their sizes."""

_ACCUMULATORS = {"f32": np.float32, "f16": np.float16, "f64": np.float64}

_TF32_MASK = np.uint32(0xFFFFE000)
_BYTES = np.arange(256, dtype=np.uint8)
_OF_BYTE = {
    "e4m3": _BYTES.view(ml_dtypes.float8_e4m3fn).astype(np.float64),
    "e5m2": _BYTES.view(ml_dtypes.float8_e5m2).astype(np.float64),
    "s8": _BYTES.view(np.int8).astype(np.float64),
    "u8": _BYTES.astype(np.float64),
}


def decode(raw: np.ndarray, dtype: str) -> np.ndarray:
    """Decode elements to float64, which represents all of them exactly.

    For tf32, the 13 low bits of 32 are ignored (PTX ISA 9.0, 5.2.3, leaves them undefined).

    Args:
        raw: unsigned integers of the type's size.
        dtype: f16, bf16, tf32, e4m3, e5m2, s8 or u8.

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
        return total.astype(_ACCUMULATORS[dtype])


_ACCUMULATOR_TYPES = {
    "f32": np.float32, "f16": np.float16, "s32": np.int32, "f64": np.float64,
}  # fmt: skip


def rows_of_a(registers: np.ndarray, row_tiles: int = 2) -> np.ndarray:
    """Return operand A as [rows, words per row]; its registers go down the tiles of rows first."""
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


@dataclass(frozen=True, slots=True)
class Mma:
    """One form of the instruction: shape and types."""

    m: int
    k: int
    d: str
    a: str
    b: str
    satfinite: bool


@lru_cache(maxsize=256)
def parse_mma(opcode: str) -> Mma:
    """Parse an opcode such as `mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32`."""
    m, _, k = map(int, _SHAPE.findall(opcode)[0])
    *parts, d, a, b, _ = opcode.split(".")
    return Mma(m, k, d, a, b, "satfinite" in parts)


def mma(form: Mma, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return the registers of D = A B + C.

    Args:
        form: the instruction.
        a: registers of 32 lanes.
        b: registers of 32 lanes.
        c: registers of 32 lanes, as many as those of D.
    """
    row_tiles = form.m // 8
    left = decode_words(rows_of_a(np.asarray(a), row_tiles), form.a)
    right = decode_words(columns_of_b(np.asarray(b)), form.b)
    accumulator = matrix_of(np.asarray(c), form.d, row_tiles)
    product = multiply_add(left, right, accumulator, form.d, saturate=form.satfinite)
    return registers_of(product, row_tiles)


@dataclass(frozen=True, slots=True)
class Wgmma:
    """One form of the instruction: shape, types, and registers of D per thread."""

    m: int
    n: int
    k: int
    d: str
    a: str
    b: str
    d_registers: int
    satfinite: bool


@lru_cache(maxsize=256)
def parse_wgmma(opcode: str) -> Wgmma:
    """Parse an opcode such as `wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16`."""
    m, n, k = map(int, _SHAPE.findall(opcode)[0])
    *parts, d, a, b = opcode.split(".")
    return Wgmma(m, n, k, d, a, b, n // 4 if d == "f16" else n // 2, "satfinite" in parts)


def operand_addresses(
    w: Wgmma, descriptor: int, which: str, *, transposed: bool = False
) -> np.ndarray:
    """Return int64[rows, k]: the address in shared memory of each element of an operand.

    Args:
        w: the instruction.
        descriptor: its matrix descriptor.
        which: "a", whose rows are the matrix's rows, or "b", whose rows are the matrix's columns.
        transposed: the immediate `imm-trans-a` or `imm-trans-b`: M or N is contiguous.

    Raises:
        UnsupportedError: the descriptor is not modeled, or transposed elements do not have 16 bits.
    """
    rows, dtype = (w.m, w.a) if which == "a" else (w.n, w.b)
    if transposed and ELEMENT_BYTES[dtype] != 2:
        raise unsupported(f"wgmma with a transposed operand of type {dtype}")
    return matrix_addresses(
        decode_descriptor(descriptor),
        rows=rows,
        k=w.k,
        element_bytes=ELEMENT_BYTES[dtype],
        transposed=transposed,
    )


def read_operand(
    w: Wgmma,
    shared: np.ndarray,
    descriptor: int,
    which: str,
    *,
    transposed: bool = False,
    chosen: slice = slice(None),
) -> np.ndarray:
    """Return float64[rows, k]: an operand from shared memory; arguments as `operand_addresses`.

    With `chosen`, only these rows are read.

    Raises:
        OperandError: the operand exceeds shared memory.
        UnsupportedError: as for `operand_addresses`.
    """
    dtype = w.a if which == "a" else w.b
    addresses = operand_addresses(w, descriptor, which, transposed=transposed)[chosen]
    return decode(read_matrix(shared, addresses, ELEMENT_BYTES[dtype]), dtype)


def a_from_registers(w: Wgmma, registers: np.ndarray) -> np.ndarray:
    """Return float64[rows, k]: the operand A from uint32[4, 32] of each warp."""
    words = rows_of_a(registers)
    return decode(words.view(f"u{ELEMENT_BYTES[w.a]}"), w.a)


def multiply(
    a: np.ndarray,
    b: np.ndarray,
    w: Wgmma,
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
