"""Tensor memory: its columns, what a warp may move to and from it, and copies to it."""

import math

import blackwell as bw
import numpy as np
import pytest
from blackwell import FIGURES

from pallasc.emulator.tensors import tensor_memory
from pallasc.emulator.tensors.descriptors import OperandError
from pallasc.emulator.tensors.tcgen05 import execute_copy, parse_copy
from pallasc.emulator.tensors.tensor_memory import POISON, TensorMemory


def move_of(shape: str, repeats: int, name: str = "ld") -> tensor_memory.Move:
    return tensor_memory.parse_move(f"tcgen05.{name}.sync.aligned.{shape}.x{repeats}.b32")


def full_memory() -> TensorMemory:
    memory = bw.fresh_memory()
    lane, column = np.meshgrid(np.arange(128), np.arange(512), indexing="ij")
    memory.words[:] = lane * 1000 + column
    return memory


def test_columns_are_allocated_from_the_first_free_one_and_freed_as_they_were() -> None:
    memory = TensorMemory()
    assert [memory.alloc(32), memory.alloc(128), memory.alloc(64)] == [0, 32, 160]
    memory.dealloc(32, 128)
    assert memory.alloc(256) == 224
    assert memory.alloc(64) == 32
    assert memory.alloc(128) is None
    for address, columns in [(32, 128), (64, 64), (0x200020, 64)]:
        with pytest.raises(OperandError, match=r"matches no allocation; allocated: 32 columns"):
            memory.dealloc(address, columns)
    for columns in (0, 16, 48, 1024, -32):
        with pytest.raises(OperandError, match=r"power of two in 32…512"):
            memory.alloc(columns)
    memory.relinquish_alloc_permit()
    with pytest.raises(OperandError, match=r"tcgen05.alloc after"):
        memory.alloc(32)
    memory.dealloc(0, 32)


def test_cells_are_poison_until_written_and_again_once_freed() -> None:
    memory = TensorMemory()
    memory.alloc(32)
    lanes, columns = np.arange(128)[:, None], np.arange(8)
    assert (memory.read(lanes, columns, "x") == POISON).all()
    for dtype in (np.float32, np.float16, bw.DTYPES["bf16"], bw.DTYPES["e5m2"]):
        assert np.isnan(memory.words[:1, :1].view(dtype).astype(np.float64)).all()
    memory.write(lanes, columns, np.arange(1024, dtype=np.uint32).reshape(128, 8), "x")
    assert memory.words[5, 3] == 43
    assert memory.written.sum() == 1024
    memory.dealloc(0, 32)
    assert not memory.written.any()
    assert memory.words[5, 3] == POISON


@pytest.mark.parametrize(
    ("lane", "column", "message"),
    [
        (0, 64, "reaches column 64 of tensor memory, which is not allocated"),
        (0, 512, "reaches column 512 of tensor memory, which has columns 0…511"),
        (128, 0, "reaches lane 128 of tensor memory, which has lanes 0…127"),
    ],
)
def test_an_access_outside_of_the_allocations_is_an_error(lane, column, message) -> None:
    memory = bw.fresh_memory(64)
    cell = np.array([lane]), np.array([column])
    with pytest.raises(OperandError, match=message):
        memory.read(*cell, "tcgen05.ld")
    with pytest.raises(OperandError, match=message):
        memory.write(*cell, np.zeros(1, np.uint32), "tcgen05.st")


@pytest.mark.parametrize("shape", FIGURES)
@pytest.mark.parametrize("warp", [1, 6])
def test_a_load_reads_the_cells_of_the_figure_and_a_store_writes_them(shape, warp) -> None:
    move, store = move_of(shape, 8), move_of(shape, 8, "st")
    first = warp % 4 * 32
    for lane in (0,) if shape == "32x32b" else (0, 16):
        registers = tensor_memory.load(full_memory(), (lane << 16) + 20, warp, move, split=8)
        for register, thread in np.ndindex(registers.shape):
            row, column = FIGURES[shape](thread, register)
            column -= 56 if shape == "16x32bx2" and thread >= 16 else 0
            assert registers[register, thread] == (first + lane + row) * 1000 + column + 20
        memory = bw.fresh_memory()
        tensor_memory.store(memory, (lane << 16) + 20, warp, store, registers, split=8)
        assert (memory.words[memory.written] == full_memory().words[memory.written]).all()
        assert memory.written.sum() == memory.written[first : first + 32].sum() == registers.size


