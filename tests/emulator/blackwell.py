"""Operands of tcgen05 as Mosaic lays them out in shared memory, written down apart from the code.

Mosaic tiles a matrix by 8 rows of as many bytes as the swizzling has, and TMA exchanges the 16-byte
chunks of a row by the number of the row in its tile.
"""

import functools
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from pallasc.emulator.tensors import tcgen05, tensor_memory
from pallasc.emulator.tensors.tcgen05_instructions import parse_mma
from pallasc.emulator.tensors.tensor_memory import TensorMemory

A_AT, B_AT = 1024, 96 * 1024

MODES = {16: 0, 128: 2, 64: 4, 32: 6, "128B32": 1}
DTYPES = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "s8": np.int8,
    "u8": np.uint8,
}
TYPE_CODES = {"f16": 0, "bf16": 1, "tf32": 2, "e4m3": 0, "e5m2": 1, "u8": 0, "s8": 1}
TYPE_CODES |= {"e2m3": 3, "e3m2": 4, "e2m1": 5}
RESULT_CODES = {"f16": 0, "f32": 1, "s32": 2}

# shape -> (thread, register) -> (lane, column), written down thread by thread from the figures.
FIGURES = {
    "32x32b": lambda t, r: (t, r),
    "16x64b": lambda t, r: (t // 4 + (8 if t & 1 else 0), 2 * r + (1 if t & 2 else 0)),
    "16x128b": lambda t, r: (t // 4 + (8 if r & 1 else 0), 4 * (r // 2) + t % 4),
    "16x256b": lambda t, r: (t // 4 + (8 if r & 2 else 0), 8 * (r // 4) + 2 * (t % 4) + (r & 1)),
    "16x32bx2": lambda t, r: (t % 16, r + (64 if t >= 16 else 0)),
}
PER_UNIT = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}


@functools.cache
def swizzled_places(mode: int | str) -> np.ndarray:
    """Where each byte of a tile goes, row by row of chunks: int[rows · bytes]."""
    size, mixed = {
        16: (16, lambda row: 0),
        32: (16, lambda row: row // 4 % 2),
        64: (16, lambda row: row // 2 % 4),
        128: (16, lambda row: row % 8),
        "128B32": (32, lambda row: row % 4),
    }[mode]
    height, width = shape_of_tile(mode)
    places = []
    for row in range(height):
        for byte in range(width):
            chunk = byte // size ^ mixed(row)
            places.append(row * width + chunk * size + byte % size)
    return np.array(places)


def shape_of_tile(mode: int | str) -> tuple[int, int]:
    return (4, 128) if mode == "128B32" else (8, int(mode))


def tiled(rows: np.ndarray, mode: int | str) -> tuple[np.ndarray, int, int]:
    """Tile and swizzle uint8[rows, bytes]; return bytes, and strides of tile rows and columns."""
    height, width = shape_of_tile(mode)
    down, across = rows.shape[0] // height, rows.shape[1] // width
    tiles = rows.reshape(down, height, across, width).transpose(0, 2, 1, 3)
    out = np.empty((down, across, height * width), np.uint8)
    out[..., swizzled_places(mode)] = tiles.reshape(down, across, -1)
    return out.ravel(), across * height * width, height * width


@dataclass
class Operand:
    """A matrix in shared memory: what a descriptor of it says for each step along K."""

    data: np.ndarray
    mode: int | str
    leading: int
    stride: int
    steps: list[int]

    def descriptor(self, base: int, step: int) -> int:
        start = base + self.steps[step]
        fields = start >> 4 | self.leading >> 4 << 16 | self.stride >> 4 << 32
        return fields | MODES[self.mode] << 61


def k_major(rows: np.ndarray, mode: int, *, step_bytes: int = 32) -> Operand:
    """uint8[mn, bytes of K]."""
    data, down, across = tiled(rows, mode)
    starts = range(0, rows.shape[1], step_bytes)
    steps = [start // mode * across + start % mode for start in starts]
    return Operand(data, mode, across if mode == 16 else 0, down, steps)


def mn_major(matrix: np.ndarray, mode: int | str, *, step_k: int) -> Operand:
    """Elements [mn, k], laid out as [k, mn]."""
    lines = np.ascontiguousarray(matrix.T)
    lines = lines.view(np.uint8).reshape(len(lines), -1)
    data, down, across = tiled(lines, mode)
    per_tile = 4 if mode == "128B32" else 8
    steps = [k // per_tile * down for k in range(0, len(lines), step_k)]
    leading, stride = (down, across) if mode == 16 else (across, down)
    return Operand(data, mode, leading, stride, steps)


def as_bytes(matrix: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(matrix).view(np.uint8).reshape(len(matrix), -1)


def instruction(
    m: int,
    n: int,
    a: str,
    b: str,
    result: str,
    *,
    a_mn: bool = False,
    b_mn: bool = False,
    sparse: int | None = None,
) -> int:
    """Mosaic's `create_instr_descriptor`; `sparse` is the selector."""
    word = 0 if sparse is None else 4 | sparse
    word |= RESULT_CODES[result] << 4 | TYPE_CODES[a] << 7 | TYPE_CODES[b] << 10
    return word | a_mn << 15 | b_mn << 16 | n // 8 << 17 | m // 16 << 24


def scaled_instruction(
    m: int, n: int, a: str, b: str, scales: str, first: int, *, sparse: bool = False, mn: int = 0
) -> int:
    """Mosaic's `_create_scaled_instr_descriptor`; `mn` has a bit each for A and B."""
    codes = TYPE_CODES | {"e2m1x2": 1}
    word = int(sparse) << 2 | first << 4 | codes[a] << 7 | codes[b] << 10 | mn << 15
    return word | n // 8 << 17 | (scales == "ue8m0") << 23 | m // 128 << 27 | first << 29


def random_elements(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    if name in ("s8", "u8"):
        low = -128 if name == "s8" else 0
        return generator.integers(low, low + 256, shape).astype(DTYPES[name])
    values = generator.integers(-16, 17, shape) / 8
    return values.astype(np.float32).astype(DTYPES[name])


def elements(name, shape, seed):
    """Return random values of a matrix, and its bytes; `e2m1x2` has two elements a byte."""
    if name != "e2m1x2":
        matrix = random_elements(name, shape, seed)
        return matrix.astype(np.float64), as_bytes(matrix)
    codes = np.random.default_rng(seed).integers(0, 16, shape, np.uint8)
    values = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    return values, codes[:, 0::2] | codes[:, 1::2] << 4


def fresh_memory(columns: int = 512) -> TensorMemory:
    memory = TensorMemory()
    memory.alloc(columns)
    return memory


def shared_with(*operands: tuple[int, np.ndarray]) -> np.ndarray:
    """Shared memory of one block that holds each data at its address."""
    shared = np.full(227 * 1024, 0xEE, np.uint8)
    for address, data in operands:
        shared[address : address + len(data)] = data
    return shared


def read_lanes(
    memory: TensorMemory, address: int, columns: int, dtype: Any = np.float32
) -> np.ndarray:
    """All 128 lanes by `.32x32b` loads of four warps: dtype[128, columns]."""
    move = tensor_memory.parse_move("tcgen05.ld.sync.aligned.32x32b.x8.b32")
    out = np.empty((128, columns), np.uint32)
    for warp in range(4):
        for column in range(0, columns, 8):
            registers = tensor_memory.load(memory, address + column, warp, move)
            out[warp * 32 : warp * 32 + 32, column : column + 8] = registers.T
    return out.view(dtype)


def place(matrix: np.ndarray, mode: int | str = 32, *, mn: bool = False) -> Operand:
    """Lay a matrix out with K or MN contiguous, in steps of 32 bytes of K."""
    if mn:
        return mn_major(matrix, mode, step_k=32 // matrix.dtype.itemsize)
    return k_major(as_bytes(matrix), int(mode))


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float64) @ b.astype(np.float64).T


def multiply(
    mnemonic: str,
    idesc: int,
    a: Operand | int,
    b: Operand,
    memories: list[TensorMemory],
    *,
    step: int = 0,
    adds: bool | None = None,
    d: int = 0,
    shared: list[np.ndarray] | None = None,
    **options: Any,
) -> None:
    """Issue a step of a product; `a` may be an address in tensor memory."""
    in_memory = isinstance(a, int)
    if shared is None:
        held = [(B_AT, b.data)] if in_memory else [(A_AT, a.data), (B_AT, b.data)]
        shared = [shared_with(*held)]
    operands = tcgen05.Mma(
        kind=parse_mma(f"tcgen05.mma{mnemonic}"),
        idesc=idesc,
        d=d,
        a=a if in_memory else a.descriptor(A_AT, step),
        a_in_memory=in_memory,
        b=b.descriptor(B_AT, step),
        enable=step > 0 if adds is None else adds,
        **options,
    )
    tcgen05.mma(operands, shared, memories)
