"""Decodes a tcgen05.mma: its mnemonic, its descriptors, and the elements of its matrices.

Elements are decoded to float64, which holds all of them exactly. They come in chunks of 16 bytes.
`.kind::f8f6f4` and `.kind::mxf8f6f4` keep 16 elements in each chunk, regardless of their size:
6-bit elements fill the first 12 bytes, 4-bit elements the first 8 (PTX ISA 9.0, 9.7.16.10.4). The
first element is in the lowest bits.

An instruction descriptor has 32 bits (PTX ISA 9.0, 9.7.16.4.2), shown for the kinds without and
with block scales:

    bits   f16, tf32, f8f6f4, i8             mxf8f6f4, mxf4, mxf4nvf4
    0–1    sparsity selector                 reserved
    2      sparse                            sparse
    3      saturate, i8 only                 upper bit of the choice of K
    4–5    type of D                         byte of the scale factors of B
    7–9    type of A                         type of A
    10–12  type of B                         type of B; bit 12 of mxf4: version of the metadata
    13–16  negate A, B; A, B are MN-major    the same
    17–22  N / 8                             N / 8
    23     reserved                          type of the scale factors
    24–28  M / 16                            M / 16
    29–30  reserved; the shift of .ws        byte of the scale factors of A
    31     the shift of .ws                  lower bit of the choice of K
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pallasc.emulator.tensors import matrices
from pallasc.emulator.tensors.descriptors import CHUNK_BYTES, OperandError, unsupported


class Element(NamedTuple):
    """A type of elements.

    Attributes:
        name: as in the manual; `e2m1x2` is `e2m1` without padding.
        bits: bits per element.
        per_chunk: elements in 16 bytes.
    """

    name: str
    bits: int
    per_chunk: int

    @property
    def padded(self) -> bool:
        """True if a chunk has bits that belong to no element."""
        return self.bits * self.per_chunk < 128


ELEMENTS = {
    element.name: element
    for element in (
        Element("f16", 16, 8),
        Element("bf16", 16, 8),
        Element("tf32", 32, 4),
        Element("e4m3", 8, 16),
        Element("e5m2", 8, 16),
        Element("e2m3", 6, 16),
        Element("e3m2", 6, 16),
        Element("e2m1", 4, 16),
        Element("e2m1x2", 4, 32),
        Element("u8", 8, 16),
        Element("s8", 8, 16),
    )
}


def decode(element: Element, chunks: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the elements of chunks: float64[..., chunks · per_chunk].

    Args:
        element: their type.
        chunks: uint8[..., chunks, 16], contiguous.
    """
    flat = chunks.reshape(*chunks.shape[:-2], -1)
    if element.bits >= 8:
        return matrices.decode(flat.view(f"u{element.bits // 8}"), element.name)
    return matrices.decode(_patterns(element, chunks, flat), element.name.removesuffix("x2"))


