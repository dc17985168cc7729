"""tcgen05.mma: types, layouts in shared memory, lanes of tensor memory, accumulators, masks."""

from dataclasses import replace

import blackwell as bw
import ml_dtypes
import numpy as np
import pytest
from blackwell import B_AT, multiply, place, product

from pallasc.emulator.tensors import tcgen05
from pallasc.emulator.tensors.descriptors import OperandError
from pallasc.emulator.tensors.tcgen05_instructions import decode_instruction, parse_mma
from pallasc.emulator.tensors.tensor_memory import TensorMemory
from pallasc.errors import UnsupportedError

KINDS = {"f16": "f16", "bf16": "f16", "tf32": "tf32", "e4m3": "f8f6f4", "e5m2": "f8f6f4"}
KINDS |= {"s8": "i8", "u8": "i8"}
ONE = ".cta_group::1.kind::"
TWO = ".cta_group::2.kind::f16"


def run(a_name, b_name, m, n, k, *, modes=(128, 128), mn=(False, False), result="f32"):
    """Multiply with one block; return the memory that has D at column 64, and the exact product."""
    a, b = bw.random_elements(a_name, (m, k), 1), bw.random_elements(b_name, (n, k), 2)
    left, right = place(a, modes[0], mn=mn[0]), place(b, modes[1], mn=mn[1])
    memory = bw.fresh_memory()
    idesc = bw.instruction(m, n, a_name, b_name, result, a_mn=mn[0], b_mn=mn[1])
    for step in range(len(left.steps)):
        multiply(ONE + KINDS[a_name], idesc, left, right, [memory], step=step, d=64)
    return memory, product(a, b)


@pytest.mark.parametrize("name", ["f16", "bf16", "e4m3", "e5m2"])
@pytest.mark.parametrize("mode", [32, 64, 128])
@pytest.mark.parametrize("mn", [(False, False), (True, False), (False, True), (True, True)])
def test_every_swizzle_and_both_majors(name, mode, mn):
    memory, expected = run(name, name, 128, 128, 128, modes=(mode, mode), mn=mn)
    assert (bw.read_lanes(memory, 64, 128) == expected).all()


@pytest.mark.parametrize("name", ["f16", "e4m3"])
@pytest.mark.parametrize("mn", [(False, False), (True, True)])
def test_operands_without_swizzle(name, mn):
    memory, expected = run(name, name, 128, 64, 64, modes=(16, 16), mn=mn)
    assert (bw.read_lanes(memory, 64, 64) == expected).all()


def test_tf32_drops_the_lower_bits_and_is_mn_major_in_its_own_swizzle():
    for modes, mn in (((128, 128), (False, False)), (("128B32", "128B32"), (True, True))):
        memory, expected = run("tf32", "tf32", 128, 64, 32, modes=modes, mn=mn)
        assert (bw.read_lanes(memory, 64, 64) == expected).all()
    a = place(np.full((128, 8), np.float32(1 + 2**-10 + 2**-11)))
    b = place(np.full((8, 8), np.float32(1)))
    memory = bw.fresh_memory()
    multiply(ONE + "tf32", bw.instruction(128, 8, "tf32", "tf32", "f32"), a, b, [memory])
    assert memory.words[0, 0].view(np.float32) == 8 * (1 + 2**-10)


@pytest.mark.parametrize("names", [("s8", "s8"), ("u8", "s8"), ("u8", "u8")])
def test_integers(names):
    memory, expected = run(*names, 128, 64, 128, result="s32")
    assert (bw.read_lanes(memory, 64, 64, np.int32) == expected).all()


