"""Mnemonics, descriptors and operands of tcgen05: what Mosaic emits is read, the rest refused."""

from __future__ import annotations

import blackwell as bw
import numpy as np
import pytest
from tcgen05_products import small

from pallasc.emulator.tensors.tcgen05_copies import parse_copy
from pallasc.emulator.tensors.tcgen05_instructions import decode_instruction, parse_mma
from pallasc.emulator.tensors.tcgen05_moves import parse_move
from pallasc.emulator.tensors.tensor_memory import TensorCoreError
from pallasc.errors import UnsupportedError


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
