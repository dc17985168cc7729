"""`ldmatrix` and `stmatrix`: tiles of 8 rows of 16 bytes between shared memory and a warp.

PTX ISA 9.0, 9.7.14.5.15 and 9.7.14.5.16. The rows of tile `i` start at the addresses in lanes `8 i`
to `8 i + 7`; register `i` of every lane belongs to tile `i`. Lane `l` holds the 4 bytes `l % 4` of
row `l // 4`. If 16-bit elements are transposed, lane `l` holds rows `2 (l % 4)` and the next one of
column `l // 4`. In `m16n8` tiles of bytes, which only `stmatrix` has, it holds the same two rows of
column `l // 4` and then of column `l // 4 + 8` (CUTLASS, cute/atom/copy_traits_sm100.hpp,
`SM100_U8x4_STSM_T`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pallasc.emulator.tensors.misuse import OperandError, unsupported

ROW_BYTES = 16
"""Number of bytes at each lane's address, and the required alignment of the address."""

_OPCODE = re.compile(
    r"(?P<name>ldmatrix|stmatrix)\.sync\.aligned\.(?P<shape>m8n8|m16n8)\.x(?P<count>[124])"
    r"(?P<trans>\.trans)?\.shared(?:::cta)?\.(?P<type>b16|b8)"
)
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
def parse(opcode: str) -> MatrixMove:
    """Parse the opcode with all its parts.

    Args:
        opcode: such as `ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16`.

    Raises:
        UnsupportedError: the opcode is neither of the two, or is not modeled.
    """
    found = _OPCODE.fullmatch(opcode)
    if found is None:
        raise unsupported(opcode)
    is_store, transposed = found["name"] == "stmatrix", bool(found["trans"])
    halves = (found["shape"], found["type"]) == ("m8n8", "b16")
    if not halves:
        bytes_of_store = is_store and transposed
        if not bytes_of_store or (found["shape"], found["type"]) != ("m16n8", "b8"):
            raise unsupported(opcode)
    return MatrixMove(opcode, is_store, int(found["count"]), transposed, 2 if halves else 1)


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
