"""Products of tcgen05.mma with operands that Mosaic lays out."""

from __future__ import annotations

import blackwell as bw
import numpy as np

from pallasc.emulator.tensors import tcgen05
from pallasc.emulator.tensors.tcgen05_instructions import parse_mma

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