def _patterns(
    element: Element, chunks: NDArray[np.uint8], flat: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """Return the bits of each element in a separate byte."""
    used = chunks[..., : element.bits * element.per_chunk // 8]
    parts: tuple[Any, ...] = (used & 15, used >> 4)
    if element.bits == 4:
        return np.stack(parts, axis=-1).reshape(*flat.shape[:-1], -1)
    low, middle, high = (used[..., i::3].astype(np.uint32) for i in range(3))
    word = low | middle << np.uint32(8) | high << np.uint32(16)
    parts = tuple(word >> np.uint32(6 * i) & np.uint32(63) for i in range(4))
    return np.stack(parts, axis=-1).reshape(*flat.shape[:-1], -1)


def decode_scales(name: str, patterns: NDArray[Any]) -> NDArray[np.float64]:
    """Return the values of scale factors `ue8m0` or `ue4m3`; ignores the sign bit of `ue4m3`."""
    if name == "ue8m0":
        return matrices.decode(patterns, name)
    return matrices.decode(patterns & 0x7F, "e4m3")


# Bytes along K of an operand; if A is sparse, B has twice as many.
K_BYTES = 32

_F16 = {0: "f16", 1: "bf16"}
_F8 = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
_TYPES: dict[str, dict[int, str]] = {
    "f16": _F16,
    "tf32": {2: "tf32"},
    "f8f6f4": _F8,
    "i8": {0: "u8", 1: "s8"},
    "mxf8f6f4": _F8,
    "mxf4": {1: "e2m1x2"},
    "mxf4nvf4": {1: "e2m1x2"},
}
_RESULTS: dict[str, dict[int, str]] = {
    "f16": {0: "f16", 1: "f32"},
    "tf32": {1: "f32"},
    "f8f6f4": {0: "f16", 1: "f32"},
    "i8": {2: "s32"},
}

# kind and qualifier -> number of scale factors along the K of one instruction.
_SCALE_VECTORS = {
    ("mxf8f6f4", ""): 1,
    ("mxf8f6f4", "scale_vec::1X"): 1,
    ("mxf8f6f4", "block32"): 1,
    ("mxf4", ""): 2,
    ("mxf4", "scale_vec::2X"): 2,
    ("mxf4", "block32"): 2,
    ("mxf4nvf4", "scale_vec::2X"): 2,
    ("mxf4nvf4", "block32"): 2,
    ("mxf4nvf4", "scale_vec::4X"): 4,
    ("mxf4nvf4", "block16"): 4,
}


@dataclass(frozen=True, slots=True)
class MmaKind:
    """The mnemonic of a tcgen05.mma.

    Attributes:
        opcode: the whole mnemonic.
        name: `f16`, `mxf4`, …
        group: number of blocks that work together, 1 or 2.
        sparse: True if A is sparse.
        scale_vector: number of scale factors along K in one instruction; 0 without block scales.
        weight_stationary: True for `.ws`, which places D in other lanes.
    """

    opcode: str
    name: str
    group: int
    sparse: bool
    scale_vector: int
    weight_stationary: bool = False


@functools.cache
def parse_mma(opcode: str) -> MmaKind:
    """Parse the mnemonic of a tcgen05.mma or tcgen05.mma.sp.

    Collector qualifiers are ignored: they have no effect on the result.

    Raises:
        UnsupportedError: the kind has no such scale vectors.
    """
    parts = [part for part in opcode.split(".")[2:] if not part.startswith("collector::")]
    sparse, stationary = parts[0] == "sp", parts[0] == "ws"
    group, kind, *qualifier = parts[1:] if sparse or stationary else parts
    name, vector = kind.removeprefix("kind::"), 0
    if qualifier:
        scales = (name, ".".join(qualifier[1:]))
        if scales not in _SCALE_VECTORS:
            raise unsupported(opcode)
        vector = _SCALE_VECTORS[scales]
    return MmaKind(opcode, name, int(group[-1]), sparse, vector, stationary)


@dataclass(frozen=True, slots=True)
class Instruction:
    """The contents of an instruction descriptor.

    Attributes:
        kind: the mnemonic.
        m: rows of A and D, in total over the blocks of a group.
        n: columns of B and D.
        k: elements along K of the product; a sparse A has half as many elements in a row.
        a: type of A's elements.
        b: type of B's elements.
        result: type of D's elements, `f16`, `f32` or `s32`.
        a_mn_major: True if A's columns are contiguous instead of its rows.
        b_mn_major: True if B is contiguous along N instead of K.
        a_sign: -1 if A is negated, else 1.
        b_sign: -1 if B is negated, else 1.
        saturate: True if integer sums saturate.
        selector: the column of a pair that holds the metadata of a sparse A.
        scales: type of the scale factors, `ue8m0` or `ue4m3`.
        a_scale: first byte of A's scale factors in their cells.
        b_scale: first byte of B's scale factors.
    """

    kind: MmaKind
    m: int
    n: int
    k: int
    a: Element
    b: Element
    result: str
    a_mn_major: bool
    b_mn_major: bool
    a_sign: int
    b_sign: int
    saturate: bool
    selector: int
    scales: str
    a_scale: int
    b_scale: int

    @property
    def rows(self) -> int:
        """Rows of A and D in each block."""
        return self.m // self.kind.group

    @property
    def b_rows(self) -> int:
        """Rows of B, counted along N, in each block's shared memory."""
        return self.n // self.kind.group


@functools.lru_cache(maxsize=1024)
def decode_instruction(kind: MmaKind, idesc: int) -> Instruction:
    """Decode an instruction descriptor.

    Raises:
        OperandError: the descriptor does not match the mnemonic, or its contents are invalid.
        UnsupportedError: pallasc does not support its contents.
    """
    scaled = kind.scale_vector > 0
    a_type, b_type = idesc >> 7 & 7, idesc >> 10 & (3 if kind.name.startswith("mxf4") else 7)
    types = _TYPES[kind.name]
    if bool(idesc >> 2 & 1) != kind.sparse:
        raise _wrong(kind, idesc, f"bit 2 says {'dense' if kind.sparse else 'sparse'}")
    if a_type not in types or b_type not in types:
        raise _wrong(kind, idesc, f"types of A and B are {a_type} and {b_type}")
    a, b = ELEMENTS[types[a_type]], ELEMENTS[types[b_type]]
    result = "f32" if scaled else _RESULTS[kind.name].get(idesc >> 4 & 3)
    if result is None or (result == "f16" and "bf16" in (a.name, b.name)):
        raise _wrong(kind, idesc, f"type of D is {idesc >> 4 & 3}")
    if kind.weight_stationary and idesc >> 30:
        raise unsupported(f"{kind.opcode}: a shift of B (descriptor {idesc:#010x})")
    if idesc & (1 << 6) or (not scaled and idesc & (1 << 23 | 7 << 29)):
        raise _wrong(kind, idesc, "reserved bits are not 0")
    m, n = (idesc >> 24 & 31) << 4, (idesc >> 17 & 63) << 3
    _check_shape(kind, idesc, m, n)
    if scaled:
        _check_scaled(kind, idesc)
    elif kind.name in ("f16", "tf32") and idesc & 3 > 1:
        raise unsupported(f"{kind.opcode}: sparsity selector {idesc & 3}")
    elif kind.name not in ("f16", "tf32") and idesc & 3:
        raise _wrong(kind, idesc, f"the sparsity selector of this kind is 0, not {idesc & 3}")
    negate_a, negate_b, a_mn, b_mn = (bool(idesc >> bit & 1) for bit in (13, 14, 15, 16))
    if (negate_a or negate_b) and kind.name == "i8":
        raise _wrong(kind, idesc, "integers cannot be negated")
    if (a_mn and a.bits < 8) or (b_mn and b.bits < 8):
        raise unsupported(f"{kind.opcode}: MN-major matrix of {a.name} or {b.name}")
    return Instruction(
        kind=kind,
        m=m,
        n=n,
        k=K_BYTES // CHUNK_BYTES * a.per_chunk * (2 if kind.sparse else 1),
        a=a,
        b=b,
        result=result,
        a_mn_major=a_mn,
        b_mn_major=b_mn,
        a_sign=-1 if negate_a else 1,
        b_sign=-1 if negate_b else 1,
        saturate=not scaled and bool(idesc >> 3 & 1),
        selector=0 if scaled else idesc & 3,
        scales="ue8m0" if idesc >> 23 & 1 else "ue4m3",
        a_scale=idesc >> 29 & 3 if scaled else 0,
        b_scale=idesc >> 4 & 3 if scaled else 0,
    )


def _check_shape(kind: MmaKind, idesc: int, m: int, n: int) -> None:
    rows: tuple[int, ...] = (128,) if kind.group == 1 else (128, 256)
    if kind.group == 1 and not kind.scale_vector:
        rows = (32, 64, 128) if kind.weight_stationary else (64, 128)
    step = 64 if kind.weight_stationary else 8 * kind.group
    if m not in rows or not step <= n <= 256 or n % step or (step == 64 and n == 192):
        raise _wrong(
            kind,
            idesc,
            f"M is {m} and N {n}; M must be {' or '.join(map(str, rows))}, and N a multiple of "
            f"{step} in {step}…256",
        )
    if kind.sparse and m // kind.group == 64:
        raise unsupported(f"{kind.opcode}: sparse A with {m} rows")


def _check_scaled(kind: MmaKind, idesc: int) -> None:
    ue8m0 = bool(idesc >> 23 & 1)
    if not ue8m0 and (kind.name != "mxf4nvf4" or kind.scale_vector != 4):
        raise _wrong(kind, idesc, "scale factors ue4m3 need .kind::mxf4nvf4 with .scale_vec::4X")
    if idesc >> 31 or idesc >> 3 & 1:
        raise unsupported(f"{kind.opcode}: instruction descriptor {idesc:#010x}: unusual K")
    if kind.name.startswith("mxf4") and idesc >> 12 & 1:
        raise unsupported(f"{kind.opcode}: version 1 of the sparsity metadata")
    for operand, first in (("A", idesc >> 29 & 3), ("B", idesc >> 4 & 3)):
        if first % kind.scale_vector:
            raise _wrong(
                kind,
                idesc,
                f"the {kind.scale_vector} scale factors of {operand} cannot start at byte {first}",
            )


def _wrong(kind: MmaKind, idesc: int, what: str) -> OperandError:
    return OperandError(f"{kind.opcode}: instruction descriptor {idesc:#010x}: {what}")