@pytest.mark.parametrize("saturate", [False, True])
def test_integer_sums_wrap_or_saturate(saturate):
    a, b = np.full((128, 32), 127, np.int8), np.full((8, 32), 127, np.int8)
    memory = bw.fresh_memory()
    memory.words[:, :8] = 0x7FFFFFF0
    idesc = bw.instruction(128, 8, "s8", "s8", "s32") | saturate << 3
    multiply(ONE + "i8", idesc, place(a), place(b), [memory], adds=True)
    wrapped = (0x7FFFFFF0 + 127 * 127 * 32) % 2**32
    assert (memory.words[:, :8] == (0x7FFFFFFF if saturate else wrapped)).all()


def test_an_f16_accumulator_lies_in_the_lower_half_of_its_cells():
    memory, expected = run("f16", "f16", 128, 64, 64, result="f16")
    words = bw.read_lanes(memory, 64, 64, np.uint32)
    assert (words >> 16 == 0).all()
    got = words.astype(np.uint16).view(np.float16).astype(np.float64)
    assert np.allclose(got, expected, rtol=2**-9, atol=0.02)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("e2m3", ml_dtypes.float6_e2m3fn),
        ("e3m2", ml_dtypes.float6_e3m2fn),
        ("e2m1", ml_dtypes.float4_e2m1fn),
    ],
)
def test_elements_of_4_and_6_bits_are_padded_to_16_in_16_bytes(name, dtype):
    bits = 4 if name == "e2m1" else 6
    codes = np.random.default_rng(9).integers(0, 1 << bits, (128, 32), np.uint8)
    rows = np.full((128, 2, 16), 0xAA, np.uint8)
    for row, chunk in np.ndindex(128, 2):
        chosen = codes[row, chunk * 16 : chunk * 16 + 16]
        number = sum(int(code) << bits * i for i, code in enumerate(chosen))
        rows[row, chunk, : bits * 2] = list(number.to_bytes(bits * 2, "little"))
    b = bw.random_elements("e4m3", (16, 32), 10)
    memory = bw.fresh_memory()
    idesc = bw.instruction(128, 16, name, "e4m3", "f32")
    left = bw.k_major(rows.reshape(128, 32), 32)
    multiply(ONE + "f8f6f4", idesc, left, place(b), [memory])
    assert (memory.words[:, :16].view(np.float32) == product(codes.view(dtype), b)).all()


def test_m_of_64_in_two_halves_of_n_as_mosaic_issues_it():
    a, b = bw.random_elements("bf16", (64, 64), 3), bw.random_elements("bf16", (128, 64), 4)
    left = place(a, 128)
    memory = bw.fresh_memory()
    idesc = bw.instruction(64, 64, "bf16", "bf16", "f32")
    for half, step in np.ndindex(2, 4):
        right = place(b[half * 64 : half * 64 + 64], 128)
        at = 32 + (16 * half << 16)
        multiply(ONE + "f16", idesc, left, right, [memory], step=step, d=at)
    # 16 rows of each warp: the lower 16 lanes have the first half of the columns.
    lanes = bw.read_lanes(memory, 32, 64)
    folded = lanes.reshape(4, 2, 16, 64).transpose(0, 2, 1, 3).reshape(64, 128)
    assert (folded == product(a, b)).all()


