"""`wgmma`: operands laid out as Mosaic and CUTLASS do, fragments by the manual's formulas."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tensor_map_boxes
from wgmma_operands import D_TYPES, NUMPY_TYPES, a_place, encode, fill, opcode, put, random_matrix

from pallasc.emulator.tensors import matrices, tensor_maps
from pallasc.errors import CheckError, UnsupportedError
from pallasc.specs.artifacts.plan import TensorMap

TYPES = ["f16", "e4m3", "tf32"]


@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("which", ["a", "b"])
@pytest.mark.parametrize("columns_first", [False, True])
def test_small_tiles_with_k_contiguous(swizzle: int, dtype: str, which: str, columns_first: bool):
    w = matrices.parse_wgmma(opcode(24, "f32", dtype))
    rows = 64 if which == "a" else 24
    size = np.dtype(NUMPY_TYPES[dtype]).itemsize
    row_elements = swizzle // size
    matrix = random_matrix(rows, 2 * row_elements, dtype)
    shared = np.full(1 << 16, 0xCC, np.uint8)
    start = 0x2000
    mn_stride, k_stride = fill(
        shared,
        start,
        matrix,
        (8, row_elements),
        swizzle=swizzle,
        columns_first=columns_first,
    )
    for first in range(0, 2 * row_elements, w.k):
        step = first // row_elements * k_stride + first % row_elements * size
        # Mosaic adds what it steps over to the encoded descriptor; the leading offset is unused.
        descriptor = encode(start, 0, mn_stride, swizzle) + (step >> 4)
        found = matrices.read_operand(w, shared, descriptor, which)
        wanted = matrix[:, first : first + w.k].astype(np.float64)
        assert found.shape == (rows, w.k)
        assert (found == wanted).all()


@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("which", ["a", "b"])
@pytest.mark.parametrize("columns_first", [False, True])
def test_small_tiles_with_m_or_n_contiguous(swizzle: int, which: str, columns_first: bool):
    rows = 64 if which == "a" else 128
    w = matrices.parse_wgmma(opcode(128, "f32", "bf16"))
    matrix = random_matrix(64, rows, "bf16")
    shared = np.full(1 << 16, 0xCC, np.uint8)
    start = 0x4000
    k_stride, mn_stride = fill(
        shared, start, matrix, (8, swizzle // 2), swizzle=swizzle, columns_first=columns_first
    )
    for first in range(0, 64, 16):
        descriptor = encode(start, mn_stride, k_stride, swizzle) + (first // 8 * k_stride >> 4)
        found = matrices.read_operand(w, shared, descriptor, which, transposed=True)
        assert (found == matrix[first : first + 16].T.astype(np.float64)).all()


@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("dtype", TYPES)
def test_large_tiles_with_k_contiguous(swizzle: int, dtype: str):
    w = matrices.parse_wgmma(opcode(64, "f32", dtype))
    size = np.dtype(NUMPY_TYPES[dtype]).itemsize
    row_elements = swizzle // size
    matrix = random_matrix(64, row_elements, dtype)
    shared = np.full(1 << 15, 0xCC, np.uint8)
    fill(shared, 1024, matrix, (64, row_elements), swizzle=swizzle)
    for first in range(0, row_elements, w.k):
        descriptor = encode(1024 + first * size, 0, 8 * swizzle, swizzle)
        found = matrices.read_operand(w, shared, descriptor, "b")
        assert (found == matrix[:, first : first + w.k].astype(np.float64)).all()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("leading", "stride"), [(128, 256), (0x800, 128)])
def test_no_swizzle_with_k_contiguous(dtype: str, leading: int, stride: int):
    """CUTLASS: ((8, m), (T, 2)) : ((1T, SBO), (1, LBO)), T elements in 16 bytes."""
    w = matrices.parse_wgmma(opcode(64, "f32", dtype))
    matrix = random_matrix(64, w.k, dtype)
    size = matrix.itemsize
    per_piece = 16 // size
    shared = np.full(1 << 14, 0xCC, np.uint8)
    for row, column in itertools.product(range(64), range(w.k)):
        at = row % 8 * 16 + row // 8 * stride
        at += column % per_piece * size + column // per_piece * leading
        put(shared, 0x210 + at, matrix[row, column], 0)
    found = matrices.read_operand(w, shared, encode(0x210, leading, stride, 0), "a")
    assert (found == matrix.astype(np.float64)).all()


def accumulator_place(thread: int, register: int, half: int | None) -> tuple[int, int]:
    """PTX ISA 9.0, 9.7.15.5.1.1: where element `i` of thread `t` lies in D."""
    i = register if half is None else 2 * register + half
    warp, lane = divmod(thread, 32)
    row = 16 * warp + lane // 4 + (8 if i % 4 >= 2 else 0)
    return row, i // 4 * 8 + lane % 4 * 2 + i % 2


@pytest.mark.parametrize("n", [8, 24, 256])
@pytest.mark.parametrize(("d", "a"), [("f32", "f16"), ("s32", "s8"), ("f16", "f16")])
def test_accumulators_lie_in_registers_as_the_manual_says(n: int, d: str, a: str):
    w = matrices.parse_wgmma(opcode(n, d, a))
    matrix = np.arange(64 * n).reshape(64, n).astype(D_TYPES[d])
    registers = np.zeros((w.d_registers, 128), np.uint32)
    halves = (0, 1) if d == "f16" else (None,)
    for thread, register, half in itertools.product(range(128), range(w.d_registers), halves):
        bits = int(matrix[accumulator_place(thread, register, half)].view(f"u{matrix.itemsize}"))
        registers[register, thread] |= np.uint32(bits << 16 * (half or 0))
    assert (matrices.matrix_of(registers, w.d) == matrix).all()
    assert (matrices.registers_of(matrix) == registers).all()


@pytest.mark.parametrize("dtype", TYPES)
def test_a_lies_in_registers_as_the_manual_says(dtype: str):
    w = matrices.parse_wgmma(opcode(8, "f32", dtype))
    matrix = random_matrix(64, w.k, dtype)
    size = matrix.itemsize
    registers = np.zeros((4, 128), np.uint32)
    for thread, i in itertools.product(range(128), range(16 // size)):
        bits = int(matrix[a_place(thread, i, dtype)].view(f"u{size}"))
        register, place = divmod(i * size, 4)
        registers[register, thread] |= np.uint32(bits << 8 * place)
    assert (matrices.a_from_registers(w, registers) == matrix.astype(np.float64)).all()


@pytest.mark.parametrize(("a", "transposed"), [("f16", True), ("f16", False), ("tf32", False)])
def test_a_product_of_whole_matrices(a: str, transposed: bool):
    """A from registers, B from shared memory in several steps along K, accumulated."""
    w = matrices.parse_wgmma(opcode(64, "f32", a))
    k = 2 * 128 // np.dtype(NUMPY_TYPES[a]).itemsize
    left, right = random_matrix(64, k, a), random_matrix(k, 64, a, seed=1)
    shared = np.zeros(1 << 15, np.uint8)
    size = left.itemsize
    if transposed:
        k_stride, n_stride = fill(shared, 0, right, (8, 64), swizzle=128)
    else:
        n_stride, k_stride = fill(
            shared, 0, np.ascontiguousarray(right.T), (8, 128 // size), swizzle=128
        )
    registers = np.zeros((w.d_registers, 128), np.uint32)
    for step, first in enumerate(range(0, k, w.k)):
        fragment = np.zeros((4, 128), np.uint32)
        for thread, i in itertools.product(range(128), range(16 // size)):
            row, column = a_place(thread, i, a)
            bits = int(left[row, first + column].view(f"u{size}"))
            fragment[i * size // 4, thread] |= np.uint32(bits << i * size % 4 * 8)
        if transposed:
            descriptor = encode(2 * step * k_stride, n_stride, k_stride, 128)
        else:
            at = first * size // 128 * k_stride + first * size % 128
            descriptor = encode(at, 0, n_stride, 128)
        b = matrices.read_operand(w, shared, descriptor, "b", transposed=transposed)
        product = matrices.multiply(
            matrices.a_from_registers(w, fragment),
            b,
            w,
            accumulator=matrices.matrix_of(registers, w.d) if step else None,
        )
        registers = matrices.registers_of(product)
    found = matrices.matrix_of(registers, w.d)
    wanted = left.astype(np.float64) @ right.astype(np.float64)
    assert np.allclose(found, wanted, rtol=1e-6, atol=1e-5)


def test_descriptors_that_are_not_modelled_are_refused():
    w = matrices.parse_wgmma(opcode(64, "f32", "f16"))
    eight_bits = matrices.parse_wgmma(opcode(64, "f32", "e4m3"))
    cases: list[tuple[Any, int, bool, str]] = [
        (w, 1 << 49, False, "base offset 1"),
        (w, 1 << 53, False, "0x0020000000000000 with reserved bits"),
        (eight_bits, 0, True, "transposed operand of type e4m3"),
    ]
    for form, descriptor, transposed, text in cases:
        with pytest.raises(UnsupportedError, match=text):
            matrices.operand_addresses(form, descriptor, "b", transposed=transposed)
    with pytest.raises(CheckError, match="byte 0x47f of the 0x400 bytes"):
        matrices.read_operand(w, np.zeros(0x400, np.uint8), encode(0x300, 0x100, 0, 0), "a")


@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("transposed", [False, True])
def test_wgmma_reads_what_a_tensor_copy_wrote(swizzle: int, transposed: bool):
    """One box of 64 rows: rows of B, or rows along K where N is contiguous."""
    elements = swizzle // 2
    array = random_matrix(200, 200, "bf16")
    map = TensorMap(
        buffer=0,
        offset=0,
        dtype="bfloat16",
        dims=(200, 200),
        strides=(400,),
        box=(elements, 64),
        element_strides=(1, 1),
        swizzle=swizzle,
    )
    shared = np.zeros(1 << 15, np.uint8)
    box = tensor_maps.tiled(map, (24, 100), 0x1400)
    tensor_map_boxes.copy_in(map, box, array.reshape(-1).view(np.uint8), 0, shared)
    part = array[100:164, 24 : 24 + elements].astype(np.float64)
    if transposed:
        w = matrices.parse_wgmma(opcode(elements, "f32", "bf16"))
        descriptor = encode(0x1400 + 16 * swizzle, 0, 8 * swizzle, swizzle)
        wanted = part[16:32].T
    else:
        w = matrices.parse_wgmma(opcode(64, "f32", "bf16"))
        descriptor = encode(0x1400 + (swizzle - 32), 0, 8 * swizzle, swizzle)
        wanted = part[:, elements - 16 :]
    found = matrices.read_operand(w, shared, descriptor, "b", transposed=transposed)
    assert (found == wanted).all()
