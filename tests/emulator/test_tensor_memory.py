"""Tensor memory is allocated by columns, and nothing outside of an allocation is touched."""

from __future__ import annotations

import numpy as np
import pytest

from pallasc.emulator.tensors.tensor_memory import POISON, TensorCoreError, TensorMemory


def test_columns_are_allocated_from_the_first_free_one():
    memory = TensorMemory()
    assert [memory.alloc(32), memory.alloc(128), memory.alloc(64)] == [0, 32, 160]
    memory.dealloc(32, 128)
    assert memory.alloc(256) == 224
    assert memory.alloc(64) == 32
    assert memory.allocations == {0: 32, 160: 64, 224: 256, 32: 64}


def test_an_allocation_that_does_not_fit_waits():
    memory = TensorMemory()
    assert memory.alloc(512) == 0
    assert memory.alloc(32) is None
    memory.dealloc(0, 512)
    assert memory.alloc(32) == 0


@pytest.mark.parametrize("columns", [0, 16, 48, 1024, -32])
def test_a_number_of_columns_that_is_no_power_of_two_in_range_is_refused(columns):
    with pytest.raises(TensorCoreError, match=r"power of two in 32…512"):
        TensorMemory().alloc(columns)


def test_nothing_is_allocated_after_the_permit_was_given_up():
    memory = TensorMemory()
    memory.alloc(32)
    memory.relinquish_alloc_permit()
    with pytest.raises(TensorCoreError, match=r"tcgen05.alloc after"):
        memory.alloc(32)
    memory.dealloc(0, 32)


@pytest.mark.parametrize(("address", "columns"), [(0, 32), (32, 64), (0x200000, 64)])
def test_only_what_was_allocated_is_freed(address, columns):
    memory = TensorMemory()
    memory.alloc(64)
    with pytest.raises(TensorCoreError, match=r"matches no allocation; allocated: 64 columns at"):
        memory.dealloc(address, columns)


def test_cells_are_poison_until_written_and_again_once_freed():
    memory = TensorMemory()
    memory.alloc(32)
    lanes, columns = np.arange(128)[:, None], np.arange(8)
    assert (memory.read(lanes, columns, "x") == POISON).all()
    assert np.isnan(memory.words.view(np.float32)).all()
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
def test_an_access_outside_of_the_allocations_is_an_error(lane, column, message):
    memory = TensorMemory()
    memory.alloc(64)
    cell = np.array([lane]), np.array([column])
    with pytest.raises(TensorCoreError, match=message):
        memory.read(*cell, "tcgen05.ld")
    with pytest.raises(TensorCoreError, match=message):
        memory.write(*cell, np.zeros(1, np.uint32), "tcgen05.st")
