"""Block-scaled products: scale factors as Mosaic prepares and copies them to tensor memory."""

import blackwell as bw
import ml_dtypes
import numpy as np
import pytest

from pallasc.emulator.tensors.descriptors import OperandError
from pallasc.emulator.tensors.tcgen05 import execute_copy, parse_copy
from pallasc.emulator.tensors.tcgen05_instructions import decode_instruction, parse_mma
from pallasc.errors import UnsupportedError

SCALES_AT = 160 * 1024
A_SCALES, B_SCALES = 256, 320
SCALES = {"ue8m0": ml_dtypes.float8_e8m0fnu, "ue4m3": ml_dtypes.float8_e4m3fn}


def random_scales(name, shape, seed):
    generator = np.random.default_rng(seed)
    if name == "ue8m0":
        return generator.integers(120, 135, shape, np.uint8)
    return generator.integers(0x28, 0x50, shape, np.uint8)


def scale_values(name, codes):
    return codes.view(SCALES[name]).astype(np.float64)


def prepared(codes):
    """Mosaic's recipe for `scales_layout`: (MN / 128, K / 4, 32, 16)."""
    mn, k = codes.shape
    padded = -(-mn // 128) * 128
    codes = np.pad(codes, ((0, padded - mn), (0, 0)))
    tiles = codes.reshape(padded // 128, 4, 32, k // 4, 4).transpose(0, 3, 2, 1, 4)
    return tiles.reshape(padded // 128, k // 4, 32, 16)


def copy_scales(codes, address, memories, shared, group):
    """Mosaic's `async_copy_scales_smem_to_tmem`, of each block's codes."""
    tiles = [prepared(c) for c in codes]
    copy = parse_copy(f"tcgen05.cp.cta_group::{group}.32x128b.warpx4")
    for data, tile in zip(shared, tiles, strict=True):
        data[SCALES_AT : SCALES_AT + tile.size] = tile.ravel()
    rows, columns = tiles[0].shape[:2]
    for row in range(rows):
        for k in range(columns):
            descriptor = SCALES_AT + (row * columns + k) * 512 >> 4 | 8 << 32
            to = address + 4 * rows * k + 4 * row
            execute_copy(copy, to, descriptor, shared, memories)
    return 4 * rows


def copy_b_scales_of_64_rows(codes, address, memories, shared):
    """Mosaic's `b_scales_m64_collective_layout`: both halves of N, 32 rows of each at a time."""
    n, k = codes.shape
    width = n // 64
    rows = codes.reshape(2, width, 32, k // 4, 4).transpose(3, 0, 2, 1, 4)
    rows = rows.reshape(k // 4, 64, width * 4)
    rows = np.ascontiguousarray(np.pad(rows, ((0, 0), (0, 0), (0, 16 - width * 4))))
    copy = parse_copy("tcgen05.cp.cta_group::2.64x128b.warpx2::01_23")
    for data in shared:
        data[SCALES_AT : SCALES_AT + rows.size] = rows.ravel()
    for tile in range(k // 4):
        descriptor = SCALES_AT + tile * 1024 >> 4 | 8 << 32
        execute_copy(copy, address + 4 * tile, descriptor, shared, memories)


FORMS = {
    # name: elements, mnemonic, scale factors, their number for an instruction, block of K
    "mxf8": ("e4m3", "mxf8f6f4.block_scale.scale_vec::1X", "ue8m0", 1, 32),
    "mxf8e5": ("e5m2", "mxf8f6f4.block_scale", "ue8m0", 1, 32),
    "mxf4": ("e2m1x2", "mxf4.block_scale", "ue8m0", 2, 32),
    "mxf4nv2": ("e2m1x2", "mxf4nvf4.block_scale.scale_vec::2X", "ue8m0", 2, 32),
    "nvf4": ("e2m1x2", "mxf4nvf4.block_scale.scale_vec::4X", "ue4m3", 4, 16),
    "nvf4e8": ("e2m1x2", "mxf4nvf4.block_scale.block16", "ue8m0", 4, 16),
}


def run(form, m, n, *, group=1):
    """Multiply K of 256 bytes as Mosaic does; return the accumulators and what they must be."""
    name, mnemonic, scales, vector, block = FORMS[form]
    k = 512 if name == "e2m1x2" else 256
    a, a_bytes = bw.elements(name, (m, k), 1)
    b, b_bytes = bw.elements(name, (n, k), 2)
    a_codes, b_codes = (random_scales(scales, (r, k // block), s) for r, s in ((m, 3), (n, 4)))
    memories = [bw.fresh_memory() for _ in range(group)]
    left, right = (
        [bw.k_major(part, 128) for part in np.split(rows, group)] for rows in (a_bytes, b_bytes)
    )
    shared = [
        bw.shared_with((bw.A_AT, x.data), (bw.B_AT, y.data))
        for x, y in zip(left, right, strict=True)
    ]
    a_step = copy_scales(np.split(a_codes, group), A_SCALES, memories, shared, group)
    if m // group == 64:
        copy_b_scales_of_64_rows(b_codes, B_SCALES, memories, shared)
        b_step = 4
    else:
        b_step = copy_scales([b_codes] * group, B_SCALES, memories, shared, group)
    per_cell = 4 // vector
    for step in range(8):
        cell, first = step // per_cell, step % per_cell * vector
        bw.multiply(
            f".cta_group::{group}.kind::{mnemonic}",
            bw.scaled_instruction(m, n, name, name, scales, first),
            left[0],
            right[0],
            memories,
            step=step,
            shared=shared,
            a_scales=A_SCALES + cell * a_step,
            b_scales=B_SCALES + cell * b_step,
        )
    scaled = [
        values * np.repeat(scale_values(scales, codes), block, axis=1)
        for values, codes in ((a, a_codes), (b, b_codes))
    ]
    return memories, scaled[0] @ scaled[1].T


def check(got, expected):
    assert np.allclose(got, expected, rtol=1e-6, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", [32, 256])
def test_one_block(form, n):
    (memory,), expected = run(form, 128, n)
    check(bw.read_lanes(memory, 0, n), expected)


@pytest.mark.parametrize("form", ["mxf8", "mxf4nv2", "nvf4"])
@pytest.mark.parametrize("n", [64, 256])
def test_two_blocks_of_128_rows(form, n):
    memories, expected = run(form, 256, n, group=2)
    check(np.concatenate([bw.read_lanes(memory, 0, n) for memory in memories]), expected)


@pytest.mark.parametrize("form", ["mxf8", "nvf4"])
@pytest.mark.parametrize("n", [64, 256])
def test_two_blocks_of_64_rows(form, n):
    memories, expected = run(form, 128, n, group=2)
    lanes = [bw.read_lanes(memory, 0, n // 2) for memory in memories]
    got = [np.concatenate([each[:64], each[64:]], axis=1) for each in lanes]
    check(np.concatenate(got), expected)


ONES = np.full((128, 32), 0x38, np.uint8)


def test_each_quarter_of_the_lanes_uses_its_own_copy():
    memory = bw.fresh_memory()
    left, right = bw.k_major(ONES, 32), bw.k_major(ONES[:32], 32)
    memory.words[:, A_SCALES : A_SCALES + 4] = 0x7F7F7F7F
    memory.words[:, B_SCALES] = 0x7F7F7F7F
    memory.words[64:96, B_SCALES] = 0x80807F80
    addresses = {"a_scales": A_SCALES, "b_scales": B_SCALES}
    for first, factor in ((0, 2), (1, 1)):
        word = bw.scaled_instruction(128, 32, "e4m3", "e4m3", "ue8m0", first)
        mnemonic = ".cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X"
        bw.multiply(mnemonic, word, left, right, [memory], **addresses)
        d = memory.words[:, :32].view(np.float32)
        assert (d[:64] == 32).all()
        assert (d[64:96] == 32 * factor).all()


KIND = "tcgen05.mma.cta_group::1.kind::"


@pytest.mark.parametrize(
    ("form", "change", "error", "message"),
    [
        ("mxf8", lambda w: w & ~(1 << 23), OperandError, "scale factors ue4m3 need"),
        ("mxf4nv2", lambda w: w & ~(1 << 23), OperandError, "scale factors ue4m3 need"),
        ("mxf4nv2", lambda w: w | 1 << 29, OperandError, "2 scale factors of A cannot start at"),
        ("nvf4", lambda w: w | 2 << 4, OperandError, "4 scale factors of B cannot start at"),
        ("mxf8", lambda w: w & ~(31 << 24) | 4 << 24, OperandError, "M is 64 and N 32; M must"),
        ("mxf4", lambda w: w | 1 << 31, UnsupportedError, "unusual K"),
        ("mxf4", lambda w: w | 1 << 15, UnsupportedError, "MN-major matrix of e2m1x2"),
    ],
)
def test_invalid_descriptors_are_named(form, change, error, message):
    name, mnemonic, scales, _, _ = FORMS[form]
    word = bw.scaled_instruction(128, 32, name, name, scales, 0)
    decode_instruction(parse_mma(KIND + mnemonic), word)
    with pytest.raises(error, match=message):
        decode_instruction(parse_mma(KIND + mnemonic), change(word))


def test_scale_factors_must_start_at_lane_0():
    word = bw.scaled_instruction(128, 32, "e4m3", "e4m3", "ue8m0", 0)
    addresses = {"a_scales": 32 << 16, "b_scales": 0}
    operand = bw.k_major(ONES, 32)
    with pytest.raises(OperandError, match="must start at lane 0, not 32"):
        bw.multiply(
            ".cta_group::1.kind::mxf8f6f4.block_scale",
            word,
            operand,
            operand,
            [bw.fresh_memory()],
            **addresses,
        )
