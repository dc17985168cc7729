"""Bulk tensor copies, against loops over the elements of a box written from the manual's words."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pallasc.emulator.tensors import tensor_maps
from pallasc.errors import CheckError, UnsupportedError
from pallasc.specs.artifacts.plan import TensorMap

SHARED_BYTES = 1 << 16


def make_map(
    array: np.ndarray, box: Sequence[int], *, dtype: str = "", swizzle: int = 0, **others: Any
) -> TensorMap:
    """Describe a row-major array; `box` is minor first."""
    return TensorMap(
        buffer=0,
        offset=0,
        dtype=dtype or str(array.dtype),
        dims=tuple(reversed(array.shape)),
        strides=tuple(reversed(array.strides[:-1])),
        box=tuple(box),
        element_strides=others.pop("element_strides", (1,) * array.ndim),
        swizzle=swizzle,
        **others,
    )


def arange(*shape: int, dtype: Any = np.uint16) -> np.ndarray:
    """Distinct elements, none of them zero, where the type has that many."""
    return (np.arange(np.prod(shape)) % 65521 + 1).astype(dtype).reshape(shape)


def load(map: TensorMap, box: tensor_maps.Box, array: np.ndarray, before: int = 0) -> np.ndarray:
    """Return shared memory with a box of an array that begins so many bytes into its memory."""
    shared = np.full(SHARED_BYTES, 0xCC, np.uint8)
    memory = np.concatenate([np.full(before, 0xEE, np.uint8), array.reshape(-1).view(np.uint8)])
    occupied(box, shared)[...] = tensor_maps.read_global(map, box, memory, before)
    return shared


def occupied(box: tensor_maps.Box, shared: np.ndarray) -> np.ndarray:
    """Return the bytes of shared memory that a box occupies."""
    return shared[box.shared_address : box.shared_address + box.bytes]


def expected_tile(array: np.ndarray, map: TensorMap, coordinates: Sequence[int]) -> np.ndarray:
    """Collect a box element by element, zero where it leaves the array."""
    steps = (1, *map.element_strides[1:])
    ranges = [range(0, size, step) for size, step in zip(map.box, steps, strict=True)]
    found = []
    for position in itertools.product(*reversed(ranges)):
        index = [at + n for at, n in zip(reversed(coordinates), position, strict=True)]
        inside = all(0 <= at < size for at, size in zip(index, array.shape, strict=True))
        found.append(array[tuple(index)] if inside else array.dtype.type(0))
    return np.array(found, array.dtype)


def unswizzled(shared: np.ndarray, address: int, count: int, swizzle: int) -> bytes:
    """Read `count` bytes, address by address: bits 4 to 6 XOR bits 7 to 9, as many as apply."""
    bits = {0: 0, 32: 1, 64: 2, 128: 3}[swizzle]
    found = bytearray()
    for at in range(address, address + count):
        for n in range(bits):
            at ^= (at >> 7 + n & 1) << 4 + n
        found.append(shared[at])
    return bytes(found)


TILES = [
    ((50, 72), (32, 8), (0, 0)),
    ((50, 72), (32, 8), (16, 40)),
    ((50, 72), (32, 8), (8, 45)),
    ((50, 72), (32, 8), (56, 3)),
    ((50, 72), (32, 8), (-8, -3)),
    ((50, 72), (32, 8), (-40, 0)),
    ((50, 72), (32, 8), (72, 0)),
    ((50, 72), (32, 8), (0, 50)),
    ((50, 72), (32, 8), (3, 1)),
    ((264,), (128,), (140,)),
    ((264,), (128,), (-5,)),
    ((5, 6, 8), (8, 3, 2), (0, 4, 4)),
    ((3, 5, 6, 16), (16, 3, 2, 3), (0, -1, 4, -1)),
    ((2, 3, 5, 6, 8), (8, 2, 2, 2, 2), (0, 5, 4, 2, -1)),
]


@pytest.mark.parametrize(("shape", "box", "coordinates"), TILES)
@pytest.mark.parametrize("address", [0, 1024, 0x380])
def test_a_tile_lies_dense_in_shared_memory(shape: Any, box: Any, coordinates: Any, address: int):
    array = arange(*shape)
    map = make_map(array, box)
    copied = tensor_maps.tiled(map, coordinates, address)
    wanted = expected_tile(array, map, coordinates)
    assert copied.bytes == wanted.nbytes
    shared = load(map, copied, array, before=48)
    assert unswizzled(shared, address, copied.bytes, 0) == wanted.tobytes()


@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("coordinates", [(0, 0), (5, 30), (-3, -2), (60, 2)])
@pytest.mark.parametrize("address", [0x400, 0x480, 0x780])
def test_a_swizzle_follows_the_address_in_shared_memory(
    swizzle: int, dtype: Any, coordinates: Any, address: int
):
    array = arange(37, 256, dtype=np.uint8).view(dtype)
    map = make_map(array, (swizzle // array.itemsize, 16), swizzle=swizzle)
    box = tensor_maps.tiled(map, coordinates, address)
    shared = load(map, box, array)
    wanted = expected_tile(array, map, coordinates)
    assert unswizzled(shared, address, box.bytes, swizzle) == wanted.tobytes()


@pytest.mark.parametrize("element_strides", [(1, 2), (1, 3), (4, 8)])
@pytest.mark.parametrize("coordinates", [(0, 0), (8, 31), (0, -5)])
def test_element_strides_thin_out_every_dimension_but_the_first(
    element_strides: Any, coordinates: Any
):
    array = arange(40, 16)
    map = make_map(array, (8, 13), element_strides=element_strides)
    box = tensor_maps.tiled(map, coordinates, 0)
    wanted = expected_tile(array, map, coordinates)
    assert box.bytes == 2 * 8 * -(-13 // element_strides[1]) == wanted.nbytes
    assert unswizzled(load(map, box, array), 0, box.bytes, 0) == wanted.tobytes()


@pytest.mark.parametrize(("shape", "box", "coordinates"), TILES)
def test_a_store_writes_what_is_inside_and_nothing_else(shape: Any, box: Any, coordinates: Any):
    array = arange(*shape)
    map = make_map(array, box)
    copied = tensor_maps.tiled(map, coordinates, 256)
    shared = np.random.default_rng(0).integers(0, 256, 1 << 15).astype(np.uint8)
    values = iter(shared[256:].view(np.uint16))
    wanted = array.copy()
    for position in itertools.product(*(range(n) for n in reversed(box))):
        value = next(values)
        index = tuple(at + n for at, n in zip(reversed(coordinates), position, strict=True))
        if all(0 <= at < size for at, size in zip(index, shape, strict=True)):
            wanted[index] = value
    memory = np.concatenate([np.full(32, 0xEE, np.uint8), array.reshape(-1).view(np.uint8)])
    tensor_maps.write_global(copied, memory, 32, occupied(copied, shared))
    assert (memory[:32] == 0xEE).all()
    assert memory[32:].tobytes() == wanted.tobytes()
    rows = [range(start, start + copied.global_row_bytes) for start in copied.global_rows]
    written = np.flatnonzero((wanted != array).ravel())
    assert sorted(itertools.chain(*rows))[::2] == (2 * written).tolist()


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        ("float16", np.uint16(0x7FFF)),
        ("bfloat16", np.uint16(0x7FFF)),
        ("float32", np.uint32(0x7FFFFFFF)),
    ],
)
def test_a_map_that_fills_with_nan_writes_the_canonical_one(dtype: str, bits: Any):
    array = arange(8, 32, dtype=bits.dtype)
    map = make_map(array, (16, 4), dtype=dtype, nan_fill=True)
    box = tensor_maps.tiled(map, (24, 6), 0)
    elements = load(map, box, array)[: box.bytes].view(bits.dtype).reshape(4, 16)
    assert (elements[:2, :8] == array[6:, 24:]).all()
    assert (elements[2:] == bits).all()
    assert (elements[:2, 8:] == bits).all()
    assert np.isnan(np.frombuffer(bits.tobytes(), tensor_maps.NUMPY_TYPES[dtype])).all()


# Images of N × H × W × C, windows of kernel × kernel pixels with padding and stride.
WINDOWS = [(1, (0, 0), 1), (3, (1, 1), 1), (3, (1, 1), 2), (3, (0, 2), 1), (5, (2, 2), 3)]


@pytest.mark.parametrize(("kernel", "padding", "stride"), WINDOWS)
@pytest.mark.parametrize("first", [0, 7, 70])
def test_im2col_collects_the_pixels_of_a_convolution(
    kernel: int, padding: tuple[int, int], stride: int, first: int
):
    images = arange(3, 6, 9, 16)
    low, high = padding
    padded = np.pad(images, ((0, 0), (low, high), (low, high), (0, 0)))
    tops = range(0, padded.shape[1] - kernel + 1, stride)
    lefts = range(0, padded.shape[2] - kernel + 1, stride)
    windows = [(n, y, x) for n in range(3) for y in tops for x in lefts]
    first = min(first, len(windows) - 1)
    map = make_map(
        images,
        (),
        element_strides=(1, stride, stride, 1),
        im2col={
            "lower": [-low] * 2,
            "upper": [high - kernel + 1] * 2,
            "channels_per_pixel": 8,
            "pixels_per_column": 32,
        },
    )
    n, y, x = windows[first]
    for dy, dx, channel in itertools.product(range(kernel), range(kernel), (0, 8, 12, -3)):
        box = tensor_maps.im2col(map, (channel, x - low, y - low, n), (dx, dy), 128)
        wanted = np.zeros((32, 8), np.uint16)
        for row, (n_, y_, x_) in enumerate(windows[first : first + 32]):
            for c in range(8):
                if 0 <= channel + c < 16:
                    wanted[row, c] = padded[n_, y_ + dy, x_ + dx, channel + c]
        assert box.bytes == wanted.nbytes
        assert unswizzled(load(map, box, images), 128, box.bytes, 0) == wanted.tobytes()


@pytest.mark.parametrize("swizzle", [0, 128])
@pytest.mark.parametrize("rows", [(0, 1, 2, 3), (19, 0, 7, 7), (-1, 4, 20, 5), (30, 31, 32, 33)])
@pytest.mark.parametrize("column", [0, 17, 32, -4])
def test_a_gather_takes_four_rows_in_their_order(swizzle: int, rows: Any, column: int):
    array = arange(20, 64)
    map = make_map(array, (64, 1), swizzle=swizzle)
    box = tensor_maps.gather4(map, column, rows, 0x200)
    wanted = np.zeros((4, 64), np.uint16)
    for n, row in enumerate(rows):
        for x in range(64):
            if 0 <= row < 20 and 0 <= column + x < 64:
                wanted[n, x] = array[row, column + x]
    assert box.bytes == 512
    assert unswizzled(load(map, box, array), 0x200, 512, swizzle) == wanted.tobytes()


def test_a_scatter_writes_four_rows():
    array = arange(20, 64)
    map = make_map(array, (64, 1), swizzle=128)
    shared = load(map, tensor_maps.gather4(map, 0, (4, 5, 6, 7), 0), array)
    memory = np.zeros(array.nbytes, np.uint8)
    box = tensor_maps.gather4(map, 0, (9, -1, 0, 19), 0)
    tensor_maps.write_global(box, memory, 0, occupied(box, shared))
    written = memory.view(np.uint16).reshape(array.shape)
    assert (written[9] == array[4]).all()
    assert (written[0] == array[6]).all()
    assert (written[19] == array[7]).all()
    assert np.count_nonzero(written) == 3 * 64


def test_what_is_not_modelled_is_refused_by_name():
    array = arange(16, 64)
    cases = [
        (make_map(array, (64, 8), interleave=16), "interleave of 16"),
        (make_map(array, (32, 8), swizzle=128), "64 bytes with a swizzle of 128"),
        (make_map(array, (64, 8), dtype="float8"), "float8"),
        (make_map(array, (48, 8), swizzle=96), "swizzle of 96"),
    ]
    for map, text in cases:
        with pytest.raises(UnsupportedError, match=text):
            load(map, tensor_maps.tiled(map, (0, 0), 0), array)
    with pytest.raises(UnsupportedError, match="uint16 that fills with NaN"):
        tensor_maps.fill_value(make_map(array, (64, 8), nan_fill=True))


def test_misuse_is_an_error_with_its_values():
    array = arange(16, 64)
    map = make_map(array, (64, 8))
    with pytest.raises(CheckError, match="0x1040 is 64 bytes past a 128-byte boundary"):
        tensor_maps.tiled(map, (0, 0), 0x1040)
    with pytest.raises(CheckError, match="rank 3 uses a tensor map of rank 2"):
        tensor_maps.tiled(map, (0, 0, 0), 0)
    with pytest.raises(CheckError, match="box is one row"):
        tensor_maps.gather4(map, 0, (0, 1, 2, 3), 0)
    with pytest.raises(CheckError, match=r"made for \.tile"):
        tensor_maps.im2col(map, (0, 0), (), 0)
    box = tensor_maps.tiled(map, (0, 8), 0)
    memory = array.view(np.uint8).reshape(-1)
    with pytest.raises(CheckError, match="bytes 1024 to 2047 of an allocation of 2000 bytes"):
        tensor_maps.read_global(map, box, memory[:2000], 0)


def reduced(map: TensorMap, box: Any, old: np.ndarray, shared: np.ndarray, operation: str) -> None:
    memory = old.reshape(-1).view(np.uint8)
    part = occupied(box, shared)
    tensor_maps.reduce_global(map, box, memory, 0, part, operation=operation)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_floats_are_added_and_rounded_to_even(dtype: str):
    numpy_dtype = tensor_maps.NUMPY_TYPES[dtype]
    random = np.random.default_rng(1)
    old = random.normal(size=(8, 8)).astype(numpy_dtype)
    new = random.normal(size=(8, 8)).astype(numpy_dtype)
    one_and_half_step = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}[dtype]
    old[0, :4] = [1, 1 + 2 * one_and_half_step, np.inf, np.nan]
    new[0, :4] = [one_and_half_step, one_and_half_step, -np.inf, 1]
    map, result = make_map(old, (8, 8), dtype=dtype), old.copy()
    box = tensor_maps.tiled(map, (0, 0), 0)
    reduced(map, box, result, new.view(np.uint8).reshape(-1), "add")
    with np.errstate(invalid="ignore"):
        wanted = (old.astype(np.float64) + new.astype(np.float64)).astype(numpy_dtype)
    np.testing.assert_array_equal(result.astype(np.float64), wanted.astype(np.float64))
    assert result[0, 0] == 1
    assert result[0, 1] == 1 + 4 * one_and_half_step
    assert np.isnan(result[0, 2:4]).all()


@pytest.mark.parametrize("dtype", ["uint32", "int32", "uint64", "int64"])
@pytest.mark.parametrize(
    ("operation", "wanted"),
    [
        ("add", np.add),
        ("min", np.minimum),
        ("max", np.maximum),
        ("and", np.bitwise_and),
        ("or", np.bitwise_or),
        ("xor", np.bitwise_xor),
    ],
)
def test_integers_are_reduced(operation: str, wanted: np.ufunc, dtype: str) -> None:
    old, new = np.random.default_rng(1).integers(-(2**63), 2**63, (2, 8, 16)).astype(dtype)
    map, result = make_map(old, (16, 8)), old.copy()
    reduced(map, tensor_maps.tiled(map, (0, 0), 0), result, new.view(np.uint8).ravel(), operation)
    np.testing.assert_array_equal(result, wanted(old, new))


def test_sums_of_f32_alone_flush_subnormals() -> None:
    for dtype, tiny in (("float32", 2.0**-130), ("float16", 2.0**-20), ("float64", 2.0**-1030)):
        old = np.array([tiny, -tiny, 1], dtype)
        found = tensor_maps.combined("add", old, old)
        assert found.tolist() == [0, 0, 2] if dtype == "float32" else (found == old * 2).all()
        assert np.signbit(found).tolist() == [False, True, False]


def test_a_reduction_undoes_the_swizzle_and_clips():
    old = np.zeros((10, 48), np.int32)
    map = make_map(old, (32, 8), swizzle=128)
    source = arange(8, 32, dtype=np.int32)
    packed = make_map(source, (32, 8), swizzle=128)
    shared = load(packed, tensor_maps.tiled(packed, (0, 0), 0x480), source)
    box = tensor_maps.tiled(map, (40, -2), 0x480)
    for _ in range(2):
        reduced(map, box, old, shared, "add")
    assert (old[:6, 40:] == 2 * source[2:, :8]).all()
    assert np.count_nonzero(old) == 6 * 8


@pytest.mark.parametrize(
    ("dtype", "operation"),
    [("uint8", "add"), ("float32", "max"), ("uint64", "inc"), ("float16", "and")],
)
def test_what_has_no_reduction_is_refused_by_name(dtype: str, operation: str):
    array = np.zeros((8, 16), dtype)
    map = make_map(array, (16, 8))
    box = tensor_maps.tiled(map, (0, 0), 0)
    with pytest.raises(UnsupportedError, match=rf"{dtype} by \.{operation}"):
        reduced(map, box, array, np.zeros(1024, np.uint8), operation)


def test_a_reduction_of_elements_that_overlap_is_refused():
    map = TensorMap(0, 0, "uint32", (8, 4), (0,), (8, 4), (1, 1))
    box = tensor_maps.tiled(map, (0, 0), 0)
    with pytest.raises(UnsupportedError, match="overlap"):
        reduced(map, box, np.zeros(8, "u4"), np.zeros(128, np.uint8), "add")
