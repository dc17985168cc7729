"""What tcgen05.mma reads and writes, in shared and in tensor memory, is told before it runs."""

from __future__ import annotations

import blackwell as bw
import numpy as np
import pytest
from tcgen05_products import A_AT, B_AT, place

from pallasc.emulator.tensors import tcgen05
from pallasc.emulator.tensors.tcgen05_instructions import parse_mma
from pallasc.emulator.tensors.tensor_memory import TensorMemory


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
