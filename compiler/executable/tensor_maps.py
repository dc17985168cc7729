"""Turn the descriptors that kernels ask for into driver-ready tensor maps, and check the rules."""

from __future__ import annotations

from typing import Any

from pallasc.compiler.executable.host_stub import TiledMap
from pallasc.errors import CompileError
from pallasc.specs.artifacts.plan import Im2col, TensorMap
from pallasc.specs.artifacts.tensor_maps import ELEMENT_BYTES, broken_rule

# `_tma_dma_type` in jax/experimental/mosaic/gpu/launch_context.py: number -> (driver type, bits).
_ELEMENT_TYPES = {
    0: ("uint8", 4), 1: ("uint8", 8), 2: ("uint16", 16), 3: ("uint32", 32), 4: ("uint64", 64),
    5: ("float16", 16), 6: ("float32", 32), 7: ("bfloat16", 16), 8: ("uint8", 2),
    9: ("int32", 32), 10: ("int64", 64),
}  # fmt: skip


def from_mosaic(recorded: TiledMap, *, buffer: int, offset: int) -> TensorMap:
    """Return the tensor map that Mosaic's runtime would encode for `recorded`.

    Sub-byte types are packed into bytes along the minor dimension, as `mosaic_gpu_init_tma_desc`
    does.

    Raises:
        CompileError: an unknown element type or a broken rule.
    """
    if recorded.element_type not in _ELEMENT_TYPES:
        raise CompileError(f"tensor map with unknown element type {recorded.element_type}")
    dtype, bits = _ELEMENT_TYPES[recorded.element_type]
    packing = max(1, 8 // bits)
    sizes, strides, window = list(recorded.sizes), list(recorded.strides), list(recorded.window)
    if not len(sizes) == len(strides) or len(window) not in (0, len(sizes)):
        raise CompileError(f"tensor map of sizes {sizes} with strides {strides}, window {window}")
    if strides[-1:] != [1]:
        raise CompileError(f"tensor map whose minor stride is {strides[-1:]} instead of 1")
    packed = [sizes[-1], *strides[:-1], *window[-1:]]
    if any(value % packing for value in packed):
        raise CompileError(f"tensor map of {bits}-bit elements that does not fill bytes: {packed}")
    sizes[-1] //= packing
    strides = [stride // packing for stride in strides[:-1]]
    if window:
        window[-1] //= packing
    result = TensorMap(
        buffer=buffer,
        offset=offset,
        dtype=dtype,
        dims=tuple(reversed(sizes)),
        strides=tuple(stride * ELEMENT_BYTES[dtype] for stride in reversed(strides)),
        box=tuple(reversed(window)),
        element_strides=_element_strides(recorded),
        swizzle=0 if recorded.swizzle_bytes == 16 else recorded.swizzle_bytes,
        im2col=_im2col(recorded),
        peers=recorded.peers,
    )
    check_tensor_map(result)
    return result


def _element_strides(recorded: TiledMap) -> tuple[int, ...]:
    if recorded.im2col is None:
        return (1,) * len(recorded.sizes)
    return (1, *reversed(recorded.im2col[4]), 1)


def _im2col(recorded: TiledMap) -> Im2col | None:
    if recorded.im2col is None:
        return None
    lower, upper, channels, rows, _ = recorded.im2col
    return {
        "lower": list(reversed(lower)),
        "upper": list(reversed(upper)),
        "channels_per_pixel": channels,
        "pixels_per_column": rows,
    }


_XLA_DTYPES = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}
_XLA_SWIZZLES = (0, 32, 64, 128)
_XLA_PROMOTIONS = (0, 64, 128, 256)
_XLA_INTERLEAVES = (0, 16, 32)


def from_xla(descriptor: Any, *, buffer: int, offset: int) -> TensorMap:
    """Return the tensor map for a `TmaDescriptorProto`, whose dimensions are minor first."""
    if descriptor.element_size not in _XLA_DTYPES:
        raise CompileError(f"tensor map with elements of {descriptor.element_size} bytes")
    for name, count in (("swizzle", 4), ("interleave", 3), ("l2_promotion", 4)):
        if not 0 <= getattr(descriptor, name) < count:
            raise CompileError(f"tensor map with {name} {getattr(descriptor, name)}")
    result = TensorMap(
        buffer=buffer,
        offset=offset,
        dtype=_XLA_DTYPES[descriptor.element_size],
        dims=tuple(descriptor.global_dims),
        strides=tuple(descriptor.global_strides),
        box=tuple(descriptor.box_dims),
        element_strides=tuple(descriptor.element_strides),
        swizzle=_XLA_SWIZZLES[descriptor.swizzle],
        interleave=_XLA_INTERLEAVES[descriptor.interleave],
        l2_promotion=_XLA_PROMOTIONS[descriptor.l2_promotion],
        nan_fill=bool(descriptor.float_oob_fill),
    )
    check_tensor_map(result)
    return result


def check_tensor_map(tensor_map: TensorMap) -> None:
    """Check the driver's rules.

    Raises:
        CompileError: one is broken; the message names it with the value.
    """
    broken = broken_rule(tensor_map)
    if broken is not None:
        raise CompileError(f"the driver would refuse a tensor map of this kernel: {broken}")
