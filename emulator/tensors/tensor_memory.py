"""Tensor memory of one block, and its allocations (PTX ISA 9.0, 9.7.16.1).

Tensor memory has 128 lanes and 512 columns of 32-bit cells. An address holds the lane in its upper
16 bits and the column in its lower 16 bits. Columns are allocated in powers of two from 32 on,
always with all their lanes. Unwritten cells read as `POISON` by default; it is NaN as one f32, as
two f16 or bf16, and as four f8 values.

`tcgen05.ld`, `.ld.red` and `.st` move cells to or from the registers of a warp. The shape in the
mnemonic is a unit of cells, and `.xN` repeats it along the columns (PTX ISA 9.0, 9.7.16.2.3;
CUTLASS' copy_traits_sm100.hpp has the same tables as layouts). A warp can access only 32 lanes,
chosen by its position in the warpgroup. The lane of an address is relative to these lanes; the
absolute lane number is also accepted.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pallasc.emulator.numbers.rounding import DTYPES
from pallasc.emulator.numbers.table import reduce_values
from pallasc.emulator.tensors.descriptors import OperandError

LANES = 128
COLUMNS = 512
LANES_PER_WARP = 32
SMALLEST_ALLOCATION = 32
POISON = 0xFFFFFFFF


def split_address(address: int) -> tuple[int, int]:
    """Return lane and column of a tensor memory address."""
    return address >> 16 & 0xFFFF, address & 0xFFFF


class TensorMemory:
    """Tensor memory of one block.

    Every access goes through `read` and `write`, which check it against the allocations.

    Attributes:
        words: uint32[128, 512], the cells.
        written: bool[128, 512], the cells that were written since their allocation.
    """

    def __init__(self, poison: int = POISON) -> None:
        self._poison = poison
        self.words = np.full((LANES, COLUMNS), poison, np.uint32)
        self.written = np.zeros((LANES, COLUMNS), np.bool_)
        self._allocated = np.zeros(COLUMNS, np.bool_)
        self._allocations: dict[int, int] = {}
        self._may_allocate = True

    def alloc(self, columns: int) -> int | None:
        """Allocate columns and return their address, or None if too few are free.

        If too few are free, the hardware waits until another block on the same SM frees some.

        Raises:
            OperandError: the number of columns is not a power of two in 32…512, or the permit to
                allocate was given up.
        """
        _check_count("tcgen05.alloc", columns)
        if not self._may_allocate:
            raise OperandError(
                "tcgen05.alloc after tcgen05.relinquish_alloc_permit of the same block",
                rule="tensor-allocation",
                hint="Allocate everything before giving up the permit.",
            )
        for first in range(0, COLUMNS - columns + 1, SMALLEST_ALLOCATION):
            if not self._allocated[first : first + columns].any():
                self._allocations[first] = columns
                self._allocated[first : first + columns] = True
                return first
        return None

    def dealloc(self, address: int, columns: int) -> None:
        """Free an allocation, and reset its cells to poison.

        Raises:
            OperandError: no live allocation has this address and number of columns.
        """
        _check_count("tcgen05.dealloc", columns)
        held = self._allocations.get(address)
        if held != columns:
            live = ", ".join(f"{n} columns at {a:#010x}" for a, n in self._allocations.items())
            raise OperandError(
                f"tcgen05.dealloc of {columns} columns at {address:#010x} matches no allocation; "
                f"allocated: {live or 'nothing'}",
                rule="tensor-allocation",
            )
        del self._allocations[address]
        freed = slice(address, address + columns)
        self._allocated[freed] = False
        self.words[:, freed] = self._poison
        self.written[:, freed] = False

    def relinquish_alloc_permit(self) -> None:
        """Give up the right to allocate."""
        self._may_allocate = False

    def read(self, lanes: NDArray[Any], columns: NDArray[Any], user: str) -> NDArray[np.uint32]:
        """Return the cells at `lanes` and `columns`, which are broadcast against each other.

        Raises:
            OperandError: a cell is outside every allocation; the message names `user`.
        """
        self._check(lanes, columns, user)
        words: NDArray[np.uint32] = self.words[lanes, columns]
        return words

    def write(
        self, lanes: NDArray[Any], columns: NDArray[Any], words: NDArray[np.uint32], user: str
    ) -> None:
        """Write cells, with arguments and errors as for `read`."""
        self._check(lanes, columns, user)
        self.words[lanes, columns] = words
        self.written[lanes, columns] = True

    def read_block(self, lanes: NDArray[Any], columns: range, user: str) -> NDArray[np.uint32]:
        """Return the cells of ascending lanes in a range of columns: uint32[lanes, columns].

        Faster than `read`, with the same errors.
        """
        block = self._block(lanes, columns, user)
        words: NDArray[np.uint32] = self.words[block].copy()
        return words

    def write_block(
        self, lanes: NDArray[Any], columns: range, words: NDArray[np.uint32], user: str
    ) -> None:
        """Write cells, with arguments and errors as for `read_block`."""
        block = self._block(lanes, columns, user)
        self.words[block] = words
        self.written[block] = True

    def _block(
        self, lanes: NDArray[Any], columns: range, user: str
    ) -> tuple[slice | NDArray[Any], slice]:
        self._check(lanes, np.arange(columns.start, columns.stop), user)
        first, last = int(lanes[0]), int(lanes[-1])
        whole = last - first + 1 == len(lanes)
        return slice(first, last + 1) if whole else lanes, slice(columns.start, columns.stop)

    def _check(self, lanes: NDArray[Any], columns: NDArray[Any], user: str) -> None:
        lowest, highest = int(lanes.min()), int(lanes.max())
        if lowest < 0 or highest >= LANES:
            raise OperandError(
                f"{user} reaches lane {highest if highest >= LANES else lowest} of tensor memory, "
                f"which has lanes 0…{LANES - 1}",
                rule="out-of-bounds",
            )
        first, last = int(columns.min()), int(columns.max())
        if first < 0 or last >= COLUMNS:
            raise OperandError(
                f"{user} reaches column {last if last >= COLUMNS else first} of tensor memory, "
                f"which has columns 0…{COLUMNS - 1}",
                rule="out-of-bounds",
            )
        inside = self._allocated[columns]
        if not inside.all():
            column = int(columns[~inside].min())
            raise OperandError(
                f"{user} reaches column {column} of tensor memory, which is not allocated",
                rule="out-of-bounds",
            )


def _check_count(opcode: str, columns: int) -> None:
    if columns.bit_count() != 1 or not SMALLEST_ALLOCATION <= columns <= COLUMNS:
        raise OperandError(
            f"{opcode} of {columns} columns: the number must be a power of two in "
            f"{SMALLEST_ALLOCATION}…{COLUMNS}",
            rule="tensor-allocation",
        )


# shape -> registers per thread in one unit.
_SHAPES = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}


@dataclass(frozen=True, slots=True)
class Move:
    """One tcgen05.ld, .ld.red or .st.

    Attributes:
        opcode: the whole mnemonic.
        shape: as in the mnemonic, `16x256b`.
        repeats: N of `.xN`.
        halves: True if a register holds the lower halves of two adjacent cells (`.pack::16b` of a
            load, `.unpack::16b` of a store).
        reduction: `min` or `max` of tcgen05.ld.red, else empty.
        absolute: True if the reduction is over absolute values.
        propagates_nan: True if a NaN makes the result of the reduction a NaN.
        type: type of the reduction, `f32`, `s32` or `u32`, else `b32`.
    """

    opcode: str
    shape: str
    repeats: int
    halves: bool = False
    reduction: str = ""
    absolute: bool = False
    propagates_nan: bool = False
    type: str = "b32"

    @property
    def registers(self) -> int:
        """Registers per thread, without the result of a reduction."""
        return _SHAPES[self.shape] * self.repeats


@functools.cache
def parse_move(opcode: str) -> Move:
    """Parse the mnemonic of a tcgen05.ld, tcgen05.ld.red or tcgen05.st."""
    parts = opcode.split(".")
    shape = next(part for part in parts if part in _SHAPES)
    repeats = int(parts[parts.index(shape) + 1][1:])
    return Move(
        opcode,
        shape,
        repeats,
        halves="pack::16b" in parts or "unpack::16b" in parts,
        reduction=next((part for part in parts if part in ("min", "max")), ""),
        absolute="abs" in parts,
        propagates_nan="NaN" in parts,
        type=parts[-1],
    )


@functools.cache
def cells(shape: str, repeats: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return lane and column, relative to the address, for each register of each thread of a warp.

    Args:
        shape: as in the mnemonic; for `.16x32bx2`, columns are relative to the thread's own half.
        repeats: N of `.xN`.

    Returns:
        Two arrays int[registers, 32]. If a register holds two halves, columns are counted in pairs.
    """
    per_unit = _SHAPES[shape]
    register, thread = np.meshgrid(np.arange(per_unit * repeats), np.arange(32), indexing="ij")
    unit, inner = register // per_unit, register % per_unit
    if shape == "32x32b":
        lane, column = thread, register
    elif shape == "16x64b":
        lane, column = thread // 4 + thread % 2 * 8, unit * 2 + thread // 2 % 2
    elif shape == "16x128b":
        lane, column = thread // 4 + inner * 8, unit * 4 + thread % 4
    elif shape == "16x256b":
        lane, column = thread // 4 + inner // 2 * 8, unit * 8 + thread % 4 * 2 + inner % 2
    else:
        lane, column = thread % 16, register
    for array in (lane, column):
        array.setflags(write=False)
    return lane, column


