"""tcgen05.mma multiplies what Mosaic lays out: types, layouts, accumulators, masks."""

from __future__ import annotations

import blackwell as bw
import numpy as np
import pytest
from tcgen05_products import B_AT, multiply_once, place, run, small

from pallasc.emulator.tensors import tcgen05
from pallasc.emulator.tensors.tcgen05_instructions import parse_mma


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


@pytest.mark.parametrize("n", [8, 24, 136])
def test_columns_of_d_beyond_n_stay_as_they_were(n):
    memory, expected = run("f16", "f16", 128, n, 16, modes=(32, 32))
    assert (bw.read_lanes(memory, 64, n).view(np.float32) == expected).all()
    assert memory.written.sum() == 128 * n


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


def test_d_is_an_input_only_where_it_is_enabled_and_may_be_scaled():
    assert small()[0][0, 0] == 21
    assert small(enable_input_d=False)[0][0, 0] == 16
    assert small(scale_input_d=2)[0][0, 0] == 17.25


@pytest.mark.parametrize("group", [1, 2])
def test_disabled_lanes_keep_their_d(group):
    mask = [0x0000_0001, 0, 0x8000_0000, 0, 0, 0x10, 0, 0xFFFF_FFFF][: 4 * group]
    for block, words in enumerate(small(m=128 * group, group=group, disable_output_lane=mask)):
        for lane in range(128):
            disabled = mask[block * 4 + lane // 32] >> lane % 32 & 1
            assert words[lane, 15] == (5 if disabled else 21)
