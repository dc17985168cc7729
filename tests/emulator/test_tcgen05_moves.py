"""tcgen05.ld and .st move the cells that the figures of the PTX manual give each thread."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from blackwell import FIGURES, PER_UNIT

from pallasc.emulator.tensors import tensor_memory
from pallasc.emulator.tensors.tensor_memory import TensorCoreError, TensorMemory


def full_memory() -> TensorMemory:
    memory = TensorMemory()
    memory.alloc(512)
    lane, column = np.meshgrid(np.arange(128), np.arange(512), indexing="ij")
    memory.words[:] = lane * 1000 + column
    return memory


@pytest.mark.parametrize("shape", FIGURES)
@pytest.mark.parametrize("repeats", [1, 2, 16])
@pytest.mark.parametrize("warp", [0, 3, 6])
def test_a_load_reads_the_cells_of_the_figure(shape, repeats, warp):
    move = tensor_memory.parse_move(f"tcgen05.ld.sync.aligned.{shape}.x{repeats}.b32")
    registers = tensor_memory.load(full_memory(), 20, warp, move, split=64)
    assert registers.shape == (PER_UNIT[shape] * repeats, 32)
    for register in range(len(registers)):
        for thread in range(32):
            lane, column = FIGURES[shape](thread, register)
            assert registers[register, thread] == (warp % 4 * 32 + lane) * 1000 + column + 20


@pytest.mark.parametrize("shape", ["16x64b", "16x128b", "16x256b", "16x32bx2"])
def test_the_upper_sixteen_lanes_of_a_warp_are_reached_from_lane_16(shape):
    move = tensor_memory.parse_move(f"tcgen05.ld.sync.aligned.{shape}.x1.b32")
    lower = tensor_memory.load(full_memory(), 0, 2, move, split=1)
    assert (tensor_memory.load(full_memory(), 16 << 16, 2, move, split=1) == lower + 16_000).all()


@pytest.mark.parametrize("shape", FIGURES)
def test_a_store_is_undone_by_the_load(shape):
    memory = TensorMemory()
    memory.alloc(512)
    store = tensor_memory.parse_move(f"tcgen05.st.sync.aligned.{shape}.x8.b32")
    load = tensor_memory.parse_move(f"tcgen05.ld.sync.aligned.{shape}.x8.b32")
    registers = np.random.default_rng(1).integers(0, 2**32, (store.registers, 32), np.uint32)
    tensor_memory.store(memory, 7, 1, store, registers, split=8)
    assert (tensor_memory.load(memory, 7, 1, load, split=8) == registers).all()
    assert memory.written.sum() == registers.size
    assert not memory.written[:32].any()
    assert not memory.written[64:].any()


@pytest.mark.parametrize(
    ("lane", "warp", "shape", "message"),
    [
        (64, 1, "32x32b", "warp 1 of a warpgroup reaches lanes 32…63"),
        (96, 2, "16x256b", "warp 2 of a warpgroup reaches lanes 64…95"),
        (16, 0, "32x32b", "starts at lane 16 of the warp's 32; .32x32b starts at lane 0"),
        (8, 0, "16x64b", "starts at lane 8 of the warp's 32; .16x64b starts at lane 0 or 16"),
    ],
)
def test_a_warp_reaches_only_its_lanes(lane, warp, shape, message):
    move = tensor_memory.parse_move(f"tcgen05.ld.sync.aligned.{shape}.x1.b32")
    with pytest.raises(TensorCoreError, match=message):
        tensor_memory.load(full_memory(), lane << 16, warp, move)


def test_a_load_beyond_the_allocation_is_an_error():
    memory = TensorMemory()
    memory.alloc(32)
    move = tensor_memory.parse_move("tcgen05.ld.sync.aligned.16x256b.x8.b32")
    with pytest.raises(TensorCoreError, match=r"16x256b.x8.b32 reaches column 32 of tensor memory"):
        tensor_memory.load(memory, 0, 0, move)


SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 3.5]


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("propagates", [False, True])
def test_reductions_of_floats_order_zeros_and_skip_or_keep_nans(op, absolute, propagates):
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


def test_poison_is_a_nan_in_every_float_type_that_is_read_from_a_cell():
    poison = np.array([0xFFFFFFFF], np.uint32)
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2):
        assert np.isnan(poison.view(dtype).astype(np.float64)).all()
