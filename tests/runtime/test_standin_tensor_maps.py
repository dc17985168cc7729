"""Tensor maps on the stand-in: each rule of the driver, and maps that can be read back."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from rig import Rig, code_of, cubin, pointer
from standin import Launch, Standin

UINT8, UINT16, FLOAT16, FLOAT32, U4_8, U4_16, U6_16 = 0, 1, 6, 7, 13, 14, 15

TILED: dict[str, Any] = {
    "type": FLOAT16,
    "address": 0,
    "dims": (256, 128, 64),
    "strides": (512, 65536),
    "box": (64, 8, 2),
    "element_strides": (1, 1, 1),
    "interleave": 0,
    "swizzle": 3,
    "l2": 2,
    "fill": 0,
    "misalign": 0,
}

IM2COL: dict[str, Any] = {
    **{name: value for name, value in TILED.items() if name != "box"},
    "lower": (-1,),
    "upper": (1,),
    "channels": 64,
    "pixels": 128,
}


class Encoder:
    """Calls the encoding functions through their addresses, as the runtime does."""

    def __init__(self, rig: Rig) -> None:
        driver = rig.driver
        self._block = ctypes.create_string_buffer(4 * 128)
        self.address = rig.allocate(1 << 23)
        self.place = -(-ctypes.addressof(self._block) // 128) * 128
        self._functions = {}
        for name in ("cuTensorMapEncodeTiled", "cuTensorMapEncodeIm2col"):
            _, address, _ = driver.cuGetProcAddress(name.encode(), 12000, 0)
            self._functions[name] = ctypes.CFUNCTYPE(ctypes.c_int)(address)

    def bytes(self) -> bytes:
        """Return the encoded map."""
        return ctypes.string_at(self.place, 128)

    def _head(self, a: dict[str, Any]) -> list[Any]:
        rank = a["rank"] if "rank" in a else len(a["dims"])
        address = ctypes.c_uint64(a["address"] or self.address)
        place = ctypes.c_void_p(self.place + a["misalign"])
        return [place, a["type"], rank, address, _u64(a["dims"]), _u64(a["strides"])]

    def _tail(self, a: dict[str, Any]) -> list[Any]:
        return [a["interleave"], a["swizzle"], a["l2"], a["fill"]]

    def tiled(self, **changes: Any) -> int:
        """Encode `TILED` with changes and return the result code."""
        a = {**TILED, **changes}
        function = self._functions["cuTensorMapEncodeTiled"]
        strides = _u32(a["element_strides"])
        return int(function(*self._head(a), _u32(a["box"]), strides, *self._tail(a)))

    def im2col(self, **changes: Any) -> int:
        """Encode `IM2COL` with changes and return the result code."""
        a = {**IM2COL, **changes}
        function = self._functions["cuTensorMapEncodeIm2col"]
        corners = [(ctypes.c_int * 5)(*a["lower"]), (ctypes.c_int * 5)(*a["upper"])]
        middle = [*corners, a["channels"], a["pixels"], _u32(a["element_strides"])]
        return int(function(*self._head(a), *middle, *self._tail(a)))


def _u64(values: Any) -> Any:
    return None if values is None else (ctypes.c_uint64 * 6)(*values)


def _u32(values: Any) -> Any:
    return None if values is None else (ctypes.c_uint32 * 6)(*values)


@pytest.fixture
def encoder(rig: Rig) -> Iterator[Encoder]:
    """Give an encoder with 8 MB of device memory to describe."""
    return Encoder(rig)


def test_a_map_can_be_read_back(standin: Standin, encoder: Encoder) -> None:
    assert encoder.tiled(element_strides=(1, 2, 3), fill=1) == 0
    found = standin.decode(encoder.bytes())
    assert found.address == encoder.address
    assert (found.dtype, found.dims, found.strides) == ("float16", (256, 128, 64), (512, 65536))
    assert (found.box, found.element_strides) == ((64, 8, 2), (1, 2, 3))
    assert (found.swizzle, found.interleave, found.l2_promotion) == (128, 0, 128)
    assert found.nan_fill
    assert found.im2col is None


def test_an_im2col_map_can_be_read_back(standin: Standin, encoder: Encoder) -> None:
    assert encoder.im2col() == 0
    found = standin.decode(encoder.bytes())
    assert found.im2col == {"lower": (-1,), "upper": (1,), "channels": 64, "pixels": 128}
    assert found.box == ()


# What to change in a good map, each of which breaks one rule.
BROKEN: dict[str, dict[str, Any]] = {
    "map not 64-byte aligned": {"misalign": 32},
    "rank 0": {"rank": 0},
    "rank 6": {"rank": 6},
    "rank 2 interleaved": {"rank": 2, "interleave": 1, "swizzle": 0},
    "address not 16-byte aligned": {"address": 0x1008},
    "address not 32-byte aligned, interleaved": {
        "address": 0x1010,
        "interleave": 2,
        "swizzle": 1,
    },
    "dimension 0": {"dims": (256, 0, 64)},
    "dimension above 2^32": {"dims": (256, (1 << 32) + 1, 64)},
    "stride not a multiple of 16": {"strides": (520, 65536)},
    "stride not a multiple of 32, interleaved": {
        "strides": (528, 65536),
        "interleave": 2,
        "swizzle": 1,
    },
    "stride of 2^40": {"strides": (512, 1 << 40)},
    "box 0": {"box": (64, 0, 2)},
    "box above 256": {"box": (64, 257, 2)},
    "inner box not a multiple of 16 bytes": {"box": (60, 8, 2)},
    "inner box above a swizzle of 128": {"box": (72, 8, 2)},
    "inner box above a swizzle of 64": {"swizzle": 2},
    "inner box above a swizzle of 32": {"swizzle": 1},
    "element stride 0": {"element_strides": (1, 0, 1)},
    "element stride 9": {"element_strides": (1, 9, 1)},
    "interleave 32 with another swizzle": {"interleave": 2, "swizzle": 3},
    "unknown type": {"type": 16},
    "unknown interleave": {"interleave": 3},
    "unknown swizzle": {"swizzle": 7},
    "unknown promotion": {"l2": 4},
    "unknown fill": {"fill": 2},
    "NaN fill of integers": {"type": UINT16, "fill": 1},
    "NaN fill of packed numbers": {"type": U4_8, "box": (128, 8, 2), "fill": 1},
    "packed, odd dimension": {"type": U4_8, "dims": (255, 128, 64), "box": (128, 8, 2)},
    "padded, dimension no multiple of 128": {
        "type": U4_16,
        "dims": (200, 128, 64),
        "box": (128, 8, 2),
    },
    "padded, other box": {"type": U4_16, "box": (64, 8, 2)},
    "padded, stride": {"type": U6_16, "strides": (528, 65536), "box": (128, 8, 2)},
    "padded, address": {"type": U4_16, "address": 0x1010, "box": (128, 8, 2)},
    "padded, swizzle": {"type": U6_16, "swizzle": 2, "box": (128, 8, 2)},
    "padded, interleaved": {"type": U6_16, "interleave": 1, "box": (128, 8, 2)},
    "no dimensions": {"dims": None, "rank": 3},
    "no strides": {"strides": None},
    "no box": {"box": None},
    "no element strides": {"element_strides": None},
}

KEPT: dict[str, dict[str, Any]] = {
    "rank 1 without strides": {"dims": (256,), "strides": None, "box": (64,)},
    "rank 5": {
        "dims": (64, 2, 2, 2, 2),
        "strides": (128, 256, 512, 1024),
        "box": (64, 1, 1, 1, 1),
        "element_strides": (1,) * 5,
    },
    "box of 256": {"box": (64, 256, 1)},
    "dimension of 2^32": {"dims": (256, 128, 1 << 32)},
    "a stride below 2^40": {"strides": (512, (1 << 40) - 16)},
    "inner element stride ignored": {"element_strides": (0, 1, 1)},
    "interleaved by 32": {"interleave": 2, "swizzle": 1},
    "no swizzle": {"swizzle": 0, "box": (256, 8, 2)},
    "8-bit numbers": {"type": UINT8, "box": (128, 8, 2)},
    "32-bit numbers": {"type": FLOAT32, "box": (32, 8, 2)},
    "packed numbers": {"type": U4_8, "box": (128, 8, 2)},
    "padded numbers": {"type": U6_16, "box": (128, 8, 2)},
}


@pytest.mark.parametrize("changes", BROKEN.values(), ids=BROKEN)
def test_a_broken_rule_is_an_invalid_value(encoder: Encoder, changes: dict[str, Any]) -> None:
    assert encoder.tiled(**changes) == 1


@pytest.mark.parametrize("changes", KEPT.values(), ids=KEPT)
def test_a_map_within_the_rules_is_encoded(encoder: Encoder, changes: dict[str, Any]) -> None:
    assert encoder.tiled(**changes) == 0


RANK_4 = {
    "dims": (256, 64, 64, 2),
    "strides": (512, 32768, 1 << 21),
    "element_strides": (1,) * 4,
}
RANK_5 = {
    "dims": (256, 64, 64, 64, 2),
    "strides": (512, 32768, 1 << 21, 1 << 27),
    "element_strides": (1,) * 5,
}


@pytest.mark.parametrize(
    "changes",
    [
        {"rank": 2},
        {"lower": (-32769,)},
        {"upper": (32768,)},
        {"lower": (129,), "upper": (0,)},
        {"channels": 0},
        {"channels": 257, "swizzle": 0},
        {"channels": 72},
        {"pixels": 0},
        {"pixels": 1025},
        {**RANK_4, "lower": (-129, 0), "upper": (0, 0)},
        {**RANK_4, "lower": (0, 0), "upper": (0, 128)},
        {**RANK_5, "lower": (-17, 0, 0), "upper": (0, 0, 0)},
        {**RANK_5, "lower": (0, 0, 0), "upper": (0, 0, 16)},
        {"type": U4_16, "channels": 64},
    ],
)
def test_a_broken_rule_of_im2col_is_an_invalid_value(
    encoder: Encoder, changes: dict[str, Any]
) -> None:
    assert encoder.im2col(**changes) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"pixels": 1024},
        {"channels": 256, "swizzle": 0},
        {**RANK_4, "lower": (-128, 0), "upper": (-100, 127)},
        {**RANK_5, "lower": (-16, 0, 0), "upper": (0, 0, 15)},
    ],
)
def test_an_im2col_map_within_the_rules_is_encoded(
    encoder: Encoder, changes: dict[str, Any]
) -> None:
    assert encoder.im2col(**changes) == 0


def test_a_device_before_hopper_has_no_tensor_maps(standin: Standin) -> None:
    standin.devices("8.9")
    rig = Rig(standin, cubin("sm_80")).start()
    assert Encoder(rig).tiled() == 801


def test_a_map_is_encoded_with_a_context_only(rig: Rig) -> None:
    encoder = Encoder(rig)
    assert code_of(rig.driver.cuCtxSetCurrent(0)) == 0
    assert encoder.tiled() == 201


def test_the_address_of_a_map_can_be_replaced(standin: Standin, rig: Rig) -> None:
    encoder = Encoder(rig)
    assert encoder.tiled() == 0
    replace = ctypes.CDLL(standin.library._name).cuTensorMapReplaceAddress
    place, address = ctypes.c_void_p(encoder.place), ctypes.c_uint64(encoder.address + 4096)
    assert replace(place, address) == 0
    assert standin.decode(encoder.bytes()).address == encoder.address + 4096
    assert replace(place, ctypes.c_uint64(8)) == 1


def test_maps_in_a_parameter_are_read_back_and_show_the_memory(
    standin: Standin, rig: Rig, encoder: Encoder
) -> None:
    seen = []

    @standin.kernel("maps")
    def fill(launch: Launch) -> None:
        [(first, source), (second, _)] = launch.maps(0)
        seen.append((first, second))
        source.array()[1, 2, 3] = 5

    assert encoder.tiled() == 0
    assert rig.launch("maps", [encoder.bytes() * 2, pointer(encoder.address)]) == 0
    assert rig.synchronize() == 0
    standin.check()
    assert seen == [(0, 128)]
    found = np.empty(1, np.float16)
    at = encoder.address + 65536 + 2 * 512 + 3 * 2
    assert code_of(rig.driver.cuMemcpyDtoH(found.ctypes.data, at, 2)) == 0
    assert found[0] == 5


def test_a_map_over_more_than_the_memory_breaks_the_context(rig: Rig, encoder: Encoder) -> None:
    assert encoder.tiled(dims=(256, 128, 129)) == 0
    assert rig.launch("maps", [encoder.bytes() + bytes(128), pointer(encoder.address)]) == 0
    assert rig.synchronize() == 700