@pytest.mark.parametrize(
    ("lane", "warp", "shape", "message"),
    [
        (64, 1, "32x32b", "warp 1 of a warpgroup may use lanes 32…63"),
        (96, 2, "16x256b", "warp 2 of a warpgroup may use lanes 64…95"),
        (16, 0, "32x32b", "starts at lane 16 of the warp's 32; .32x32b starts at lane 0"),
        (8, 0, "16x64b", "starts at lane 8 of the warp's 32; .16x64b starts at lane 0 or 16"),
    ],
)
def test_a_warp_reaches_only_its_lanes(lane, warp, shape, message) -> None:
    with pytest.raises(OperandError, match=message):
        tensor_memory.load(full_memory(), lane << 16, warp, move_of(shape, 1))


SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 3.5]


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("propagates", [False, True])
def test_reductions_of_floats_order_zeros_and_skip_or_keep_nans(op, absolute, propagates) -> None:
    name = f"{op}{'.abs' * absolute}{'.NaN' * propagates}.f32"
    move = tensor_memory.parse_move(f"tcgen05.ld.red.sync.aligned.32x32b.x4.{name}")
    generator = np.random.default_rng(2)
    values = generator.choice(np.array(SPECIAL, np.float32), (4, 32))
    values[:, 0] = math.nan
    result = tensor_memory.reduce(move, values.view(np.uint32))
    for thread in range(32):
        column = [abs(float(v)) if absolute else float(v) for v in values[:, thread]]
        numbers = [v for v in column if not math.isnan(v)]
        if not numbers or (propagates and len(numbers) < 4):
            assert result[thread] == 0x7FFFFFFF
            continue
        best = (min if op == "min" else max)(numbers, key=lambda v: (v, math.copysign(1, v)))
        assert result[thread] == np.float32(best).view(np.uint32)


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
def test_a_copy_gives_each_lane_the_row_of_the_figure(shape) -> None:
    copy = parse_copy(f"tcgen05.cp.cta_group::1.{shape}")
    rows = random_rows(copy.rows, copy.row_bytes)
    source = bw.k_major(rows, 16, step_bytes=copy.row_bytes)
    memory = bw.fresh_memory()
    shared = bw.shared_with((2048, source.data))
    execute_copy(copy, 12, source.descriptor(2048, 0), [shared], [memory])
    width = copy.row_bytes // 4
    expected = rows[[SOURCES[shape](lane) for lane in range(128)]].view(np.uint32)
    assert (memory.words[:, 12 : 12 + width] == expected).all()
    assert memory.written.sum() == 128 * width


def test_four_rows_go_32_lanes_apart() -> None:
    copy = parse_copy("tcgen05.cp.cta_group::1.4x256b")
    rows = random_rows(8, 32)
    source = bw.k_major(rows, 16)
    memory = bw.fresh_memory()
    shared = bw.shared_with((0, source.data))
    execute_copy(copy, 31 << 16, source.descriptor(0, 0), [shared], [memory])
    assert (memory.words[31::32, :8] == rows[:4].view(np.uint32)).all()
    assert memory.written.sum() == 32


@pytest.mark.parametrize("mode", [32, 64, 128])
def test_a_swizzled_matrix_is_copied_as_mosaic_does(mode) -> None:
    """`async_copy_smem_to_tmem`: tiles of 8 rows, 32 bytes of each row at a time."""
    rows = random_rows(128, 256, seed=1)
    source = bw.k_major(rows, mode)
    shared = bw.shared_with((4096, source.data))
    memory = bw.fresh_memory()
    copy = parse_copy("tcgen05.cp.cta_group::1.128x256b")
    for step in range(8):
        descriptor = source.descriptor(4096, step) | 1 << 16
        execute_copy(copy, 8 * step, descriptor, [shared], [memory])
    assert (bw.read_lanes(memory, 0, 64, np.uint32) == rows.view(np.uint32)).all()


def test_each_block_of_a_pair_copies_from_its_own_shared_memory() -> None:
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
def test_what_a_copy_cannot_reach_is_an_error(address, descriptor, message) -> None:
    copy = parse_copy("tcgen05.cp.cta_group::1.128x128b")
    with pytest.raises(OperandError, match=message):
        execute_copy(copy, address, descriptor, [bw.shared_with()], [bw.fresh_memory()])