def of_pair(memories, m, n):
    """Return D of two blocks: with 64 rows each, the upper lanes have the upper half of columns."""
    if m == 256:
        return np.concatenate([bw.read_lanes(memory, 0, n) for memory in memories])
    halves = [bw.read_lanes(memory, 0, n // 2) for memory in memories]
    return np.concatenate([np.concatenate([h[:64], h[64:]], axis=1) for h in halves])


@pytest.mark.parametrize("m", [128, 256])
@pytest.mark.parametrize("mn", [(False, False), (True, True)])
def test_two_blocks_share_b_and_keep_half_of_the_rows(m, mn):
    a, b = bw.random_elements("f16", (m, 64), 5), bw.random_elements("f16", (128, 64), 6)
    memories = [bw.fresh_memory(), bw.fresh_memory()]
    lefts = [place(part, 128, mn=mn[0]) for part in np.split(a, 2)]
    rights = [place(part, 128, mn=mn[1]) for part in np.split(b, 2)]
    shared = [
        bw.shared_with((bw.A_AT, left.data), (B_AT, right.data))
        for left, right in zip(lefts, rights, strict=True)
    ]
    idesc = bw.instruction(m, 128, "f16", "f16", "f32", a_mn=mn[0], b_mn=mn[1])
    for step in range(4):
        multiply(TWO, idesc, lefts[0], rights[0], memories, step=step, shared=shared)
    assert (of_pair(memories, m, 128) == product(a, b)).all()


def test_two_blocks_of_64_rows_read_a_from_both_halves_of_the_lanes():
    a, b = bw.random_elements("f16", (128, 16), 15), bw.random_elements("f16", (64, 16), 16)
    memories = [bw.fresh_memory(), bw.fresh_memory()]
    for memory, rows in zip(memories, np.split(a, 2), strict=True):
        memory.words[:, 100:108] = np.tile(bw.as_bytes(rows).view(np.uint32), (2, 1))
    rights = [place(part) for part in np.split(b, 2)]
    shared = [bw.shared_with((B_AT, right.data)) for right in rights]
    idesc = bw.instruction(128, 64, "f16", "f16", "f32")
    multiply(TWO, idesc, 100, rights[0], memories, shared=shared)
    assert (of_pair(memories, 128, 64) == product(a, b)).all()


@pytest.mark.parametrize("name", ["f16", "e4m3", "tf32"])
def test_a_in_memory_is_packed(name):
    a, b = bw.random_elements(name, (128, 64), 7), bw.random_elements(name, (64, 64), 8)
    right, memory = place(b, 64), bw.fresh_memory()
    words = bw.as_bytes(a).view(np.uint32)
    memory.words[:, 300 : 300 + words.shape[1]] = words
    idesc = bw.instruction(128, 64, name, name, "f32")
    for step in range(len(right.steps)):
        multiply(ONE + KINDS[name], idesc, 300 + 8 * step, right, [memory], step=step)
    assert (bw.read_lanes(memory, 0, 64) == product(a, b)).all()


@pytest.mark.parametrize("m", [32, 64, 128])
def test_weight_stationary_products_fold_columns_into_the_lanes(m):
    a, b = bw.random_elements("f16", (m, 16), 17), bw.random_elements("f16", (128, 16), 18)
    memory = bw.fresh_memory()
    idesc = bw.instruction(m, 128, "f16", "f16", "f32")
    multiply(f".ws{ONE}f16.collector::b2::fill", idesc, place(a), place(b), [memory])
    d = memory.words[:, :m].view(np.float32)
    assert (np.concatenate([*d.reshape(128 // m, m, m)], axis=1) == product(a, b)).all()
    assert memory.written.sum() == m * 128


@pytest.mark.parametrize("first", [0, 16])
def test_m_of_64_with_a_in_memory(first):
    a, b = bw.random_elements("f16", (64, 16), 13), bw.random_elements("f16", (32, 16), 14)
    memory = bw.fresh_memory()
    lanes = np.arange(64) // 16 * 32 + np.arange(64) % 16 + first
    memory.words[lanes, 100:108] = bw.as_bytes(a).view(np.uint32)
    idesc = bw.instruction(64, 32, "f16", "f16", "f32")
    multiply(ONE + "f16", idesc, 100 | first << 16, place(b), [memory], d=first << 16)
    assert (memory.words[lanes, :32].view(np.float32) == product(a, b)).all()
    assert memory.written.sum() == 64 * 32


def small(m=128, n=16, group=1, **options):
    """One product of ones with all that `mma` may be told; return the tensor memories."""
    left = place(np.ones((m // group, 16), np.float16))
    right = place(np.ones((n // group, 16), np.float16))
    memories = [bw.fresh_memory() for _ in range(group)]
    for memory in memories:
        memory.words[:] = np.float32(5).view(np.uint32)
    arguments = {
        "kind": parse_mma(f"tcgen05.mma.cta_group::{group}.kind::f16"),
        "idesc": bw.instruction(m, n, "f16", "f16", "f32"),
        "d": 0,
        "a": left.descriptor(0, 0),
        "a_in_memory": False,
        "b": right.descriptor(B_AT, 0),
        "enable": True,
    }
    shared = [bw.shared_with((0, left.data), (B_AT, right.data))] * group
    shared = options.pop("shared", shared)
    tcgen05.mma(tcgen05.Mma(**(arguments | options)), shared, memories)
    return [memory.words.view(np.float32) for memory in memories]


def test_d_is_an_input_only_where_it_is_enabled_and_may_be_scaled():
    assert small()[0][0, 0] == 21
    assert small(enable=False)[0][0, 0] == 16
    assert small(scale=2)[0][0, 0] == 17.25


@pytest.mark.parametrize("group", [1, 2])
def test_disabled_lanes_keep_their_d(group):
    mask = [0x0000_0001, 0, 0x8000_0000, 0, 0, 0x10, 0, 0xFFFF_FFFF][: 4 * group]
    for block, words in enumerate(small(m=128 * group, group=group, disabled=mask)):
        for lane in range(128):
            disabled = mask[block * 4 + lane // 32] >> lane % 32 & 1
            assert words[lane, 15] == (5 if disabled else 21)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d": 16 << 16}, r"starts at lane 16, must start at lane 0$"),
        ({"d": 500}, r"\(D\) reaches column 515"),
        ({"shared": []}, r"needs shared and tensor memory of 1 blocks, got 0 and 1"),
        ({"scale": 16}, r"scale of D must be in 0…15, got 16"),
        ({"disabled": [1]}, r"mask of lanes of 1 words"),
        ({"b": 0x3FFE | 8 << 32 | 6 << 61}, r"\(B\) reads shared memory at 0x"),
        ({"a": 3 << 61}, r"is not a shared memory descriptor"),
        ({"idesc": 0x0810_0010 | 4}, r"bit 2 says sparse"),
        ({"idesc": 0x0410_0010 >> 1}, r"M is 32 and N 32"),
        ({"idesc": 0x0810_0010 | 2 << 7}, r"types of A and B are 2 and 0"),
        ({"idesc": 0x0810_0010 | 2 << 4}, r"type of D is 3"),
        ({"idesc": 0x0810_0010 | 1 << 29}, r"reserved bits are not 0"),
        ({"a": 0, "a_in_memory": True, "idesc": 0x0808_8010}, r"cannot be M-major"),
        ({"a": 16 << 16, "a_in_memory": True}, r"starts at lane 16, D at lane 0"),
    ],
)
def test_wrong_operands_are_named(options, message):
    with pytest.raises(OperandError, match=message):
        small(**options)


WS = parse_mma(f"tcgen05.mma.ws{ONE}f16")
OF_64 = bw.instruction(64, 64, "f16", "f16", "f32")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"a": 1 << 49}, "base offset"),
        ({"a": 1 << 52}, "absolute leading dimension"),
        ({"a": 1 << 61}, "keeps 32 bytes together"),
        ({"a": 1 | 6 << 61}, "start 16 bytes into a swizzled row of 32"),
        ({"idesc": 0x0808_8010, "a": 1 | 2 << 61}, "MN-major matrix that starts 16 bytes into"),
        ({"kind": WS, "idesc": OF_64 | 1 << 30}, "a shift of B"),
        (
            {"kind": WS, "idesc": OF_64, "a": 300, "a_in_memory": True},
            "A in tensor memory with 64 rows",
        ),
    ],
)
def test_descriptors_beyond_what_is_known_are_refused(options, message):
    with pytest.raises(UnsupportedError, match=message):
        small(**options)


@pytest.mark.parametrize("n", [32, 96, 192])
def test_weight_stationary_products_have_fewer_shapes(n):
    with pytest.raises(OperandError, match=f"N {n}; M must be 32 or 64 or 128"):
        decode_instruction(WS, bw.instruction(64, n, "f16", "f16", "f32"))


def test_the_chunks_that_are_read_are_those_that_matter():
    a, b = bw.random_elements("f16", (128, 64), 11), bw.random_elements("f16", (64, 64), 12)
    left, right = place(a, 128), place(b, 64, mn=True)
    shared = bw.shared_with((bw.A_AT, left.data), (B_AT, right.data))
    kind = parse_mma(f"tcgen05.mma{ONE}f16")
    idesc = bw.instruction(128, 64, "f16", "f16", "f32", b_mn=True)
    operands = tcgen05.Mma(
        kind=kind,
        idesc=idesc,
        d=0,
        a=left.descriptor(bw.A_AT, 2),
        a_in_memory=False,
        b=right.descriptor(B_AT, 2),
        enable=False,
    )
    chunks = tcgen05.operand_chunks(operands)
    assert len(chunks) == (128 * 16 + 64 * 16) * 2 // 16
    with_a_in_memory = replace(operands, a=0, a_in_memory=True)
    assert len(tcgen05.operand_chunks(with_a_in_memory)) == 64 * 16 * 2 // 16

    def result(data):
        memory = bw.fresh_memory()
        tcgen05.mma(operands, [data], [memory])
        return memory.words

    others = np.ones(len(shared), bool)
    others[(chunks[:, None] + np.arange(16)).ravel()] = False
    changed = shared.copy()
    changed[others] ^= 0x55
    assert (result(changed) == result(shared)).all()
    for chunk in chunks[::37]:
        changed = shared.copy()
        changed[chunk : chunk + 16] ^= 0x11
        assert (result(changed) != result(shared)).any()


class Recording(TensorMemory):
    """Tensor memory that knows which of its cells were read and written."""

    def __init__(self):
        super().__init__()
        self.alloc(512)
        self.reads = np.zeros((128, 512), bool)

    def read_block(self, lanes, columns, user):
        self.reads[np.ix_(lanes, columns)] = True
        return super().read_block(lanes, columns, user)


def cells_of(rectangles):
    mask = np.zeros((128, 512), bool)
    for lanes, columns in rectangles:
        mask[np.ix_(lanes, columns)] = True
    return mask


@pytest.mark.parametrize(
    ("mnemonic", "word", "a", "addresses"),
    [
        (ONE + "f16", bw.instruction(128, 64, "f16", "f16", "f32"), 200, {}),
        (ONE + "f16", OF_64, 200, {}),
        (
            f".sp{ONE}f8f6f4",
            bw.instruction(128, 64, "e4m3", "e4m3", "f32", sparse=0),
            None,
            {"metadata": 300},
        ),
        (
            ONE + "mxf8f6f4.block_scale",
            bw.scaled_instruction(128, 72, "e4m3", "e4m3", "ue8m0", 1),
            200,
            {"a_scales": 320, "b_scales": 340},
        ),
    ],
)
def test_the_cells_of_operands_are_those_that_are_read(mnemonic, word, a, addresses):
    operand = bw.k_major(np.zeros((256, 64), np.uint8), 64)
    memory = Recording()
    memory.words[:] = 0x44444444
    multiply(mnemonic, word, operand if a is None else a, operand, [memory], **addresses)
    kind = parse_mma(f"tcgen05.mma{mnemonic}")
    issued = tcgen05.Mma(
        kind=kind,
        idesc=word,
        d=0,
        a=a or 0,
        a_in_memory=a is not None,
        b=0,
        enable=False,
        **addresses,
    )
    results, operands = tcgen05.tensor_memory_cells(issued)
    assert (cells_of(results) == memory.written).all()
    assert (cells_of(operands) == memory.reads).all()
