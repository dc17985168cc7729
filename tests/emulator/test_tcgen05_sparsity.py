"""tcgen05.mma.sp multiplies with a sparse A, whose metadata lies where Mosaic puts it."""

import blackwell as bw
import numpy as np
import pytest

from pallasc.emulator.tensors.descriptors import OperandError
from pallasc.emulator.tensors.tcgen05 import execute_copy, parse_copy
from pallasc.emulator.tensors.tcgen05_instructions import decode_instruction, parse_mma
from pallasc.errors import UnsupportedError

META_AT, META = 192 * 1024, 256
ONE = ".sp.cta_group::1.kind::"
PAIRS = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 1), (2, 3)]


def random_pairs(groups, seed):
    """Two places in each group of four: uint8[128, groups, 2]."""
    chosen = np.random.default_rng(seed).integers(0, len(PAIRS), (128, groups))
    return np.array(PAIRS, np.uint8)[chosen]


def dense(stored, pairs, width=1):
    """Put each row's elements, `width` at a time, into their places, one by one."""
    rows, half = stored.shape
    matrix = np.zeros((rows, half * 2))
    for row in range(rows):
        for index in range(half // width):
            group, which = divmod(index, 2)
            start = (group * 4 + int(pairs[row, group, which])) * width
            matrix[row, start : start + width] = stored[row, index * width : (index + 1) * width]
    return matrix


def packed(codes):
    """Four 2-bit codes a byte, the first in the lowest bits."""
    codes = codes.reshape(len(codes), -1, 4)
    return codes[..., 0] | codes[..., 1] << 2 | codes[..., 2] << 4 | codes[..., 3] << 6


def formatted(pairs, bits):
    """JAX's `format_tcgen05_sparse_metadata`: one tile of 128 × 64 codes for each 64 codes."""
    codes = pairs.reshape(128, -1)
    tiles = codes.shape[1] // 64
    if bits == 16:
        tiled = codes.reshape(1, 8, 2, 8, tiles, 4, 2, 8).transpose(0, 4, 1, 6, 3, 5, 2, 7)
    else:
        tiled = codes.reshape(1, 128, tiles, 64).transpose(0, 2, 1, 3)
    return [packed(np.ascontiguousarray(t).reshape(128, 64)) for t in tiled.reshape(tiles, 128, 64)]


def copy_metadata(tiles, memory, shared):
    """Mosaic's `async_copy_sparse_metadata_smem_to_tmem`."""
    copy = parse_copy("tcgen05.cp.cta_group::1.128x128b")
    for i, tile in enumerate(tiles):
        shared[META_AT : META_AT + tile.size] = tile.ravel()
        execute_copy(copy, META + 4 * i, META_AT >> 4 | 8 << 32, [shared], [memory])


@pytest.mark.parametrize("name", ["f16", "bf16", "e4m3", "s8"])
def test_two_of_four(name):
    bits = 16 if name.endswith("f16") else 8
    stored = bw.random_elements(name, (128, 128), 1)
    b = bw.random_elements(name, (64, 256), 2)
    pairs = random_pairs(64, 3)
    left = bw.k_major(bw.as_bytes(stored), 128)
    right = bw.k_major(bw.as_bytes(b), 128, step_bytes=64)
    memory = bw.fresh_memory()
    shared = bw.shared_with((bw.A_AT, left.data), (bw.B_AT, right.data))
    copy_metadata(formatted(pairs, bits), memory, shared)
    family = {"e4m3": "f8f6f4", "s8": "i8"}.get(name, "f16")
    result, dtype = ("s32", np.int32) if name == "s8" else ("f32", np.float32)
    for step in range(len(left.steps)):
        column = step * (1 if bits == 16 else 2)
        idesc = bw.instruction(128, 64, name, name, result, sparse=column % 2)
        address = META + column // 2 * 2
        bw.multiply(ONE + family, idesc, left, right, [memory], step=step, metadata=address)
    expected = bw.product(dense(stored, pairs), b)
    assert (bw.read_lanes(memory, 0, 64, dtype) == expected).all()


def test_b_may_be_n_major_and_a_in_tensor_memory():
    stored = bw.random_elements("f16", (128, 16), 4)
    b = bw.random_elements("f16", (64, 32), 5)
    pairs = random_pairs(8, 6)
    right = bw.mn_major(b, 128, step_k=32)
    memory = bw.fresh_memory()
    shared = bw.shared_with((bw.B_AT, right.data))
    copy_metadata(formatted(np.tile(pairs, (1, 4, 1)), 16), memory, shared)
    memory.words[:, 400:408] = bw.as_bytes(stored).view(np.uint32)
    idesc = bw.instruction(128, 64, "f16", "f16", "f32", sparse=1, b_mn=True)
    bw.multiply(ONE + "f16", idesc, 400, right, [memory], metadata=META)
    expected = bw.product(dense(stored, pairs), b)
    assert (memory.words[:, :64].view(np.float32) == expected).all()


def test_one_of_two_in_tf32():
    """Row 16 a + 8 b + c has four codes in half b of lane 16 a + c, and four 8 lanes on."""
    stored = bw.random_elements("tf32", (128, 8), 8)
    b = bw.random_elements("tf32", (16, 16), 9)
    second = np.random.default_rng(7).integers(0, 2, (128, 8))
    memory = bw.fresh_memory()
    memory.words[:, META] = 0
    matrix = np.zeros((128, 16))
    for row, group in np.ndindex(128, 8):
        lane = row // 16 * 16 + group // 4 * 8 + row % 8
        shift = row // 8 % 2 * 16 + group % 4 * 4
        code = 0b1110 if second[row, group] else 0b0100
        memory.words[lane, META] |= np.uint32(code << shift)
        matrix[row, group * 2 + second[row, group]] = stored[row, group]
    right = bw.k_major(bw.as_bytes(b), 64, step_bytes=64)
    idesc = bw.instruction(128, 16, "tf32", "tf32", "f32", sparse=0)
    bw.multiply(ONE + "tf32", idesc, bw.place(stored), right, [memory], metadata=META)
    assert (memory.words[:, :16].view(np.float32) == bw.product(matrix, b)).all()


@pytest.mark.parametrize(
    ("name", "mnemonic", "width", "vector"),
    [
        ("e4m3", "mxf8f6f4.block_scale.scale_vec::1X", 1, 1),
        ("e2m1x2", "mxf4nvf4.block_scale.scale_vec::4X", 2, 4),
    ],
)
def test_block_scales_cover_twice_the_elements(name, mnemonic, width, vector):
    k = 64 * width
    stored, a_bytes = bw.elements(name, (128, k // 2), 10)
    b, b_bytes = bw.elements(name, (32, k), 11)
    pairs = random_pairs(16, 12)
    left = bw.k_major(a_bytes, 32)
    right = bw.k_major(b_bytes, 64, step_bytes=64)
    memory = bw.fresh_memory()
    shared = bw.shared_with((bw.A_AT, left.data), (bw.B_AT, right.data))
    copy_metadata(formatted(np.tile(pairs, (1, 2, 1)), 8), memory, shared)
    factors = np.random.default_rng(13).integers(124, 131, (160, vector), np.uint8)
    words = np.zeros((160, 4), np.uint8)
    words[:, :vector] = factors
    cells = words.view(np.uint32)[:, 0]
    memory.words[:, 300:304] = np.tile(cells[:128].reshape(4, 32).T, (4, 1))
    memory.words[:, 304] = np.tile(cells[128:], 4)
    idesc = bw.scaled_instruction(128, 32, name, name, "ue8m0", 0, sparse=True)
    addresses = {"metadata": META, "a_scales": 300, "b_scales": 304}
    bw.multiply(ONE + mnemonic, idesc, left, right, [memory], **addresses)
    scales = np.repeat(2.0 ** (factors.astype(np.float64) - 127), k // vector, axis=1)
    expected = (dense(stored, pairs, width) * scales[:128]) @ (b * scales[128:]).T
    assert np.allclose(memory.words[:, :32].view(np.float32), expected, rtol=1e-6, atol=1e-4)


def sparse_once(selector=1, address=META):
    left = bw.k_major(np.zeros((128, 32), np.uint8), 32)
    right = bw.k_major(np.zeros((8, 64), np.uint8), 64, step_bytes=64)
    memory = bw.fresh_memory()
    memory.words[:, META : META + 2] = 0x44444444
    memory.words[24, META] = 0x44544444
    idesc = bw.instruction(128, 8, "f16", "f16", "f32", sparse=selector)
    bw.multiply(ONE + "f16", idesc, left, right, [memory], metadata=address)


def test_codes_that_name_no_two_places_are_an_error():
    sparse_once()
    with pytest.raises(OperandError, match=r"metadata of row 24, group 5 is 0b0101"):
        sparse_once(selector=0)


@pytest.mark.parametrize("address", [META + 1, META | 16 << 16])
def test_metadata_starts_at_lane_0_and_an_even_column(address):
    with pytest.raises(OperandError, match=r"metadata"):
        sparse_once(address=address)


MX = bw.scaled_instruction(128, 8, "e2m1x2", "e2m1x2", "ue8m0", 0, sparse=True)


@pytest.mark.parametrize(
    ("kind", "word", "error", "message"),
    [
        ("f16", bw.instruction(128, 8, "f16", "f16", "f32", sparse=2), UnsupportedError,
         "sparsity selector 2"),
        ("f16", bw.instruction(64, 8, "f16", "f16", "f32", sparse=0), UnsupportedError,
         "sparse A with 64 rows"),
        ("f8f6f4", bw.instruction(128, 8, "e4m3", "e4m3", "f32", sparse=1), OperandError,
         "selector of this kind is 0, not 1"),
        ("mxf4.block_scale", MX | 1 << 12, UnsupportedError,
         "version 1 of the sparsity metadata"),
    ],
)  # fmt: skip
def test_selectors_and_shapes_beyond_what_is_known_are_refused(kind, word, error, message):
    with pytest.raises(error, match=message):
        decode_instruction(parse_mma(f"tcgen05.mma{ONE}{kind}"), word)
