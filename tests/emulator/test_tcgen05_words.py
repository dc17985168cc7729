"""Mnemonics, descriptors and operands of tcgen05: what Mosaic emits is read, the rest refused."""

from __future__ import annotations

import blackwell as bw
import pytest
from tcgen05_products import small

from pallasc.emulator.tensors.tcgen05_instructions import decode_instruction, parse_mma
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