def accessed_cells(
    move: Move, address: int, warp: int, split: int = 0
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return lane and column in tensor memory of each register and thread: int[registers, 32].

    If a register holds two halves, its second cell is in the next column.

    Args:
        move: the instruction.
        address: address in tensor memory, the same for all threads.
        warp: position of the warp in its warpgroup.
        split: the immediate operand of `.16x32bx2`, in columns.

    Raises:
        OperandError: the address is in the lanes of another warp, or does not fit the shape.
    """
    lane, column = split_address(address)
    quarter, within = divmod(lane, LANES_PER_WARP)
    if quarter not in (0, warp % 4):
        raise OperandError(
            f"{move.opcode}: warp {warp % 4} of a warpgroup may use lanes "
            f"{warp % 4 * 32}…{warp % 4 * 32 + 31} of tensor memory; address {address:#010x} "
            f"names lane {lane}"
        )
    if within not in ((0,) if move.shape == "32x32b" else (0, 16)):
        raise OperandError(
            f"{move.opcode}: the address {address:#010x} starts at lane {within} of the warp's 32; "
            f".{move.shape} starts at lane 0{'' if move.shape == '32x32b' else ' or 16'}"
        )
    lanes, columns = cells(move.shape, move.repeats)
    columns = columns * (2 if move.halves else 1) + column
    if move.shape == "16x32bx2":
        columns = columns + np.arange(32) // 16 * split
    return lanes + (warp % 4 * LANES_PER_WARP + within), columns


def load(
    memory: TensorMemory, address: int, warp: int, move: Move, split: int = 0
) -> NDArray[np.uint32]:
    """Return the registers of a tcgen05.ld: uint32[registers, 32].

    Args:
        memory: tensor memory of the warp's block.
        address: address in tensor memory.
        warp: position of the warp in its warpgroup.
        move: the instruction.
        split: the immediate operand of `.16x32bx2`.

    Raises:
        OperandError: a cell is not in the warp's lanes, or not allocated.
    """
    lanes, columns = accessed_cells(move, address, warp, split)
    words = memory.read(lanes, columns, move.opcode)
    if not move.halves:
        return words
    upper = memory.read(lanes, columns + 1, move.opcode)
    return words & np.uint32(0xFFFF) | upper << np.uint32(16)


def store(
    memory: TensorMemory,
    address: int,
    warp: int,
    move: Move,
    registers: NDArray[np.uint32],
    split: int = 0,
) -> None:
    """Execute a tcgen05.st of `registers`, uint32[registers, 32]; otherwise like `load`."""
    lanes, columns = accessed_cells(move, address, warp, split)
    if not move.halves:
        memory.write(lanes, columns, registers, move.opcode)
        return
    memory.write(lanes, columns, registers & np.uint32(0xFFFF), move.opcode)
    memory.write(lanes, columns + 1, registers >> np.uint32(16), move.opcode)


def reduce(move: Move, registers: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the result of tcgen05.ld.red over each thread's `registers`: uint32[32].

    Without `.NaN`, the result is NaN only if all values are NaN (as for `redux.sync`, PTX ISA 9.0,
    9.7.13.9). NaN results are canonical, and +0 is greater than -0.
    """
    values = registers.view(DTYPES[move.type])
    result = reduce_values(
        move.reduction, move.type, values, nan=move.propagates_nan, absolute=move.absolute
    )
    return result.view(np.uint32)
