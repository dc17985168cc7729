"""Cases: the rules of tensor maps."""

from __future__ import annotations

import ctypes
from typing import Any

from cases import Answers, case
from ground import Ground, value_of

_KIB = 1024

# Two dimensions of 64 elements of float16; what a case says takes the place of these.
_USUAL: dict[str, Any] = {
    "dtype": 6, "address": 0, "dims": (64, 64), "strides": (128,), "box": (64, 64),
    "steps": (1, 1), "interleave": 0, "swizzle": 3, "promotion": 0, "fill": 0, "shift": 0,
}  # fmt: skip

_RANK_1 = {"dims": (64,), "strides": (), "box": (64,), "steps": (1,)}
_RANK_3 = {"dims": (64, 8, 8), "strides": (128, 1024), "box": (64, 8, 8), "steps": (1, 1, 1)}

_RULES: dict[str, dict[str, Any]] = {
    "usual": {},
    "map at a multiple of 64, not of 128": {"shift": 64},
    "map at a multiple of 32": {"shift": 32},
    "map at a multiple of 16": {"shift": 16},
    "address + 16": {"address": 16},
    "address + 8": {"address": 8},
    "rank 1": _RANK_1,
    "rank 0": {"dims": (), "strides": (), "box": (), "steps": ()},
    "rank 6": {"dims": (8,) * 6, "strides": (16,) * 5, "box": (8,) * 6, "steps": (1,) * 6},
    "a dimension of 0": {"dims": (64, 0)},
    "a dimension of 2^31": {"dims": (64, 2**31)},
    "a dimension of 2^32 - 1": {"dims": (64, 2**32 - 1)},
    "a dimension of 2^32": {"dims": (64, 2**32)},
    "a dimension of 2^32 + 1": {"dims": (64, 2**32 + 1)},
    "a stride of 136": {"strides": (136,)},
    "a stride of 0": {"strides": (0,)},
    "a stride shorter than a row": {"strides": (64,)},
    "a stride of 2^40 - 16": {"strides": (2**40 - 16,)},
    "a stride of 2^40": {"strides": (2**40,)},
    "a box of 0": {"box": (64, 0)},
    "a box of 256": {"dims": (64, 512), "box": (64, 256)},
    "a box of 257": {"dims": (64, 512), "box": (64, 257)},
    "a box larger than the array": {"box": (64, 128)},
    "an inner box of 8 bytes": {"box": (4, 64), "swizzle": 0},
    "an inner box of 24 bytes": {"box": (12, 64), "swizzle": 0},
    "an inner box longer than the swizzle": {"box": (64, 64), "swizzle": 2},
    "a box of 512 KiB": {"dims": (512, 512), "strides": (1024,), "box": (256, 256), "swizzle": 0},
    "element strides of 0 inside": {"steps": (0, 1)},
    "element strides of 0 outside": {"steps": (1, 0)},
    "element strides of 2": {"steps": (1, 2)},
    "element strides of 8": {"steps": (1, 8)},
    "element strides of 9": {"steps": (1, 9)},
    "interleave of 16 bytes, rank 2": {"interleave": 1, "swizzle": 0},
    "interleave of 16 bytes, rank 3": {**_RANK_3, "interleave": 1, "swizzle": 0},
    "interleave of 32 bytes, swizzle of 32": {**_RANK_3, "interleave": 2, "swizzle": 1},
    "interleave of 32 bytes, swizzle of 64": {**_RANK_3, "interleave": 2, "swizzle": 2},
    "interleave of 32 bytes, address + 16": {
        **_RANK_3, "interleave": 2, "swizzle": 1, "address": 16},
    "swizzle 4, of CUDA 12.8": {"swizzle": 4},
    "swizzle 7": {"swizzle": 7},
    "dtype 13, packed 4 bits": {
        "dtype": 13, "dims": (128, 64), "strides": (64,), "box": (128, 64)},
    "dtype 99": {"dtype": 99},
    "promotion 4": {"promotion": 4},
    "nan for float16": {"fill": 1},
    "nan for int32": {"dtype": 3, "box": (32, 64), "strides": (256,), "fill": 1},
    "past the end of the memory": {"dims": (64, 2**24)},
}  # fmt: skip


