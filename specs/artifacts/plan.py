"""The launch plan: everything needed to run a compiled function, as data.

A plan is an ordered list of steps over numbered buffers. Offsets and sizes are bytes. It knows
nothing of JAX or XLA. `plan_json.py` has its JSON form, `plan_rules.py` what must hold of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from pallasc.specs.arrays import strides_of
from pallasc.specs.artifacts.peers import Peers, PeerTable
from pallasc.specs.artifacts.profile import Profile

Dim3 = tuple[int, int, int]
Role = Literal["input", "output", "constant", "temporary"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """One allocation on the device.

    `role` says who provides it: the caller (`input`, `output`), the artifact (`constant`, its bytes
    under `digest`) or the runtime (`temporary`).
    """

    role: Role
    size: int
    alignment: int = 256
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Binding:
    """An array of the function's signature: its path in the pytree, and the buffer it lies in.

    `x: dtype[shape]`, row-major unless `layout` lists its dimensions from the minor one; that only
    inputs have. An output whose buffer has the role `input` is that input, updated in place or
    passed through.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    buffer: int
    layout: tuple[int, ...] | None = None

    @property
    def strides(self) -> tuple[int, ...]:
        """The steps between elements, in elements."""
        return strides_of(self.shape, self.layout)


@dataclass(frozen=True, slots=True)
class Fill:
    """Set `size` bytes of a buffer to copies of a `width`-byte little-endian `value`."""

    buffer: int
    offset: int
    size: int
    value: int = 0
    width: Literal[1, 4] = 1


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy `size` bytes between buffers on the device."""

    source: int
    source_offset: int
    target: int
    target_offset: int
    size: int


class Im2col(TypedDict):
    """The window of `cuTensorMapEncodeIm2col`; bounds are minor first."""

    lower: list[int]
    upper: list[int]
    channels_per_pixel: int
    pixels_per_column: int


@dataclass(frozen=True, slots=True)
class TensorMap:
    """The arguments of `cuTensorMapEncodeTiled` or `…Im2col`, less the address.

    Dimensions are minor first, as the driver takes them; `strides` are bytes and leave out the
    minor dimension. `dtype` names a `CUtensorMapDataType` in lower case ("float16"), `interleave`
    and `swizzle` are bytes (0 is none), `l2_promotion` too. Over several devices, `peers` says for
    each rank on which rank the buffer lies, or -1 for its multicast address; None is the own one.
    """

    buffer: int
    offset: int
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: int = 0
    interleave: int = 0
    l2_promotion: int = 0
    nan_fill: bool = False
    im2col: Im2col | None = None
    peers: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Pointer:
    """A kernel parameter: the 8-byte address `buffer + offset` of an array.

    `size` is the array's, in bytes, and 0 where the array extends to the end of the buffer.
    """

    buffer: int
    offset: int
    size: int = 0


@dataclass(frozen=True, slots=True)
class Bytes:
    """A kernel parameter passed by value: `size` bytes, `data` with `tensor_maps` laid over it.

    `data` is hexadecimal, or empty where the maps (offset, map; 128 bytes each) fill everything.
    """

    size: int
    data: str
    tensor_maps: tuple[tuple[int, TensorMap], ...]


Parameter = Pointer | Bytes | Peers


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch `kernel` of the cubin with this `digest`.

    `grid` counts blocks, also with a cluster; `cluster` None means no cluster attribute;
    `pdl` sets the attribute programmatic stream serialization. `origin` is "mosaic" or "xla".
    `peer_table` is there where the kernel reaches other devices.
    """

    kernel: str
    cubin: str
    grid: Dim3
    cluster: Dim3 | None
    block: Dim3
    dynamic_smem_bytes: int
    pdl: bool
    parameters: tuple[Parameter, ...]
    origin: str = "mosaic"
    label: str = ""
    peer_table: PeerTable | None = None


Step = Fill | Copy | Launch

MAP_BYTES = 128
"""Size of a tensor map (`CUtensorMap`)."""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Buffers, signature and steps of one compiled function.

    `input_tree` and `output_tree` give the pytrees as JSON: a list or object whose leaves are
    indices into `inputs` or `outputs`, None where the caller passes or gets None. `mesh` names the
    axes and sizes of the devices that run the plan together, each on buffers of its own.
    `parameters` has the names in `input_tree` in the order of the function's signature, and is
    empty where their arrays tell the order: where no name without arrays goes before one with some.
    """

    buffers: tuple[Buffer, ...]
    inputs: tuple[Binding, ...]
    outputs: tuple[Binding, ...]
    steps: tuple[Step, ...]
    input_tree: Any
    output_tree: Any
    mesh: tuple[tuple[str, int], ...] = ()
    profiles: tuple[Profile, ...] = ()
    parameters: tuple[str, ...] = ()

    @property
    def device_count(self) -> int:
        """How many devices run the plan together."""
        return math.prod(size for _, size in self.mesh)

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The launches among the steps, in order."""
        return tuple(step for step in self.steps if isinstance(step, Launch))


def tree_leaves(tree: Any) -> Iterator[int]:
    """Yield the numbers of the arrays in a pytree of a plan."""
    if type(tree) is int:
        yield tree
    elif isinstance(tree, Mapping):
        for item in tree.values():
            yield from tree_leaves(item)
    elif isinstance(tree, list):
        for item in tree:
            yield from tree_leaves(item)
