"""tcgen05.cp copies rows of shared memory to the lanes that its shape names."""

from __future__ import annotations

import blackwell as bw
import numpy as np
import pytest

from pallasc.emulator.tensors.tcgen05 import execute_copy, parse_copy
from pallasc.emulator.tensors.tensor_memory import TensorCoreError

# shape -> row of the source that each of the 128 lanes gets.
SOURCES = {
    "128x256b": lambda lane: lane,
    "128x128b": lambda lane: lane,
    "64x128b.warpx2::02_13": lambda lane: lane % 64,
    "64x128b.warpx2::01_23": lambda lane: lane % 32 + lane // 64 * 32,
    "32x128b.warpx4": lambda lane: lane % 32,
}


def random_rows(rows, row_bytes, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (rows, row_bytes), np.uint8)


@pytest.mark.parametrize("shape", SOURCES)
def test_each_lane_gets_the_row_of_the_figure(shape):
    copy = parse_copy(f"tcgen05.cp.cta_group::1.{shape}")
    rows = random_rows(copy.rows, copy.row_bytes)
    source = bw.k_major(rows, 16, step_bytes=copy.row_bytes)
    memory = bw.fresh_memory()
    shared = bw.shared_with((2048, source.data))
    execute_copy(copy, 12, source.descriptor(2048, 0), [shared], [memory])
    width = copy.row_bytes // 4
    for lane in range(128):
        expected = rows[SOURCES[shape](lane)].view(np.uint32)
        assert (memory.words[lane, 12 : 12 + width] == expected).all()
    assert memory.written.sum() == 128 * width


def test_four_rows_go_32_lanes_apart():
    copy = parse_copy("tcgen05.cp.cta_group::1.4x256b")
    rows = random_rows(8, 32)
    source = bw.k_major(rows, 16, step_bytes=32)
    memory = bw.fresh_memory()
    shared = bw.shared_with((0, source.data))
    execute_copy(copy, 31 << 16, source.descriptor(0, 0), [shared], [memory])
    assert (memory.words[31::32, :8] == rows[:4].view(np.uint32)).all()
    assert memory.written.sum() == 32


@pytest.mark.parametrize("mode", [32, 64, 128])
def test_a_swizzled_matrix_is_copied_as_mosaic_does(mode):
    """`async_copy_smem_to_tmem`: tiles of 8 rows, 32 bytes of each row at a time."""
    rows = random_rows(128, 256, seed=1)
    source = bw.k_major(rows, mode)
    shared = bw.shared_with((4096, source.data))
    memory = bw.fresh_memory()
    copy = parse_copy("tcgen05.cp.cta_group::1.128x256b")
    for step in range(8):
        descriptor = source.descriptor(4096, step) | 1 << 16
        execute_copy(copy, 8 * step, descriptor, [shared], [memory])
    assert (bw.read_lanes(memory, 0, 64) == rows.view(np.uint32)).all()


def test_each_block_of_a_pair_copies_from_its_own_shared_memory():
    copy = parse_copy("tcgen05.cp.cta_group::2.128x128b")
    rows = [random_rows(128, 16, seed) for seed in (2, 3)]
    sources = [bw.k_major(r, 16, step_bytes=16) for r in rows]
    memories = [bw.fresh_memory(), bw.fresh_memory()]
    shared = [bw.shared_with((0, source.data)) for source in sources]
    execute_copy(copy, 0, sources[0].descriptor(0, 0), shared, memories)
    for memory, expected in zip(memories, rows, strict=True):
        assert (memory.words[:, :4] == expected.view(np.uint32)).all()


@pytest.mark.parametrize(
    ("address", "descriptor", "message"),
    [
        (1 << 16, 8 << 32, "reaches lane 128 of tensor memory"),
        (510, 8 << 32, "reaches column 513 of tensor memory"),
        (0, 8 << 32 | 0x3FFF, "reads shared memory at 0x"),
    ],
)
def test_what_lies_outside_is_an_error(address, descriptor, message):
    copy = parse_copy("tcgen05.cp.cta_group::1.128x128b")
    with pytest.raises(TensorCoreError, match=message):
        execute_copy(copy, address, descriptor, [bw.shared_with()], [bw.fresh_memory()])
