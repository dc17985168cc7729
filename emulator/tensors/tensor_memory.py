"""Tensor memory of one block, and its allocations (PTX ISA 9.0, 9.7.16.1).

Tensor memory has 128 lanes and 512 columns of 32-bit cells. An address holds the lane in its upper
16 bits and the column in its lower 16 bits. Columns are allocated in powers of two from 32 on,
always with all their lanes. Unwritten cells read as `POISON` by default; it is a NaN as f32, as two
halves f16 or bf16, and as four bytes f8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pallasc.emulator.tensors.misuse import OperandError

LANES = 128
COLUMNS = 512
LANES_PER_WARP = 32
SMALLEST_ALLOCATION = 32
POISON = 0xFFFFFFFF


class TensorCoreError(OperandError):
    """A kernel uses tensor memory or a tensor core in a way that the hardware does not allow."""


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

    @property
    def allocations(self) -> dict[int, int]:
        """First column and number of columns of each live allocation."""
        return dict(self._allocations)

    def alloc(self, columns: int) -> int | None:
        """Allocate columns and return their address, or None if too few are free.

        In the latter case, the hardware blocks until a block of the multiprocessor frees some.

        Raises:
            TensorCoreError: the number of columns is not a power of two in 32…512, or the permit to
                allocate was given up.
        """
        _check_count("tcgen05.alloc", columns)
        if not self._may_allocate:
            raise TensorCoreError(
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
            TensorCoreError: no live allocation has this address and number of columns.
        """
        _check_count("tcgen05.dealloc", columns)
        held = self._allocations.get(address)
        if held != columns:
            live = ", ".join(f"{n} columns at {a:#010x}" for a, n in self._allocations.items())
            raise TensorCoreError(
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
            TensorCoreError: a cell is outside every allocation; the message names `user`.
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
            raise TensorCoreError(
                f"{user} reaches lane {highest if highest >= LANES else lowest} of tensor memory, "
                f"which has lanes 0…{LANES - 1}",
                rule="out-of-bounds",
            )
        first, last = int(columns.min()), int(columns.max())
        if first < 0 or last >= COLUMNS:
            raise TensorCoreError(
                f"{user} reaches column {last if last >= COLUMNS else first} of tensor memory, "
                f"which has columns 0…{COLUMNS - 1}",
                rule="out-of-bounds",
            )
        inside = self._allocated[columns]
        if not inside.all():
            column = int(columns[~inside].min())
            raise TensorCoreError(
                f"{user} reaches column {column} of tensor memory, which is not allocated",
                rule="out-of-bounds",
            )


def _check_count(opcode: str, columns: int) -> None:
    if columns.bit_count() != 1 or not SMALLEST_ALLOCATION <= columns <= COLUMNS:
        raise TensorCoreError(
            f"{opcode} of {columns} columns: the number must be a power of two in "
            f"{SMALLEST_ALLOCATION}…{COLUMNS}",
            rule="tensor-allocation",
        )
