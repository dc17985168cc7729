"""`ldmatrix` and `stmatrix`, lane by lane as the manual puts it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pallasc.emulator.tensors import matrices
from pallasc.errors import CheckError

SHARED_BYTES = 4096


def addresses_of(seed: int) -> np.ndarray:
    """32 rows in any order."""
    rows = np.random.default_rng(seed).permutation(SHARED_BYTES // 16)[:32]
    return (rows * 16).astype(np.uint32)


def opcode(name: str, count: int, trans: str, space: str = "shared") -> str:
    return f"{name}.sync.aligned.m8n8.x{count}{trans}.{space}.b16"


def element(lane: int, half: int, transposed: bool) -> tuple[int, int]:
    """Row and column of a half of a lane's register."""
    row, column = lane // 4, lane % 4 * 2 + half
    return (column, row) if transposed else (row, column)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("space", ["shared", "shared::cta"])
def test_ldmatrix(count: int, trans: str, space: str):
    move = matrices.parse_move(opcode("ldmatrix", count, trans, space))
    shared = np.random.default_rng(0).integers(0, 256, SHARED_BYTES).astype(np.uint8)
    addresses = addresses_of(1)
    registers = matrices.ldmatrix(move, shared, addresses)
    assert registers.shape == (count, 32)
    assert registers.dtype == np.uint32
    for tile, lane, half in itertools.product(range(count), range(32), range(2)):
        row, column = element(lane, half, bool(trans))
        at = int(addresses[8 * tile + row]) + 2 * column
        wanted = int.from_bytes(shared[at : at + 2].tobytes(), "little")
        assert int(registers[tile, lane]) >> 16 * half & 0xFFFF == wanted


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", ["", ".trans"])
def test_stmatrix(count: int, trans: str):
    move = matrices.parse_move(opcode("stmatrix", count, trans))
    shared = np.full(SHARED_BYTES, 0xCC, np.uint8)
    addresses = addresses_of(2)
    registers = np.random.default_rng(0).integers(0, 1 << 32, (count, 32)).astype(np.uint32)
    wanted = shared.copy()
    for tile, lane, half in itertools.product(range(count), range(32), range(2)):
        row, column = element(lane, half, bool(trans))
        at = int(addresses[8 * tile + row]) + 2 * column
        bits = int(registers[tile, lane]) >> 16 * half & 0xFFFF
        wanted[at : at + 2] = list(bits.to_bytes(2, "little"))
    matrices.stmatrix(move, shared, addresses, registers)
    assert (shared == wanted).all()


@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix_of_bytes(count: int):
    """A 16 × 8 matrix M, of which a lane holds four bytes, becomes 8 rows of 16 bytes."""
    move = matrices.parse_move(f"stmatrix.sync.aligned.m16n8.x{count}.trans.shared.b8")
    shared = np.full(SHARED_BYTES, 0xCC, np.uint8)
    addresses = addresses_of(3)
    registers = np.random.default_rng(0).integers(0, 1 << 32, (count, 32)).astype(np.uint32)
    wanted = shared.copy()
    for tile, lane, position in itertools.product(range(count), range(32), range(4)):
        m, n = lane // 4 + 8 * (position // 2), 2 * (lane % 4) + position % 2
        byte = int(registers[tile, lane]) >> 8 * position & 0xFF
        wanted[int(addresses[8 * tile + n]) + m] = byte
    matrices.stmatrix(move, shared, addresses, registers)
    assert (shared == wanted).all()


def test_a_bad_address_is_an_error_with_its_lane():
    shared = np.zeros(1000, np.uint8)
    addresses = np.zeros(32, np.uint32)
    load = matrices.parse_move(opcode("ldmatrix", 2, ""))
    addresses[13] = 0x48
    with pytest.raises(CheckError, match="lane 13 is misaligned: 0x48 is 8 bytes past a 16-byte"):
        matrices.ldmatrix(load, shared, addresses)
    addresses[13] = 992
    store = matrices.parse_move(opcode("stmatrix", 2, ""))
    with pytest.raises(CheckError, match="lane 13, 0x3e0, is outside of the 0x3e8 bytes"):
        matrices.stmatrix(store, shared, addresses, np.zeros((2, 32), np.uint32))