class _Map:
    """128 bytes at a multiple of 128, with room after them."""

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(512)
        self.start = -(-ctypes.addressof(self._memory) // 128) * 128


def _function(ground: Ground, name: str) -> Any:
    address, _ = value_of(ground.driver.cuGetProcAddress(name.encode(), 12000, 0))
    return ctypes.CFUNCTYPE(ctypes.c_int)(int(address))


def _encode(ground: Ground, base: int, own: _Map | None = None, **changes: Any) -> int:
    """Call `cuTensorMapEncodeTiled`, into a map of its own or a given one; return the code."""
    target = own or _Map()
    m = {**_USUAL, **changes}
    rank = len(m["dims"])
    dims, strides = ((ctypes.c_uint64 * 8)(*m[name]) for name in ("dims", "strides"))
    box, steps = ((ctypes.c_uint32 * 8)(*m[name]) for name in ("box", "steps"))
    modes = [ctypes.c_uint32(m[n]) for n in ("interleave", "swizzle", "promotion", "fill")]
    code: int = _function(ground, "cuTensorMapEncodeTiled")(
        ctypes.c_void_p(target.start + m["shift"]), ctypes.c_uint32(m["dtype"]),
        ctypes.c_uint32(rank), ctypes.c_void_p(base + m["address"]), dims, strides, box, steps,
        *modes,
    )  # fmt: skip
    return code


@case("rules of tensor maps")
def _rules(ground: Ground) -> Answers:
    base = ground.memory()
    for what, changes in _RULES.items():
        yield what, _encode(ground, base, **changes)
    yield "address 0", _encode(ground, 0)
    host = _Map()
    yield "address of the host", _encode(ground, host.start)
    yield "address of nothing", _encode(ground, 1 << 46)


@case("tensor maps of images")
def _images(ground: Ground) -> Answers:
    base = ground.memory(1 << 20)
    usual = {"lower": (-1, -1), "upper": (-1, -1), "channels": 64, "pixels": 64}
    changed: dict[str, dict[str, Any]] = {
        "usual": {},
        "257 channels": {"channels": 257},
        "1024 pixels": {"pixels": 1024},
        "1025 pixels": {"pixels": 1025},
        "corners of -128": {"lower": (-128, -128)},
        "corners of -129": {"lower": (-129, -1)},
        "corners beyond each other": {"lower": (100, 100), "upper": (-100, -100)},
    }
    for what, changes in changed.items():
        yield what, _encode_image(ground, base, **{**usual, **changes})


def _encode_image(ground: Ground, base: int, **m: Any) -> int:
    """Call `cuTensorMapEncodeIm2col` for 4 images of 32 by 32 with 64 channels of float16."""
    own = _Map()
    dims = (ctypes.c_uint64 * 4)(64, 32, 32, 4)
    strides = (ctypes.c_uint64 * 3)(128, 4096, 128 * _KIB)
    lower, upper = ((ctypes.c_int32 * 2)(*m[name]) for name in ("lower", "upper"))
    steps = (ctypes.c_uint32 * 4)(1, 1, 1, 1)
    numbers = [ctypes.c_uint32(n) for n in (m["channels"], m["pixels"])]
    modes = [ctypes.c_uint32(n) for n in (0, 3, 0, 0)]
    code: int = _function(ground, "cuTensorMapEncodeIm2col")(
        ctypes.c_void_p(own.start), ctypes.c_uint32(6), ctypes.c_uint32(4),
        ctypes.c_void_p(base), dims, strides, lower, upper, *numbers, steps, *modes,
    )  # fmt: skip
    return code


@case("other addresses in tensor maps")
def _replaced(ground: Ground) -> Answers:
    base, own = ground.memory(), _Map()
    replace = _function(ground, "cuTensorMapReplaceAddress")

    def answer(where: int, address: int) -> int:
        code: int = replace(ctypes.c_void_p(where), ctypes.c_void_p(address))
        return code

    yield "memory of zeros", answer(own.start, base)
    yield "encoded", _encode(ground, base, own)
    yield "address + 4096", answer(own.start, base + 4096)
    yield "map at a multiple of 32", answer(own.start + 32, base)
    yield "address + 8", answer(own.start, base + 8)


@case("tensor maps without a context", starts=False)
def _without(ground: Ground) -> Answers:
    ground.driver.cuInit(0)
    yield "no context", _encode(ground, 1 << 20)
