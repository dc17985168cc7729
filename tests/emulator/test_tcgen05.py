"""tcgen05.mma multiplies what Mosaic lays out, and leaves D where Mosaic reads it."""

from __future__ import annotations

import blackwell as bw
import numpy as np
import pytest

from pallasc.emulator.tensors import tcgen05
from pallasc.emulator.tensors.tcgen05_copies import parse_copy
from pallasc.emulator.tensors.tcgen05_instructions import decode_instruction, parse_mma
from pallasc.emulator.tensors.tcgen05_moves import parse_move
from pallasc.emulator.tensors.tensor_memory import TensorCoreError, TensorMemory
from pallasc.errors import UnsupportedError

A_AT, B_AT = 1024, 96 * 1024
KINDS = {"f16": "f16", "bf16": "f16", "tf32": "tf32", "e4m3": "f8f6f4", "e5m2": "f8f6f4"}
KINDS |= {"s8": "i8", "u8": "i8"}


def place(matrix, mode, mn):
    size = matrix.dtype.itemsize
    if mn:
        return bw.mn_major(matrix, mode, step_k=32 // size)
    return bw.k_major(bw.as_bytes(matrix), mode)


def product(a, b):
    return a.astype(np.float64) @ b.astype(np.float64).T


def multiply_once(kind, idesc, a, b, memory, *, adds):
    """Issue one product of matrices of 32 bytes a row."""
    left, right = place(a, 32, False), place(b, 32, False)
    tcgen05.mma(
        parse_mma(f"tcgen05.mma.cta_group::1.kind::{kind}"),
        idesc,
        0,
        left.descriptor(0, 0),
        False,
        right.descriptor(B_AT, 0),
        [bw.shared_with((0, left.data), (B_AT, right.data))],
        [memory],
        adds,
    )


def run(a_name, b_name, m, n, k, *, modes=(128, 128), mn=(False, False), result="f32", **options):
    """Multiply with one block; return D as words and the exact product."""
    a = bw.random_elements(a_name, (m, k), 1)
    b = bw.random_elements(b_name, (n, k), 2)
    left, right = place(a, modes[0], mn[0]), place(b, modes[1], mn[1])
    shared = bw.shared_with((A_AT, left.data), (B_AT, right.data))
    memory = bw.fresh_memory()
    kind = parse_mma(f"tcgen05.mma.cta_group::1.kind::{KINDS[a_name]}")
    idesc = bw.instruction(m, n, a_name, b_name, result, a_mn=mn[0], b_mn=mn[1])
    for step in range(len(left.steps)):
        tcgen05.mma(
            kind,
            idesc,
            64,
            left.descriptor(A_AT, step),
            False,
            right.descriptor(B_AT, step),
            [shared],
            [memory],
            step > 0,
            **options,
        )
    return memory, product(a, b)


@pytest.mark.parametrize("name", ["f16", "bf16", "e4m3", "e5m2"])
@pytest.mark.parametrize("mode", [32, 64, 128])
@pytest.mark.parametrize("mn", [(False, False), (True, False), (False, True), (True, True)])
def test_every_swizzle_and_both_majors(name, mode, mn):
    memory, expected = run(name, name, 128, 128, 128, modes=(mode, mode), mn=mn)
    assert (bw.read_mosaic_fragments(memory, 64, 128) == expected).all()


@pytest.mark.parametrize("name", ["f16", "e4m3"])
@pytest.mark.parametrize("mn", [(False, False), (True, True)])
def test_operands_without_swizzle(name, mn):
    memory, expected = run(name, name, 128, 64, 64, modes=(16, 16), mn=mn)
    assert (bw.read_lanes(memory, 64, 64).view(np.float32) == expected).all()


@pytest.mark.parametrize("modes", [(128, 32), (64, 128), (16, 64)])
def test_operands_may_be_swizzled_differently(modes):
    memory, expected = run("bf16", "bf16", 128, 256, 64, modes=modes)
    assert (bw.read_mosaic_fragments(memory, 64, 256) == expected).all()


@pytest.mark.parametrize("n", [8, 24, 136])
def test_columns_of_d_beyond_n_stay_as_they_were(n):
    memory, expected = run("f16", "f16", 128, n, 16, modes=(32, 32))
    assert (bw.read_lanes(memory, 64, n).view(np.float32) == expected).all()
    assert memory.written.sum() == 128 * n


@pytest.mark.parametrize("names", [("e4m3", "e5m2"), ("e5m2", "e4m3")])
def test_types_of_8_bits_mix(names):
    memory, expected = run(*names, 128, 64, 128)
    assert (bw.read_lanes(memory, 64, 64).view(np.float32) == expected).all()


def test_tf32_drops_the_lower_bits_and_is_mn_major_in_its_own_swizzle():
    for modes, mn in (((128, 128), (False, False)), (("128B32", "128B32"), (True, True))):
        memory, expected = run("tf32", "tf32", 128, 64, 32, modes=modes, mn=mn)
        assert (bw.read_lanes(memory, 64, 64).view(np.float32) == expected).all()
    a = np.full((128, 8), np.float32(1 + 2**-10 + 2**-11))
    b = np.full((8, 8), np.float32(1))
    memory = bw.fresh_memory()
    multiply_once("tf32", bw.instruction(128, 8, "tf32", "tf32", "f32"), a, b, memory, adds=False)
    assert memory.words[0, 0].view(np.float32) == 8 * (1 + 2**-10)


@pytest.mark.parametrize("names", [("s8", "s8"), ("u8", "s8"), ("u8", "u8")])
def test_integers(names):
    memory, expected = run(*names, 128, 64, 128, result="s32")
    assert (bw.read_lanes(memory, 64, 64).view(np.int32) == expected).all()


@pytest.mark.parametrize("saturate", [False, True])
def test_integer_sums_wrap_or_saturate(saturate):
    a, b = np.full((128, 32), 127, np.int8), np.full((8, 32), 127, np.int8)
    memory = bw.fresh_memory()
    memory.words[:, :8] = 0x7FFFFFF0
    idesc = bw.instruction(128, 8, "s8", "s8", "s32") | saturate << 3
    multiply_once("i8", idesc, a, b, memory, adds=True)
    wrapped = (0x7FFFFFF0 + 127 * 127 * 32) % 2**32
    assert (memory.words[:, :8] == (0x7FFFFFFF if saturate else wrapped)).all()


def test_an_f16_accumulator_lies_in_the_lower_half_of_its_cells():
    memory, expected = run("f16", "f16", 128, 64, 64, result="f16")
    words = bw.read_lanes(memory, 64, 64)
    assert (words >> 16 == 0).all()
    got = words.astype(np.uint16).view(np.float16).astype(np.float64)
    assert np.allclose(got, expected, rtol=2**-9, atol=0.02)


def test_m_of_64_in_two_halves_of_n_as_mosaic_issues_it():
    a, b = bw.random_elements("bf16", (64, 64), 3), bw.random_elements("bf16", (128, 64), 4)
    left, right = place(a, 128, False), place(b, 128, False)
    shared = bw.shared_with((A_AT, left.data), (B_AT, right.data))
    memory = bw.fresh_memory()
    kind = parse_mma("tcgen05.mma.cta_group::1.kind::f16")
    idesc = bw.instruction(64, 64, "bf16", "bf16", "f32")
    for half in range(2):
        for step in range(4):
            tcgen05.mma(
                kind,
                idesc,
                32 + (16 * half << 16),
                left.descriptor(A_AT, step),
                False,
                right.descriptor(B_AT + half * 64 * 128, step),
                [shared],
                [memory],
                step > 0,
            )
    lanes = bw.read_lanes(memory, 32, 64).view(np.float32)
    # 16 rows of each warp: the lower 16 lanes have the first half of the columns.
    folded = lanes.reshape(4, 2, 16, 64).transpose(0, 2, 1, 3).reshape(64, 128)
    assert (folded == product(a, b)).all()


@pytest.mark.parametrize("m", [128, 256])
@pytest.mark.parametrize("mn", [(False, False), (True, True)])
def test_two_blocks_share_b_and_keep_half_of_the_rows(m, mn):
    rows, n, k = m // 2, 128, 64
    a, b = bw.random_elements("f16", (m, k), 5), bw.random_elements("f16", (n, k), 6)
    shared, memories, operands = [], [bw.fresh_memory(), bw.fresh_memory()], []
    for block in range(2):
        left = place(a[block * rows : (block + 1) * rows], 128, mn[0])
        right = place(b[block * 64 : (block + 1) * 64], 128, mn[1])
        shared.append(bw.shared_with((A_AT, left.data), (B_AT, right.data)))
        operands = [left, right]
    kind = parse_mma("tcgen05.mma.cta_group::2.kind::f16")
    idesc = bw.instruction(m, n, "f16", "f16", "f32", a_mn=mn[0], b_mn=mn[1])
    for step in range(4):
        tcgen05.mma(
            kind,
            idesc,
            0,
            operands[0].descriptor(A_AT, step),
            False,
            operands[1].descriptor(B_AT, step),
            shared,
            memories,
            step > 0,
        )
    got = []
    for memory in memories:
        if m == 256:
            got.append(bw.read_mosaic_fragments(memory, 0, n))
        else:  # the upper 64 lanes have the upper half of the columns
            lanes = bw.read_lanes(memory, 0, n // 2).view(np.float32)
            got.append(np.concatenate([lanes[:64], lanes[64:]], axis=1))
    assert (np.concatenate(got) == product(a, b)).all()


@pytest.mark.parametrize("name", ["f16", "e4m3", "tf32"])
def test_a_in_tensor_memory_is_packed(name):
    a, b = bw.random_elements(name, (128, 64), 7), bw.random_elements(name, (64, 64), 8)
    right = place(b, 64, False)
    memory = bw.fresh_memory()
    words = bw.as_bytes(a).view(np.uint32)
    memory.words[:, 300 : 300 + words.shape[1]] = words
    for step in range(len(right.steps)):
        tcgen05.mma(
            parse_mma(f"tcgen05.mma.cta_group::1.kind::{KINDS[name]}"),
            bw.instruction(128, 64, name, name, "f32"),
            0,
            300 + 8 * step,
            True,
            right.descriptor(B_AT, step),
            [bw.shared_with((B_AT, right.data))],
            [memory],
            step > 0,
        )
    assert (bw.read_mosaic_fragments(memory, 0, 64) == product(a, b)).all()


@pytest.mark.parametrize("name", ["e2m3", "e3m2", "e2m1"])
def test_elements_of_4_and_6_bits_are_padded_to_16_in_16_bytes(name):
    import ml_dtypes

    dtype = {
        "e2m3": ml_dtypes.float6_e2m3fn,
        "e3m2": ml_dtypes.float6_e3m2fn,
        "e2m1": ml_dtypes.float4_e2m1fn,
    }[name]
    bits = 4 if name == "e2m1" else 6
    codes = np.random.default_rng(9).integers(0, 1 << bits, (128, 32), np.uint8)
    rows = np.full((128, 32), 0xAA, np.uint8)
    for row in range(128):
        for chunk in range(2):
            number = sum(
                int(code) << bits * i
                for i, code in enumerate(codes[row, chunk * 16 : chunk * 16 + 16])
            )
            packed = number.to_bytes(bits * 2, "little")
            rows[row, chunk * 16 : chunk * 16 + bits * 2] = list(packed)
    left = bw.k_major(rows, 32)
    b = bw.random_elements("e4m3", (16, 32), 10)
    right = place(b, 32, False)
    memory = bw.fresh_memory()
    tcgen05.mma(
        parse_mma("tcgen05.mma.cta_group::1.kind::f8f6f4"),
        bw.instruction(128, 16, name, "e4m3", "f32"),
        0,
        left.descriptor(0, 0),
        False,
        right.descriptor(B_AT, 0),
        [bw.shared_with((0, left.data), (B_AT, right.data))],
        [memory],
        False,
    )
    values = codes.view(dtype).astype(np.float64)
    assert (memory.words[:, :16].view(np.float32) == values @ b.astype(np.float64).T).all()


def small(m=128, n=16, k=16, group=1, **options):
    """One product of ones with all that `mma` may be told; return the tensor memories."""
    ones = np.ones((m // group, k), np.float16)
    left, right = place(ones, 32, False), place(np.ones((n // group, k), np.float16), 32, False)
    shared = bw.shared_with((0, left.data), (B_AT, right.data))
    memories = [bw.fresh_memory() for _ in range(group)]
    for memory in memories:
        memory.words[:] = np.float32(5).view(np.uint32)
    arguments = {
        "kind": parse_mma(f"tcgen05.mma.cta_group::{group}.kind::f16"),
        "idesc": bw.instruction(m, n, "f16", "f16", "f32"),
        "d_address": 0,
        "a": left.descriptor(0, 0),
        "a_in_tensor_memory": False,
        "b_descriptor": right.descriptor(B_AT, 0),
        "shared": [shared] * group,
        "memories": memories,
        "enable_input_d": True,
    }
    tcgen05.mma(**(arguments | options))
    return [memory.words.view(np.float32) for memory in memories]


def test_d_is_an_input_only_where_it_is_enabled_and_may_be_scaled():
    assert small()[0][0, 0] == 21
    assert small(enable_input_d=False)[0][0, 0] == 16
    assert small(scale_input_d=2)[0][0, 0] == 17.25


@pytest.mark.parametrize(("bits", "sign"), [(1 << 13, -1), (1 << 14, -1), (3 << 13, 1)])
def test_a_and_b_may_be_negated(bits, sign):
    idesc = bw.instruction(128, 16, "f16", "f16", "f32") | bits
    assert small(idesc=idesc)[0][7, 3] == 5 + sign * 16


@pytest.mark.parametrize("group", [1, 2])
def test_disabled_lanes_keep_their_d(group):
    mask = [0x0000_0001, 0, 0x8000_0000, 0, 0, 0x10, 0, 0xFFFF_FFFF][: 4 * group]
    for block, words in enumerate(small(m=128 * group, group=group, disable_output_lane=mask)):
        for lane in range(128):
            disabled = mask[block * 4 + lane // 32] >> lane % 32 & 1
            assert words[lane, 15] == (5 if disabled else 21)


def test_not_a_number_and_infinity_pass_through():
    a = np.ones((128, 16), np.float16)
    a[3, 4], a[5, 6], a[7, :2] = np.nan, np.inf, (np.inf, -np.inf)
    left = place(a, 32, False)
    right = place(np.ones((16, 16), np.float16), 32, False)
    words = small(
        shared=[bw.shared_with((0, left.data), (B_AT, right.data))], enable_input_d=False
    )[0]
    assert np.isnan(words[[3, 7], 0]).all()
    assert words[5, 0] == np.inf
    assert words[6, 0] == 16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_address": 16 << 16}, r"starts at lane 16, must start at lane 0$"),
        ({"d_address": 500}, r"\(D\) reaches column 515"),
        ({"shared": []}, r"needs shared and tensor memory of 1 blocks, got 0 and 1"),
        ({"scale_input_d": 16}, r"scale of D must be in 0…15, got 16"),
        ({"disable_output_lane": [1]}, r"mask of lanes of 1 words"),
        ({"metadata_address": 0}, r"an address of metadata with .sp"),
        ({"b_descriptor": 0x3FFE | 8 << 32 | 6 << 61}, r"\(B\) reads shared memory at 0x"),
        ({"a": 3 << 61}, r"is not a shared memory descriptor"),
        ({"idesc": 0x0810_0010 | 4}, r"bit 2 says sparse"),
        ({"idesc": 0x0410_0010 >> 1}, r"M is 32 and N 32"),
        ({"idesc": 0x0810_0010 | 2 << 7}, r"types of A and B are 2 and 0"),
        ({"idesc": 0x0810_0010 | 2 << 4}, r"type of D is 3"),
        ({"idesc": 0x0810_0010 | 1 << 29}, r"reserved bits are not 0"),
        ({"a": 0, "a_in_tensor_memory": True, "idesc": 0x0808_8010}, r"cannot be M-major"),
        ({"a": 16 << 16, "a_in_tensor_memory": True}, r"starts at lane 16, D at lane 0"),
    ],
)
def test_wrong_operands_are_named(options, message):
    with pytest.raises(TensorCoreError, match=message):
        small(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"a": 1 << 49}, "base offset"),
        ({"a": 1 << 52}, "absolute leading dimension"),
        ({"a": 1 << 61}, "keeps 32 bytes together"),
        ({"a": 1 | 6 << 61}, "start 16 bytes into a swizzled row of 32"),
        ({"idesc": 0x0808_8010, "a": 1 | 2 << 61}, "MN-major matrix that starts 16 bytes into"),
    ],
)
def test_descriptors_beyond_what_is_known_are_refused(options, message):
    with pytest.raises(UnsupportedError, match=message):
        small(**options)


@pytest.mark.parametrize(
    "opcode",
    [
        "tcgen05.mma.ws.sp.cta_group::1.kind::f16",
        "tcgen05.mma.ws.cta_group::2.kind::f16",
        "tcgen05.mma.ws.cta_group::1.kind::mxf4.block_scale",
        "tcgen05.mma.ws.cta_group::1.kind::f16.collector::a::fill",
        "tcgen05.mma.cta_group::1.kind::f16.ashift",
        "tcgen05.mma.cta_group::3.kind::f16",
        "tcgen05.mma.cta_group::1.kind::f64",
        "tcgen05.mma.cta_group::1.kind::mxf8f6f4",
        "tcgen05.mma.cta_group::1.kind::f16.block_scale",
        "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale",
        "tcgen05.mma.cta_group::1.kind::mxf4.block_scale.scale_vec::4X",
        "tcgen05.mma.cta_group::1.kind::f16.collector::b::fill",
    ],
)
def test_mnemonics_beyond_what_is_known_are_refused(opcode):
    with pytest.raises(UnsupportedError, match=opcode):
        parse_mma(opcode)


@pytest.mark.parametrize("m", [32, 64, 128])
def test_weight_stationary_products_fold_columns_into_the_lanes(m):
    a, b = bw.random_elements("f16", (m, 16), 17), bw.random_elements("f16", (128, 16), 18)
    left, right = place(a, 32, False), place(b, 32, False)
    memory = bw.fresh_memory()
    tcgen05.mma(
        parse_mma("tcgen05.mma.ws.cta_group::1.kind::f16.collector::b2::fill"),
        bw.instruction(m, 128, "f16", "f16", "f32"),
        0,
        left.descriptor(0, 0),
        False,
        right.descriptor(B_AT, 0),
        [bw.shared_with((0, left.data), (B_AT, right.data))],
        [memory],
        False,
    )
    d = memory.words[:, :m].view(np.float32)
    assert (np.concatenate([*d.reshape(128 // m, m, m)], axis=1) == product(a, b)).all()
    assert memory.written.sum() == m * 128


def test_weight_stationary_products_have_fewer_shapes():
    kind = parse_mma("tcgen05.mma.ws.cta_group::1.kind::f16")
    for n in (32, 96, 192):
        with pytest.raises(TensorCoreError, match=f"N {n}; M must be 32 or 64 or 128"):
            decode_instruction(kind, bw.instruction(64, n, "f16", "f16", "f32"))
    word = bw.instruction(64, 64, "f16", "f16", "f32") | 1 << 30
    with pytest.raises(UnsupportedError, match="a shift of B"):
        decode_instruction(kind, word)
    with pytest.raises(UnsupportedError, match="A in tensor memory with 64 rows"):
        small(
            kind=kind,
            idesc=bw.instruction(64, 64, "f16", "f16", "f32"),
            a=300,
            a_in_tensor_memory=True,
        )


def test_collectors_make_no_difference():
    kind = parse_mma("tcgen05.mma.sp.cta_group::2.kind::f16.collector::a::lastuse")
    assert (kind.name, kind.group, kind.sparse, kind.scale_vector) == ("f16", 2, True, 0)


def test_the_chunks_that_are_read_are_those_that_matter():
    a, b = bw.random_elements("f16", (128, 64), 11), bw.random_elements("f16", (64, 64), 12)
    left, right = place(a, 128, False), place(b, 64, True)
    shared = bw.shared_with((A_AT, left.data), (B_AT, right.data))
    kind = parse_mma("tcgen05.mma.cta_group::1.kind::f16")
    idesc = bw.instruction(128, 64, "f16", "f16", "f32", b_mn=True)
    operands = left.descriptor(A_AT, 2), False, right.descriptor(B_AT, 2)
    chunks = tcgen05.operand_chunks(kind, idesc, *operands)
    assert len(chunks) == (128 * 16 + 64 * 16) * 2 // 16
    assert len(tcgen05.operand_chunks(kind, idesc, 0, True, operands[2])) == 64 * 16 * 2 // 16

    def result(data):
        memory = bw.fresh_memory()
        tcgen05.mma(kind, idesc, 0, *operands, [data], [memory], False)
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


@pytest.mark.parametrize("first", [0, 16])
def test_m_of_64_with_a_in_tensor_memory(first):
    a, b = bw.random_elements("f16", (64, 16), 13), bw.random_elements("f16", (32, 16), 14)
    right = place(b, 32, False)
    memory = bw.fresh_memory()
    lanes = np.arange(64) // 16 * 32 + np.arange(64) % 16 + first
    memory.words[lanes, 100:108] = bw.as_bytes(a).view(np.uint32)
    tcgen05.mma(
        parse_mma("tcgen05.mma.cta_group::1.kind::f16"),
        bw.instruction(64, 32, "f16", "f16", "f32"),
        first << 16,
        100 | first << 16,
        True,
        right.descriptor(B_AT, 0),
        [bw.shared_with((B_AT, right.data))],
        [memory],
        False,
    )
    assert (memory.words[lanes, :32].view(np.float32) == product(a, b)).all()
    assert memory.written.sum() == 64 * 32


def test_two_blocks_of_64_rows_read_a_from_both_halves_of_the_lanes():
    a, b = bw.random_elements("f16", (128, 16), 15), bw.random_elements("f16", (64, 16), 16)
    memories, shared = [bw.fresh_memory(), bw.fresh_memory()], []
    for block, memory in enumerate(memories):
        words = bw.as_bytes(a[block * 64 : block * 64 + 64]).view(np.uint32)
        memory.words[:, 100:108] = np.concatenate([words, words])
        right = place(b[block * 32 : block * 32 + 32], 32, False)
        shared.append(bw.shared_with((B_AT, right.data)))
    tcgen05.mma(
        parse_mma("tcgen05.mma.cta_group::2.kind::f16"),
        bw.instruction(128, 64, "f16", "f16", "f32"),
        0,
        100,
        True,
        right.descriptor(B_AT, 0),
        shared,
        memories,
        False,
    )
    expected = product(a, b)
    for block, memory in enumerate(memories):
        d = memory.words[:, :32].view(np.float32)
        rows = expected[block * 64 : block * 64 + 64]
        assert (d == np.concatenate([rows[:, :32], rows[:, 32:]])).all()


def test_the_cells_of_an_accumulator():
    kind = parse_mma("tcgen05.mma.cta_group::2.kind::f16")
    idesc = bw.instruction(128, 64, "f16", "f16", "f32")
    results, operands = tcgen05.tensor_memory_cells(kind, idesc, 8)
    (low, columns), (high, _) = results
    assert (low.tolist(), high.tolist()) == (list(range(64)), list(range(64, 128)))
    assert columns == range(8, 40)
    assert operands == []


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
    ("mnemonic", "word", "addresses"),
    [
        ("f16", bw.instruction(128, 64, "f16", "f16", "f32"), {"a": 200}),
        ("f16", bw.instruction(64, 64, "f16", "f16", "f32"), {"a": 200}),
        (
            "f8f6f4",
            bw.instruction(128, 64, "e4m3", "e4m3", "f32", sparse=0),
            {"metadata_address": 300},
        ),
        (
            "mxf8f6f4.block_scale",
            bw.scaled_instruction(128, 72, "e4m3", "e4m3", "ue8m0", 1),
            {"a": 200, "a_scales_address": 320, "b_scales_address": 340},
        ),
    ],
)
def test_the_cells_of_operands_are_those_that_are_read(mnemonic, word, addresses):
    sparse = ".sp" if "metadata_address" in addresses else ""
    kind = parse_mma(f"tcgen05.mma{sparse}.cta_group::1.kind::{mnemonic}")
    operand = bw.k_major(np.zeros((256, 64), np.uint8), 64).descriptor(0, 0)
    memory = Recording()
    memory.words[:] = 0x44444444
    others = {name: address for name, address in addresses.items() if name != "a"}
    a = addresses.get("a")
    tcgen05.mma(
        kind,
        word,
        0,
        operand if a is None else a,
        a is not None,
        operand,
        [bw.shared_with()],
        [memory],
        False,
        **others,
    )
    results, operands = tcgen05.tensor_memory_cells(kind, word, 0, a_address=a, **others)
    assert (cells_of(results) == memory.written).all()
    assert (cells_of(operands) == memory.reads).all()


def test_the_operands_of_these_tests_are_those_that_mosaic_emits():
    """Numbers from the PTX of compiled kernels, whose shapes stand beside them."""
    whole = np.zeros((128, 128), np.uint8)
    scaled = bw.k_major(whole, 128)  # f8[128, 128]
    assert [scaled.descriptor(0, i) for i in range(4)] == [
        low | 1073741888 << 32 for low in (0, 2, 4, 6)
    ]
    sparse = bw.k_major(whole, 64)  # f16[128, 64], swizzled by 64 bytes
    assert [sparse.descriptor(0, i) for i in range(4)] == [
        low | 2147483712 << 32 for low in (0, 2, 32, 34)
    ]
    twice = bw.k_major(np.zeros((128, 256), np.uint8), 64, step_bytes=64)  # f16[128, 128]
    assert [twice.descriptor(0, i) for i in range(4)] == [
        low | 2147483776 << 32 for low in (0, 32, 64, 96)
    ]
    half = bw.mn_major(np.zeros((64, 64), np.float16), 128, step_k=16)  # f16[64, 64], N-major
    assert [half.descriptor(0, i) for i in range(2)] == [
        low | 1073741888 << 32 for low in (4194304, 4194432)
    ]
    wide = bw.mn_major(np.zeros((128, 64), np.float16), 128, step_k=16)  # f16[64, 128], N-major
    assert [wide.descriptor(0, i) for i in range(3)] == [
        low | 1073741952 << 32 for low in (4194304, 4194560, 4194816)
    ]
    assert [bw.scaled_instruction(128, 128, "e4m3", "e4m3", "ue8m0", i) for i in range(4)] == [
        144703488,
        681574416,
        1218445344,
        1755316272,
    ]
    assert [bw.instruction(128, 128, "f16", "f16", "f32", sparse=i) for i in range(2)] == [
        136314900,
        136314901,
    ]
    two_blocks = bw.instruction(256, 128, "f16", "f16", "f32", b_mn=True)
    one_block = bw.instruction(128, 128, "f16", "f16", "f32", b_mn=True)
    assert (two_blocks, one_block) == (270598160, 136380432)


@pytest.mark.parametrize(
    ("parse", "opcode"),
    [
        (parse_copy, "tcgen05.cp.cta_group::1.128x128b"),
        (parse_copy, "tcgen05.cp.cta_group::1.128x256b"),
        (parse_copy, "tcgen05.cp.cta_group::2.128x256b"),
        (parse_copy, "tcgen05.cp.cta_group::1.32x128b.warpx4"),
        (parse_copy, "tcgen05.cp.cta_group::2.64x128b.warpx2::01_23"),
        (parse_move, "tcgen05.ld.sync.aligned.16x128b.x16.b32"),
        (parse_move, "tcgen05.ld.sync.aligned.16x128b.x16.pack::16b.b32"),
        (parse_move, "tcgen05.ld.sync.aligned.16x256b.x8.b32"),
        (parse_move, "tcgen05.ld.sync.aligned.32x32b.x32.b32"),
        (parse_move, "tcgen05.ld.red.sync.aligned.32x32b.x32.max.NaN.f32"),
        (parse_move, "tcgen05.ld.red.sync.aligned.32x32b.x32.min.abs.NaN.f32"),
        (parse_move, "tcgen05.ld.red.sync.aligned.32x32b.x32.max.u32"),
        (parse_move, "tcgen05.st.sync.aligned.16x128b.x8.b32"),
        (parse_move, "tcgen05.st.sync.aligned.16x128b.x8.unpack::16b.b32"),
        (parse_move, "tcgen05.st.sync.aligned.16x256b.x8.b32"),
        (parse_mma, "tcgen05.mma.cta_group::1.kind::f16"),
        (parse_mma, "tcgen05.mma.cta_group::2.kind::f16"),
        (parse_mma, "tcgen05.mma.cta_group::1.kind::i8"),
        (parse_mma, "tcgen05.mma.cta_group::2.kind::f8f6f4"),
        (parse_mma, "tcgen05.mma.sp.cta_group::1.kind::f16"),
        (parse_mma, "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X"),
        (parse_mma, "tcgen05.mma.cta_group::2.kind::mxf4nvf4.block_scale.scale_vec::2X"),
        (parse_mma, "tcgen05.mma.sp.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::4X"),
    ],
)
def test_the_mnemonics_that_mosaic_emits_are_read(parse, opcode):
    assert parse(opcode).opcode == opcode
