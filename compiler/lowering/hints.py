"""What to do about errors of JAX and Mosaic that do not say so themselves.

Only where the message leaves one cause. JAX has no codes for its errors, so they are known by their
words; `tests/wrong/` has a kernel for each, which shows that these are the words.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType

from pallasc.compiler.lowering.assertions import failed_line
from pallasc.specs.spelling import nearest

_AXIS = re.compile(r"unbound axis name: (?P<axis>\w+)")
_RENAMED = {"out_shape": "out_type", "scratch_shapes": "scratch_types"}
_ARGUMENT = re.compile(r"unexpected keyword argument '(?P<name>\w+)'")
_NO_RULE = "assert rule is not None"
_NO_CALL_HINT = (
    "JAX 0.11 took Mosaic GPU from pl.pallas_call: use plgpu.kernel or pl.kernel, and "
    "plgpu.emit_pipeline for blocks."
)
_SWIZZLES = (32, 64, 128)
"""Bytes that a swizzle can have."""


def hint(error: BaseException, mesh: object) -> str | None:
    """Return what to do about an error of JAX that does not say so itself, None for others."""
    if isinstance(error, AssertionError):
        line = failed_line(error)
        return _NO_CALL_HINT if line == _NO_RULE else _of_text(line)
    if isinstance(error, TypeError) and (argument := _ARGUMENT.search(str(error))):
        name = _RENAMED.get(argument["name"])
        return f"This version of JAX calls it {name}." if name else None
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        near = nearest(error.name or "", dir(error.obj))
        return f"Did you mean {near!r}?" if near else None
    if isinstance(error, NameError) and (unbound := _AXIS.search(str(error))):
        return _of_axis(unbound["axis"], mesh)
    return _of_text(str(error))


def _of_axis(name: str, mesh: object) -> str:
    devices = "" if mesh else f"; devices are declared in the spec: mesh: {{{name}: 4}}"
    return f"The axes of a kernel are named in grid_names, cluster_names and thread_name{devices}."


def _of_text(text: str) -> str | None:
    for pattern, known in _KNOWN.items():
        if (match := re.search(pattern, text)) is not None:
            return known if isinstance(known, str) else known(match)
    return None


def _swizzle(match: re.Match[str]) -> str:
    """Return what fits a swizzle of some bytes to rows of other ones."""
    swizzle, elements = int(match["swizzle"]), int(match["elements"])
    shape = _sizes(match["shape"])
    row_bytes = shape[-1] * swizzle // elements
    tiled = f"TilingTransform((8, {elements}))"
    is_tiled = len(shape) >= 4
    if row_bytes in _SWIZZLES and row_bytes < swizzle:
        is_wider = is_tiled and shape[-1] * shape[-3] % elements == 0
        return (
            f"Rows of {shape[-1]} elements are {row_bytes} bytes: "
            f"use SwizzleTransform({row_bytes}){f', or {tiled}' if is_wider else ''}."
        )
    if not is_tiled:
        return f"Tile it first: transforms=({tiled}, SwizzleTransform({swizzle}))."
    return f"A row of the tiles has to be {swizzle} bytes: use {tiled}."


def _tiling(match: re.Match[str]) -> str | None:
    pairs = zip(_sizes(match["dims"]), _sizes(match["tiling"]), strict=False)
    for size, tile in pairs:
        if tile and size % tile:
            padded = -(-size // tile) * tile
            return (
                f"{size} is not a multiple of the tile, {tile}: choose tiles that divide the "
                f"shape, or pad it to {padded}."
            )
    return None


def _threads(match: re.Match[str]) -> str | None:
    number = int(match["number"])
    if number % 128 == 0:  # JAX 0.10 says so of 4-bit elements, too
        return None
    padded = -(-number // 128) * 128
    return f"The 128 threads of a warpgroup share the elements evenly: pad them to {padded}."


def _sizes(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _primitive(match: re.Match[str]) -> str:
    name = match["primitive"]
    if name == "dot_general":
        return (
            "Multiply with plgpu.wgmma (Hopper) or plgpu.tcgen05_mma (Blackwell), from shared "
            "memory; or outside of the kernel."
        )
    return f"Mosaic GPU has no {name} in kernels: do it before or after the kernel."


_KNOWN: dict[str, str | Callable[[re.Match[str]], str | None]] = {
    r"Swizzle (?P<swizzle>\d+) requires the trailing dimension to be of size (?P<elements>\d+), "
    r"but got shape: \((?P<shape>[\d, ]+)\)": _swizzle,
    r"d % t == 0 .*tiled_dims = \((?P<dims>[\d, ]+)\), "
    r"self\.tiling = \((?P<tiling>[\d, ]+)\)": _tiling,
    r"Only f16 WGMMA supports transposes": (
        "Operands of other widths than 16 bits must have K contiguous: A as [M, K], B as [N, K] "
        "with plgpu.transpose_ref(b_smem, (1, 0)). Or convert them to bf16."
    ),
    r"When WGMMA [lr]hs is passed in as a ref, it must be transformed": (
        "For f16 and bf16: plgpu.SMEM(shape, dtype, transforms=(plgpu.TilingTransform((8, 64)), "
        "plgpu.SwizzleTransform(128))). wgmma does not multiply 32-bit integers."
    ),
    r"'mosaic_gpu\.wgmma' op operand #\d must be 2D memref of A type supported": (
        "wgmma multiplies f16, bf16, f32 (as tf32), 8-bit integers and 8-bit floats: convert the "
        "operands."
    ),
    r"Incompatible FragmentedArray layouts": (
        "Both sides need one layout: cast them alike with plgpu.layout_cast, or use "
        "plgpu.LoweringSemantics.Warpgroup, which chooses layouts."
    ),
    r"Failed to infer a possible set of layouts": (
        "A value in registers needs a multiple of 128 elements, and both sides of an operation "
        "one layout: leave out layout_casts that are not needed, or cast both sides alike."
    ),
    r"must have a number of elements that is a multiple of 128 \(got (?P<number>\d+)\)": _threads,
    r"(?i)async_?\s?cop\w+ require\w* all GMEM strides except the last one": (
        "TMA reads rows that begin at multiples of 16 bytes: pad the rows, or read without a "
        "copy, as in x_gmem[...]."
    ),
    r"number of bits copied along the last dimension to be divisible by 128": (
        "TMA copies multiples of 16 bytes: widen the window, or read without a copy, as in "
        "x_gmem[...]."
    ),
    r"Invalid dtype for `swap`\. Ref dtype: (?P<dtype>\w+)\.": (
        lambda match: f"Convert the value first: value.astype(jnp.{match['dtype']})."
    ),
    r"Unimplemented primitive in Pallas Mosaic GPU lowering: (?P<primitive>\w+)": _primitive,
}
"""By a regular expression for the message: the hint, or what makes it of the match."""
