"""The launch plan: all data needed to run a compiled function.

A plan is an ordered list of steps over numbered buffers. Offsets and sizes are in bytes. A plan
does not depend on JAX or XLA.

Its JSON form, schema 1, is an object with the fields of `LaunchPlan`. Nested records are objects
with their fields; steps and parameters also have a `kind`. Some fields are omitted:

* `mesh`, if the plan runs on a single device
* `peer_table` of a launch and `peers` of a tensor map, if they are None; these fields, and
  parameters of kind "peers", occur only with a mesh
* `parameters`, if the arrays determine the order of the function's parameters
* `layout` of an array that is row-major
* `size` of a pointer whose array extends to the end of the buffer

`broken_rule` checks the driver's rules for tensor maps when plans are built or loaded. Rules of
`cuTensorMapEncodeTiled` (CUDA driver API, "Tensor Map Object Management"): rank 1 to 5, byte
strides divisible by 16 and below 2^40, sizes at most 2^32, box at most 256 in each dimension, the
inner box a multiple of 16 bytes and not longer than the swizzle, element strides 1 to 8. Rules of
`cuTensorMapEncodeIm2col`: rank 3 to 5, bounds of 16, 8, or 5 bits at rank 3, 4, or 5, at most 256
channels and 1024 pixels.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
from msgspec import Struct, convert, field

from pallasc.errors import CorruptError, SpecError
from pallasc.specs.arrays import ArraySpec, strides_of
from pallasc.specs.artifacts import cached_property
from pallasc.specs.canonical import Positive, StrictStruct

Dim3 = tuple[Positive, Positive, Positive]
Role = Literal["input", "output", "constant", "temporary"]

MAP_BYTES = 128
"""Size of a tensor map (`CUtensorMap`)."""

PEER_HEAD_WORDS = 4
"""Words in a table of peers before its addresses."""

MULTICAST = -1
"""Stands for the multicast address in place of a rank in `TensorMap.peers`."""


def _written(default: Any) -> Any:
    """Return a field's default value that is written to JSON, where other defaults are omitted."""
    return field(default_factory=lambda: default)


class _Tagged(StrictStruct, frozen=True, tag_field="kind", tag=str.lower):
    """A kind of step or parameter."""


class Buffer(StrictStruct, frozen=True):
    """One allocation on the device.

    `role` determines who provides the buffer: the caller (`input`, `output`), the artifact
    (`constant`; its bytes have the digest `digest`), or the runtime (`temporary`).
    """

    role: Role
    size: int
    alignment: int = 256
    digest: str | None = None


class Binding(StrictStruct, frozen=True, omit_defaults=True):
    """An array of the function's signature: its path in the pytree, and its buffer.

    The array is `dtype[shape]`, row-major unless `layout` lists its dimensions from minor to major;
    only inputs have a layout. An output whose buffer has the role `input` is that input, updated in
    place or passed through.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    buffer: int
    layout: tuple[int, ...] | None = None

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in elements."""
        return strides_of(self.shape, self.layout)

    @property
    def size_bytes(self) -> int:
        """Size on the device in bytes."""
        return ArraySpec(self.dtype, self.shape).nbytes


class Access(NamedTuple):
    """Bytes of a buffer that a step uses; `writes` is None if this depends on the kernel's code."""

    buffer: int
    offset: int
    size: int
    writes: bool | None


