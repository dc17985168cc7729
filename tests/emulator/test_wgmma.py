"""`wgmma`: operands as Mosaic and CUTLASS lay them out, fragments by the manual; numbers."""

import itertools
from fractions import Fraction

import blackwell as bw
import numpy as np
import pytest
from blackwell import DTYPES as NUMPY_TYPES
from opcode_cases_matrices import a_place

from pallasc.emulator.tensors import matrices
from pallasc.errors import CheckError, UnsupportedError

D_TYPES = {"f32": np.float32, "f16": np.float16, "s32": np.int32}


def opcode(n: int, d: str, a: str, b: str = "") -> str:
    k = 32 // np.dtype(NUMPY_TYPES[a]).itemsize
    return f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{d}.{a}.{b or a}"


def random_matrix(rows: int, columns: int, dtype: str, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    if dtype in ("s8", "u8"):
        limits = np.iinfo(NUMPY_TYPES[dtype])
        return random.integers(limits.min, limits.max + 1, (rows, columns)).astype(
            NUMPY_TYPES[dtype]
        )
    values = random.normal(size=(rows, columns)).astype(np.float32)
    if dtype == "tf32":
        return (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return values.astype(NUMPY_TYPES[dtype])


def encode(start: int, leading: int, stride: int) -> int:
    """Put a descriptor without swizzle together, as `encode_descriptor` of Mosaic does."""
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32


def put(shared: np.ndarray, address: int, data: np.ndarray) -> None:
    shared[address : address + data.nbytes] = np.frombuffer(data.tobytes(), np.uint8)


TYPES = ["f16", "e4m3", "tf32"]


@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("which", ["a", "b"])
def test_small_tiles_with_k_contiguous(swizzle: int, dtype: str, which: str):
    w = matrices.parse_product(opcode(24, "f32", dtype))
    row_elements = swizzle // np.dtype(NUMPY_TYPES[dtype]).itemsize
    matrix = random_matrix(64 if which == "a" else 24, 2 * row_elements, dtype)
    operand, shared = bw.k_major(bw.as_bytes(matrix), swizzle), np.full(1 << 16, 0xCC, np.uint8)
    put(shared, 0x2000, operand.data)
    for step, first in enumerate(range(0, 2 * row_elements, w.k)):
        found = matrices.read_operand(w, shared, operand.descriptor(0x2000, step), which)
        assert (found == matrix[:, first : first + w.k].astype(np.float64)).all()


@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("which", ["a", "b"])
def test_small_tiles_with_m_or_n_contiguous(swizzle: int, which: str):
    w = matrices.parse_product(opcode(128, "f32", "bf16"))
    matrix = random_matrix(64 if which == "a" else 128, 64, "bf16")
    operand, shared = bw.mn_major(matrix, swizzle, step_k=16), np.full(1 << 16, 0xCC, np.uint8)
    put(shared, 0x4000, operand.data)
    for step, first in enumerate(range(0, 64, 16)):
        descriptor = operand.descriptor(0x4000, step)
        found = matrices.read_operand(w, shared, descriptor, which, transposed=True)
        assert (found == matrix[:, first : first + 16].astype(np.float64)).all()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("leading", "stride"), [(128, 256), (0x800, 128)])
def test_no_swizzle_with_k_contiguous(dtype: str, leading: int, stride: int):
    """CUTLASS: ((8, m), (T, 2)) : ((1T, SBO), (1, LBO)), T elements in 16 bytes."""
    w = matrices.parse_product(opcode(64, "f32", dtype))
    matrix = random_matrix(64, w.k, dtype)
    size = matrix.itemsize
    per_piece = 16 // size
    shared = np.full(1 << 14, 0xCC, np.uint8)
    for row, column in itertools.product(range(64), range(w.k)):
        at = row % 8 * 16 + row // 8 * stride
        at += column % per_piece * size + column // per_piece * leading
        put(shared, 0x210 + at, matrix[row, column])
    found = matrices.read_operand(w, shared, encode(0x210, leading, stride), "a")
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
    w = matrices.parse_product(opcode(n, d, a))
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
    w = matrices.parse_product(opcode(8, "f32", dtype))
    matrix = random_matrix(64, w.k, dtype)
    size = matrix.itemsize
    registers = np.zeros((4, 128), np.uint32)
    for thread, i in itertools.product(range(128), range(16 // size)):
        warp, lane = divmod(thread, 32)
        row, column = a_place(lane, i, 16, w.k, dtype)  # of the 16 rows of a warp
        bits = int(matrix[16 * warp + row, column].view(f"u{size}"))
        register, place = divmod(i * size, 4)
        registers[register, thread] |= np.uint32(bits << 8 * place)
    assert (matrices.a_from_registers(w, registers) == matrix.astype(np.float64)).all()


def test_descriptors_that_are_not_modelled_are_refused():
    w = matrices.parse_product(opcode(64, "f32", "f16"))
    eight_bits = matrices.parse_product(opcode(64, "f32", "e4m3"))
    for form, descriptor, transposed, text in [
        (w, 1 << 49, False, "base offset 1"),
        (w, 1 << 53, False, "0x0020000000000000 with reserved bits"),
        (eight_bits, 0, True, "transposed operand of type e4m3"),
    ]:
        with pytest.raises(UnsupportedError, match=text):
            matrices.operand_chunks(form, descriptor, "b", transposed=transposed, first_row=None)
    with pytest.raises(CheckError, match="at 0x470, the block has 0x400 bytes"):
        matrices.read_operand(w, np.zeros(0x400, np.uint8), encode(0x300, 0x100, 0), "a")


FLOATS = [
    ("f32", "f16", "f16"),
    ("f32", "bf16", "bf16"),
    ("f32", "tf32", "tf32"),
    ("f32", "e4m3", "e5m2"),
    ("f16", "f16", "f16"),
    ("f16", "e5m2", "e4m3"),
]


@pytest.mark.parametrize(("d", "a", "b"), FLOATS)
@pytest.mark.parametrize("n", [8, 40, 256])
def test_floats_are_multiplied_exactly_and_rounded_once(d: str, a: str, b: str, n: int):
    w = matrices.parse_product(opcode(n, d, a, b))
    left, right = random_matrix(64, w.k, a), random_matrix(n, w.k, b, seed=1)
    before = np.random.default_rng(2).normal(size=(64, n)).astype(D_TYPES[d])
    wide = left.astype(np.float64), right.astype(np.float64)
    found = matrices.multiply(*wide, w, accumulator=before)
    assert found.dtype == D_TYPES[d]
    negated = matrices.multiply(*wide, w, accumulator=before, negate=True)
    alone = matrices.multiply(*wide, w)
    for row, column in [(0, 0), (5, n - 1), (63, 3)]:
        products = sum(
            Fraction(float(x)) * Fraction(float(y))
            for x, y in zip(wide[0][row], wide[1][column], strict=True)
        )
        old = Fraction(float(before[row, column]))
        for result, wanted in [
            (found, products + old),
            (negated, old - products),
            (alone, products),
        ]:
            error = abs(Fraction(float(result[row, column])) - wanted)
            limit = np.spacing(np.abs(result[row, column])).astype(np.float64) / 2
            assert error <= Fraction(float(limit)) * (1 + Fraction(1, 1000))


@pytest.mark.parametrize(("a", "b"), [*itertools.product(["s8", "u8"], repeat=2)])
@pytest.mark.parametrize("satfinite", [False, True])
def test_integers_are_exact_and_wrap_or_saturate(a: str, b: str, satfinite: bool):
    code = opcode(16, "s32", a, b).replace(".s32.", ".satfinite.s32." if satfinite else ".s32.")
    w = matrices.parse_product(code)
    left, right = random_matrix(64, 32, a), random_matrix(16, 32, b, seed=1)
    limits = np.iinfo(np.int32)
    before = np.zeros((64, 16), np.int32)
    before[0], before[1] = limits.max - 5, limits.min + 5
    found = matrices.multiply(
        left.astype(np.float64), right.astype(np.float64), w, accumulator=before
    )
    overflows = 0
    for row, column in itertools.product(range(64), range(16)):
        exact = int(before[row, column]) + sum(
            int(x) * int(y) for x, y in zip(left[row], right[column], strict=True)
        )
        overflows += not limits.min <= exact <= limits.max
        if satfinite:
            wanted = min(max(exact, limits.min), limits.max)
        else:
            wanted = (exact + (1 << 31)) % (1 << 32) - (1 << 31)
        assert found[row, column] == wanted
    assert overflows


def test_infinities_and_nan_are_floats_like_others():
    w = matrices.parse_product(opcode(8, "f32", "f16"))
    left, right = np.zeros((64, 16)), np.ones((8, 16))
    left[0, 0], left[1, :2] = np.inf, (np.inf, -np.inf)
    left[2, 0], left[3, 0], right[7, 0] = np.nan, 1, 1e39
    found = matrices.multiply(left, right, w)
    assert found[0, 0] == np.inf
    assert np.isnan(found[1:3, 0]).all()
    assert found[3, 7] == np.inf
    assert found[3, 0] == 1


def test_tf32_ignores_the_low_bits():
    w = matrices.parse_product(opcode(8, "f32", "tf32"))
    shared = np.zeros(4096, np.uint8)
    shared.view(np.uint32)[:1024] = 0x3F801FFF
    found = matrices.read_operand(w, shared, encode(0, 128, 256), "b")
    assert (found == 1).all()


def test_every_shape_and_type_of_the_manual_is_known():
    for (d, a, b), n in itertools.product(FLOATS, range(8, 257, 8)):
        w = matrices.parse_product(opcode(n, d, a, b))
        assert (w.n, w.d_registers) == (n, n // 4 if d == "f16" else n // 2)
    for n in (8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256):
        assert matrices.parse_product(opcode(n, "s32", "u8", "s8")).n == n


@pytest.mark.parametrize("satfinite", ["", ".satfinite"])
def test_integers_of_a_warp_wrap_or_saturate(satfinite: str):
    form = matrices.parse_product(f"mma.sync.aligned.m16n8k32.row.col{satfinite}.s32.u8.s8.s32")
    a = np.full((4, 32), 0xFFFFFFFF, np.uint32)
    b = np.full((2, 32), 0x7F7F7F7F, np.uint32)
    c = np.full((4, 32), 0x7FFFFFFF, np.uint32)
    exact = 32 * 255 * 127 + 0x7FFFFFFF
    assert (matrices.mma(form, a, b, c) == (0x7FFFFFFF if satfinite else exact % (1 << 32))).all()
