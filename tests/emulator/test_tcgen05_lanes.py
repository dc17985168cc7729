"""tcgen05.mma leaves D, and takes A, in those lanes of tensor memory where Mosaic has them."""

from __future__ import annotations

import blackwell as bw
import numpy as np
import pytest
from tcgen05_products import A_AT, B_AT, KINDS, place, product

from pallasc.emulator.tensors import tcgen05
from pallasc.emulator.tensors.tcgen05_instructions import parse_mma


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