class Fill(_Tagged, frozen=True):
    """Set `size` bytes of a buffer to copies of a `width`-byte little-endian `value`."""

    buffer: int
    offset: int
    size: int
    value: int = 0
    width: Literal[1, 4] = 1

    def accesses(self) -> Iterator[Access]:
        """Yield the bytes that the step uses."""
        yield Access(self.buffer, self.offset, self.size, True)

    def __str__(self) -> str:
        value = f"{self.value:#0{2 + 2 * self.width}x}"
        return f"fill {self.size} bytes of {place_text(self.buffer, self.offset)} with {value}"

    def run(self, buffers: Sequence[memoryview]) -> None:
        """Run the step on the host; `buffers` has the bytes of each buffer."""
        value = self.value.to_bytes(self.width, "little")
        buffers[self.buffer][self.offset :][: self.size] = value * (self.size // self.width)

    def driver_call(self, addresses: Sequence[int]) -> tuple[str, tuple[int, ...]]:
        """Return the driver function for the step, and its arguments before the stream."""
        function = "cuMemsetD8Async" if self.width == 1 else "cuMemsetD32Async"
        target = addresses[self.buffer] + self.offset
        return function, (target, self.value, self.size // self.width)


class Copy(_Tagged, frozen=True):
    """Copy `size` bytes between buffers on the device."""

    source: int
    source_offset: int
    target: int
    target_offset: int
    size: int

    def accesses(self) -> Iterator[Access]:
        """Yield the bytes that the step uses."""
        yield Access(self.source, self.source_offset, self.size, False)
        yield Access(self.target, self.target_offset, self.size, True)

    def __str__(self) -> str:
        source = place_text(self.source, self.source_offset)
        target = place_text(self.target, self.target_offset)
        return f"copy {self.size} bytes of {source} to {target}"

    def run(self, buffers: Sequence[memoryview]) -> None:
        """Run the step on the host; `buffers` has the bytes of each buffer."""
        data = bytes(buffers[self.source][self.source_offset :][: self.size])
        buffers[self.target][self.target_offset :][: self.size] = data

    def driver_call(self, addresses: Sequence[int]) -> tuple[str, tuple[int, ...]]:
        """Return the driver function for the step, and its arguments before the stream."""
        target = addresses[self.target] + self.target_offset
        source = addresses[self.source] + self.source_offset
        return "cuMemcpyDtoDAsync", (target, source, self.size)


def place_text(buffer: int, offset: int) -> str:
    """Return a place in a buffer as text."""
    return f"buffer {buffer}+{offset}" if offset else f"buffer {buffer}"


class Im2col(TypedDict):
    """The window of `cuTensorMapEncodeIm2col`; bounds are minor first."""

    lower: list[int]
    upper: list[int]
    channels_per_pixel: int
    pixels_per_column: int


class TensorMap(StrictStruct, frozen=True, omit_defaults=True):
    """The arguments of `cuTensorMapEncodeTiled` or `…Im2col`, without the address.

    Dimensions are minor first, as the driver expects; `strides` are in bytes and omit the minor
    dimension. `dtype` is a `CUtensorMapDataType` in lower case ("float16"). `interleave`,
    `swizzle`, and `l2_promotion` are in bytes (0 is none). With several devices, `peers` lists for
    each rank the rank whose buffer the map covers, or -1 for the buffer's multicast address; if it
    is None, each device uses its own buffer.
    """

    buffer: int
    offset: int
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: int = _written(0)
    interleave: int = _written(0)
    l2_promotion: int = _written(0)
    nan_fill: bool = _written(False)
    im2col: Im2col | None = _written(None)
    peers: tuple[int, ...] | None = None


class Pointer(_Tagged, frozen=True, omit_defaults=True):
    """A kernel parameter: the 8-byte address `buffer + offset` of an array.

    `size` is the array's size in bytes, or 0 if the array extends to the end of the buffer.
    """

    buffer: int
    offset: int
    size: int = 0


class Bytes(_Tagged, frozen=True):
    """A kernel parameter of `size` bytes, passed by value: `data` with `tensor_maps` over it.

    `data` is hexadecimal, or empty if the maps (offset, map; 128 bytes each) fill the parameter.
    """

    size: int
    data: str
    tensor_maps: tuple[tuple[int, TensorMap], ...]


class Peers(_Tagged, frozen=True):
    """A kernel parameter: the 8-byte device address of the launch's table of peers."""


class PeerTable(StrictStruct, frozen=True):
    """The table through which a kernel on several devices finds the memory of its peers.

    The launcher writes the table, an array of 64-bit words. Ranks number the devices of the mesh in
    row-major order.

    ========================== ===================================================================
    word                       holds
    ========================== ===================================================================
    0                          the rank of the device that reads the table
    1, 2, 3                    not read by kernels
    4 + ranks * a + r          the address of array `a` on rank `r`
    4 + ranks * arrays + a     the multicast address of array `a`, 0 if it has none
    ========================== ===================================================================

    Attributes:
        ranks: number of devices.
        arrays: the arrays in table order, each a buffer and a byte offset.
        symmetric: indices of the arrays that need symmetric memory: reachable by all devices, at
            the same offset in each device's allocation. Other arrays can be anywhere on a peer.
        multicast: True if the kernel reads or writes multicast addresses (`multimem`), so that the
            devices must share a multicast object.
        barrier: True if the devices must wait for each other before they launch.
    """

    ranks: int
    arrays: tuple[tuple[int, int], ...]
    symmetric: tuple[int, ...] = ()
    multicast: bool = False
    barrier: bool = True

    @property
    def words(self) -> int:
        """Length of the table in words."""
        return PEER_HEAD_WORDS + (self.ranks + 1) * len(self.arrays)


Parameter = Pointer | Bytes | Peers


class Launch(_Tagged, frozen=True, omit_defaults=True):
    """Launch `kernel` of the cubin with the digest `cubin`.

    `grid` is in blocks, even with a cluster. If `cluster` is None, the launch has no cluster
    attribute. `pdl` sets the attribute programmatic stream serialization. `origin` is "mosaic" or
    "xla". `peer_table` is set if the kernel accesses other devices.
    """

    kernel: str
    cubin: str
    grid: Dim3
    cluster: Dim3 | None
    block: Dim3
    dynamic_smem_bytes: int
    pdl: bool
    parameters: tuple[Parameter, ...]
    origin: str = _written("mosaic")
    label: str = _written("")
    peer_table: PeerTable | None = None

    def accesses(self) -> Iterator[Access]:
        """Yield the memory to which the parameters and the peer table refer."""
        for parameter in self.parameters:
            if isinstance(parameter, Pointer):
                yield Access(parameter.buffer, parameter.offset, parameter.size, None)
            elif isinstance(parameter, Bytes):
                for _, tensor_map in parameter.tensor_maps:
                    yield Access(tensor_map.buffer, tensor_map.offset, 0, None)
        for buffer, offset in self.peer_table.arrays if self.peer_table else ():
            yield Access(buffer, offset, 0, None)

    def check_parameters(self, sizes: Sequence[int], source: str) -> None:
        """Check that the parameters have the sizes that the kernel expects according to `source`.

        Raises:
            CorruptError: the sizes differ.
        """
        passed = [each.size if isinstance(each, Bytes) else 8 for each in self.parameters]
        if passed != list(sizes):
            raise CorruptError(
                f"the plan passes parameters of {passed} bytes to {self.kernel}, and {source} "
                f"says {list(sizes)}"
            )


Step = Fill | Copy | Launch


STEP_KINDS = {"fill": "fills", "copy": "copies", "launch": "launches"}
"""Names of all kinds of steps and their plurals, in the order of their numbers in flat plans."""

FLAT_VERSION = 1
"""Version of flat plans. For a new kind, increase it here and in `runtime/native/flat_plan.h`."""


def kind_of(step: Step) -> str:
    """Return the name of a step's kind."""
    return type(step).__name__.lower()


Source = tuple[Literal["input", "result"], int]
"""Origin of an output: the input with this number, or the memory passed for this result."""


class LaunchPlan(Struct, frozen=True, omit_defaults=True, dict=True):
    """Buffers, signature, and steps of a compiled function.

    `input_tree` and `output_tree` are pytrees as JSON: a list or object whose leaves are indices
    into `inputs` or `outputs`, or None where the caller passes or gets None. `mesh` has the axes
    and sizes of the devices that run the plan together, each on its own buffers. `parameters` has
    the names in `input_tree` in the order of the function's signature. It is empty if the arrays
    already give this order, that is, if names without arrays (None, empty trees) come last.
    """

    buffers: tuple[Buffer, ...]
    inputs: tuple[Binding, ...]
    outputs: tuple[Binding, ...]
    steps: tuple[Step, ...]
    input_tree: Any
    output_tree: Any
    mesh: tuple[tuple[str, Positive], ...] = ()
    parameters: tuple[str, ...] = ()

    @cached_property
    def results(self) -> tuple[Binding, ...]:
        """The arrays that need memory: outputs that are neither an input nor another output."""
        found: dict[int, Binding] = {}
        for output in self.outputs:
            found.setdefault(output.buffer, output)
        for array in self.inputs:
            found.pop(array.buffer, None)
        return tuple(found.values())

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """The origin of each output."""
        origins: dict[int, Source] = {}
        origins |= {array.buffer: ("result", n) for n, array in enumerate(self.results)}
        origins |= {array.buffer: ("input", n) for n, array in enumerate(self.inputs)}
        return tuple(origins[output.buffer] for output in self.outputs)

    @cached_property
    def updated(self) -> tuple[int, ...]:
        """Numbers of the inputs that are updated in place."""
        return tuple(sorted({number for source, number in self.sources if source == "input"}))

    @cached_property
    def passed(self) -> tuple[Binding, ...]:
        """Inputs, then results: all arrays that have an address."""
        return (*self.inputs, *self.results)

    @cached_property
    def passed_bytes(self) -> tuple[int, ...]:
        """The size of each of these arrays in bytes."""
        return tuple(array.size_bytes for array in self.passed)

    def check_arrays(self) -> None:
        """Check that arrays fill their buffers; int1 does not: XLA takes a byte for an element.

        Raises:
            CorruptError: an array is smaller than its buffer.
        """
        for array in self.passed:
            size, own = self.buffers[array.buffer].size, array.size_bytes
            if size > own:
                raise CorruptError(f"array {array.path} has {own} bytes, and its buffer {size}")

    @property
    def device_count(self) -> int:
        """Number of devices that run the plan together."""
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


def plan_to_json(plan: LaunchPlan) -> dict[str, Any]:
    """Return the plan as plain data for JSON; `plan_from_json` is the exact inverse."""
    return msgspec.json.decode(msgspec.json.encode(plan), type=dict[str, Any])


def plan_from_json(data: object) -> LaunchPlan:
    """Parse a plan written by `plan_to_json`.

    Raises:
        CorruptError: a field is missing, unknown, or of the wrong type, or a buffer does not exist.
    """
    try:
        plan = convert(data, LaunchPlan)
        check_ranges(plan)
    except (ValueError, SpecError) as error:
        raise CorruptError(f"the launch plan is damaged: {error}") from error
    return plan


def check_ranges(plan: LaunchPlan) -> None:
    """Check that every reference in the plan is inside an existing buffer.

    Raises:
        CorruptError: a reference is outside of its buffer, or sizes contradict each other.
    """
    for what, buffer, offset, size in _references(plan):
        if not 0 <= buffer < len(plan.buffers):
            raise CorruptError(f"{what} names buffer {buffer} of {len(plan.buffers)}")
        if offset < 0 or size < 0 or offset + size > plan.buffers[buffer].size:
            raise CorruptError(
                f"{what} takes bytes {offset} to {offset + size} of buffer {buffer}, "
                f"which has {plan.buffers[buffer].size}"
            )
    for broken in _broken_rules(plan):
        raise CorruptError(f"the launch plan is damaged: {broken}")


def _references(plan: LaunchPlan) -> Iterator[tuple[str, int, int, int]]:
    """Yield each reference to a buffer: its description, buffer number, offset, and size."""
    for array in (*plan.inputs, *plan.outputs):
        yield f"array {array.path}", array.buffer, 0, array.size_bytes
    for index, step in enumerate(plan.steps):
        for buffer, offset, size, _ in step.accesses():
            yield f"step {index}", buffer, offset, size


def _broken_rules(plan: LaunchPlan) -> Iterator[str]:
    for index, buffer in enumerate(plan.buffers):
        if buffer.size < 0 or (buffer.role == "constant") != (buffer.digest is not None):
            yield (
                f"{buffer.role} buffer {index} of {buffer.size} bytes has digest {buffer.digest}; "
                "constants alone have one, and sizes are at least 0"
            )
    for index, step in enumerate(plan.steps):
        if isinstance(step, Launch):
            yield from _broken_launch(step, index, plan.device_count)
        for access in step.accesses():
            if access.writes and plan.buffers[access.buffer].role == "constant":
                yield f"step {index} writes to constant {access.buffer}, which all plans share"
        if isinstance(step, Fill) and (step.size % step.width or step.value >> 8 * step.width):
            yield (
                f"step {index} fills {step.size} bytes with {step.value:#x}, "
                f"which is not a value of {step.width} bytes, repeated"
            )
    yield from _broken_signature(plan)
    yield from _broken_buffers(plan)


def _broken_launch(launch: Launch, index: int, devices: int) -> Iterator[str]:
    cluster = launch.cluster or (1, 1, 1)
    if any(size % part for size, part in zip(launch.grid, cluster, strict=True)):
        yield f"grid {launch.grid} of {launch.kernel} does not divide into clusters of {cluster}"
    table = launch.peer_table
    if table is not None and table.ranks != devices:
        yield f"a peer table has {table.ranks} ranks for a mesh of {devices}"
    if table is not None and any(not 0 <= n < len(table.arrays) for n in table.symmetric):
        yield f"a peer table of {len(table.arrays)} arrays has symmetric arrays {table.symmetric}"
    for parameter in launch.parameters:
        if isinstance(parameter, Peers) and table is None:
            yield f"{launch.kernel} takes a peer table, but its launch has none"
        if isinstance(parameter, Bytes):
            last = parameter.size - MAP_BYTES
            are_inside = all(0 <= at <= last for at, _ in parameter.tensor_maps)
            if len(bytes.fromhex(parameter.data)) not in (0, parameter.size) or not are_inside:
                yield f"step {index} has a parameter that does not fit its {parameter.size} bytes"
            for _, tensor_map in parameter.tensor_maps:
                if (broken := broken_rule(tensor_map)) is not None:
                    yield f"the driver would refuse a tensor map of {launch.kernel}: {broken}"
                peers = tensor_map.peers
                are_ranks = all(MULTICAST <= peer < devices for peer in peers or ())
                if peers is not None and (len(peers) != devices or not are_ranks):
                    yield f"a tensor map of {launch.kernel} names peers {peers}"


def _broken_buffers(plan: LaunchPlan) -> Iterator[str]:
    owned = {array.buffer for array in plan.passed}
    for array in plan.passed:
        buffer = plan.buffers[array.buffer]
        if buffer.role not in ("input", "output"):
            yield f"array {array.path} is in a {buffer.role} buffer"
        if buffer.alignment < 1:
            yield f"array {array.path} is aligned to {buffer.alignment} bytes"
    for number, buffer in enumerate(plan.buffers):
        if buffer.role in ("input", "output") and number not in owned and buffer.size:
            yield f"nobody provides {buffer.role} buffer {number}"


def _broken_signature(plan: LaunchPlan) -> Iterator[str]:
    for tree, arrays in ((plan.input_tree, plan.inputs), (plan.output_tree, plan.outputs)):
        if sorted(tree_leaves(tree)) != list(range(len(arrays))):
            yield f"a pytree does not name each of {len(arrays)} arrays once"
    for array in (*plan.inputs, *plan.outputs):
        dims = sorted(array.layout or range(len(array.shape)))
        if dims != list(range(len(array.shape))) or (array.layout and array in plan.outputs):
            yield (
                f"array {array.path} has the layout {array.layout}; only inputs may have one, "
                "a permutation of their dimensions"
            )
    names = list(plan.input_tree) if isinstance(plan.input_tree, Mapping) else []
    if plan.parameters and sorted(plan.parameters) != sorted(names):
        yield f"its parameters {list(plan.parameters)} do not match its pytree"


ELEMENT_BYTES = {
    "uint8": 1, "uint16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8, "float16": 2,
    "float32": 4, "float64": 8, "bfloat16": 2,
}  # fmt: skip
"""Sizes of element types in bytes, by the driver's names, in the order of the driver's values."""

# Values of the driver's enumerations `CUtensorMap…`.
DTYPES = {name: number for number, name in enumerate(ELEMENT_BYTES)}
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}
INTERLEAVES = {0: 0, 16: 1, 32: 2}

_Rules = Iterator[tuple[bool, str]]


def broken_rule(m: TensorMap) -> str | None:
    """Return the driver's rule that a tensor map breaks, with the value; None if it breaks none."""
    shape_rules = _box_rules(m) if m.im2col is None else _window_rules(m, m.im2col)
    rules = chain(_modes(m), _array_rules(m), shape_rules)
    return next((text for holds, text in rules if not holds), None)


def _modes(m: TensorMap) -> _Rules:
    yield m.dtype in ELEMENT_BYTES, f"element type {m.dtype} is unknown"
    yield m.swizzle in (0, 32, 64, 128), f"swizzle {m.swizzle} is unknown"
    yield m.interleave in (0, 16, 32), f"interleave {m.interleave} is unknown"
    yield m.l2_promotion in (0, 64, 128, 256), f"L2 promotion {m.l2_promotion} is unknown"


def _array_rules(m: TensorMap) -> _Rules:
    rank, step = len(m.dims), 32 if m.interleave == 32 else 16
    yield 1 <= rank <= 5, f"rank {rank} is not in 1 to 5"
    yield m.offset % step == 0, f"offset {m.offset} is not a multiple of {step}"
    yield len(m.strides) == rank - 1, f"{len(m.strides)} strides for rank {rank}"
    yield all(0 < n <= 1 << 32 for n in m.dims), f"sizes {m.dims} exceed 2^32 or are zero"
    strides = all(n % step == 0 and 0 <= n < 1 << 40 for n in m.strides)
    yield strides, f"byte strides {m.strides} are not all multiples of {step} below 2^40"
    element_strides = len(m.element_strides) == rank and all(1 <= n <= 8 for n in m.element_strides)
    yield element_strides, f"element strides {m.element_strides} are not all in 1 to 8"


def _box_rules(m: TensorMap) -> _Rules:
    yield len(m.box) == len(m.dims), f"box {m.box} for rank {len(m.dims)}"
    yield all(1 <= n <= 256 for n in m.box), f"box {m.box} is not in 1 to 256"
    inner = m.box[0] * ELEMENT_BYTES[m.dtype]
    yield inner % 16 == 0, f"the inner box of {inner} bytes is not a multiple of 16 bytes"
    fits = not m.swizzle or inner <= m.swizzle
    yield fits, f"the inner box of {inner} bytes is longer than the swizzle of {m.swizzle}"


def _window_rules(m: TensorMap, window: Im2col) -> _Rules:
    yield len(m.dims) >= 3, f"rank {len(m.dims)} is not in 3 to 5"
    spatial = len(m.dims) - 2
    most = 1 << (16 // spatial - 1)
    bounds = [*window["lower"], *window["upper"]]
    within = len(bounds) == 2 * spatial and all(-most <= n < most for n in bounds)
    yield within, f"window bounds {bounds} are not all in {-most} to {most - 1}"
    channels, pixels = window["channels_per_pixel"], window["pixels_per_column"]
    yield 1 <= channels <= 256, f"{channels} channels/pixel is not in 1 to 256"
    yield 1 <= pixels <= 1024, f"{pixels} pixels/column is not in 1 to 1024"
    inner = channels * ELEMENT_BYTES[m.dtype]
    fits = not m.swizzle or inner <= m.swizzle
    yield fits, f"{inner} bytes of channels exceed the swizzle of {m.swizzle}"
