"""The launch plan: everything needed to run a compiled function, as data.

A plan is an ordered list of steps over numbered buffers. Offsets and sizes are bytes. It knows
nothing of JAX or XLA; `to_json` and `plan_from_json` are exact inverses.

JSON form, schema 1: an object with `buffers`, `inputs`, `outputs`, `input_tree`, `output_tree`,
`steps`; every step and parameter carries its `kind`. Only where there is something to say, there is
also:

* `mesh`: a list of [axis, size], where the plan is that of one device among several; then a launch
  may have `peer_table`, a parameter the kind "peers", a tensor map `peers` (`specs/peers.py`)
* `profiles`: what profiled kernels leave (`specs/profile.py`)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeVar

from pallasc.errors import CorruptError, SpecError
from pallasc.specs.dtypes import parse_dtype
from pallasc.specs.peers import (
    MULTICAST,
    Peers,
    PeerTable,
    broken_table,
    peer_table_from_json,
    peer_table_to_json,
)
from pallasc.specs.profile import Profile, broken_profile, profile_from_json, profile_to_json

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

    `x: dtype[shape], row-major`. An output whose buffer has the role `input` is that input, updated
    in place or passed through.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    buffer: int


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
    im2col: Mapping[str, Any] | None = None
    peers: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Pointer:
    """A kernel parameter: the 8-byte address `buffer + offset`."""

    buffer: int
    offset: int


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
    """

    buffers: tuple[Buffer, ...]
    inputs: tuple[Binding, ...]
    outputs: tuple[Binding, ...]
    steps: tuple[Step, ...]
    input_tree: Any
    output_tree: Any
    mesh: tuple[tuple[str, int], ...] = ()
    profiles: tuple[Profile, ...] = ()

    @property
    def device_count(self) -> int:
        """How many devices run the plan together."""
        return math.prod(size for _, size in self.mesh)

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The launches among the steps, in order."""
        return tuple(step for step in self.steps if isinstance(step, Launch))


_STEPS: dict[str, Any] = {"fill": Fill, "copy": Copy, "launch": Launch}
_PARAMETERS: dict[str, Any] = {"pointer": Pointer, "bytes": Bytes, "peers": Peers}


def plan_to_json(plan: LaunchPlan) -> dict[str, Any]:
    """Return the plan as plain data for JSON."""
    return {
        "buffers": [asdict(buffer) for buffer in plan.buffers],
        "inputs": [asdict(binding) for binding in plan.inputs],
        "outputs": [asdict(binding) for binding in plan.outputs],
        "steps": [_step_to_json(step) for step in plan.steps],
        "input_tree": plan.input_tree,
        "output_tree": plan.output_tree,
        **({"mesh": [list(axis) for axis in plan.mesh]} if plan.mesh else {}),
        **({"profiles": [profile_to_json(one) for one in plan.profiles]} if plan.profiles else {}),
    }


def _step_to_json(step: Step) -> dict[str, Any]:
    data = {"kind": type(step).__name__.lower(), **asdict(step)}
    if isinstance(step, Launch):
        data["parameters"] = [_parameter_to_json(parameter) for parameter in step.parameters]
        del data["peer_table"]
        if step.peer_table is not None:
            data["peer_table"] = peer_table_to_json(step.peer_table)
    return data


def _parameter_to_json(parameter: Parameter) -> dict[str, Any]:
    data = {"kind": type(parameter).__name__.lower(), **asdict(parameter)}
    for _, tensor_map in data.get("tensor_maps", ()):
        if tensor_map["peers"] is None:
            del tensor_map["peers"]
    return data


def plan_from_json(data: Mapping[str, Any]) -> LaunchPlan:
    """Return the plan that `plan_to_json` wrote.

    Raises:
        CorruptError: a field is missing, unknown, of another type, or a buffer does not exist.
    """
    try:
        plan = LaunchPlan(
            buffers=tuple(_make(Buffer, buffer) for buffer in data["buffers"]),
            inputs=tuple(_binding(item) for item in data["inputs"]),
            outputs=tuple(_binding(item) for item in data["outputs"]),
            steps=tuple(_step(item) for item in data["steps"]),
            input_tree=data["input_tree"],
            output_tree=data["output_tree"],
            mesh=_mesh(data.get("mesh", ())),
            profiles=tuple(profile_from_json(item) for item in data.get("profiles", ())),
        )
    except (LookupError, TypeError, ValueError) as error:
        raise CorruptError(f"the launch plan is damaged: {error!r}") from error
    check_ranges(plan)
    return plan


def _is_int(value: Any) -> bool:
    return type(value) is int


def _is_ints(value: Any) -> bool:
    return type(value) is tuple and all(map(_is_int, value))


def _is_dim3(value: Any) -> bool:
    return _is_ints(value) and len(value) == 3 and min(value) > 0


# What a field's annotation asks of its value.
_TYPES: dict[str, Callable[[Any], bool]] = {
    "int": _is_int,
    "bool": lambda value: type(value) is bool,
    "str": lambda value: type(value) is str,
    "str | None": lambda value: value is None or type(value) is str,
    "Role": lambda value: value in ("input", "output", "constant", "temporary"),
    "Literal[1, 4]": lambda value: _is_int(value) and value in (1, 4),
    "tuple[int, ...]": _is_ints,
    "tuple[int, ...] | None": lambda value: value is None or _is_ints(value),
    "Dim3": _is_dim3,
    "Dim3 | None": lambda value: value is None or _is_dim3(value),
    "Mapping[str, Any] | None": lambda value: value is None or isinstance(value, Mapping),
    "tuple[Parameter, ...]": lambda _: True,
    "PeerTable | None": lambda _: True,
    "tuple[tuple[int, TensorMap], ...]": lambda value: all(_is_int(at) for at, _ in value),
}

_Data = TypeVar("_Data", Buffer, Binding, Fill, Copy, Launch, Pointer, Bytes, Peers, TensorMap)


def _make(kind: type[_Data], data: Mapping[str, Any]) -> _Data:
    """Return the data class with these fields, each of the type that it declares."""
    made = kind(**data)
    for field in fields(kind):
        value = getattr(made, field.name)
        if not _TYPES[str(field.type)](value):
            raise TypeError(f"{field.name} of a {kind.__name__.lower()} is {value!r}")
    return made


def _mesh(data: Any) -> tuple[tuple[str, int], ...]:
    mesh = tuple((name, size) for name, size in data)
    if any(type(name) is not str or not _is_int(size) or size < 1 for name, size in mesh):
        raise TypeError(f"the mesh is {data!r}")
    return mesh


def _binding(data: Mapping[str, Any]) -> Binding:
    return _make(Binding, {**data, "shape": tuple(data["shape"])})


def _step(data: Mapping[str, Any]) -> Step:
    values = dict(data)
    kind = _STEPS[values.pop("kind")]
    if kind is Launch:
        values["parameters"] = tuple(_parameter(item) for item in values["parameters"])
        for name in ("grid", "block", "cluster"):
            values[name] = None if values[name] is None else tuple(values[name])
        values["peer_table"] = peer_table_from_json(values.get("peer_table"))
    step: Step = _make(kind, values)
    return step


def _parameter(data: Mapping[str, Any]) -> Parameter:
    values = dict(data)
    kind = _PARAMETERS[values.pop("kind")]
    if kind is Bytes:
        values["tensor_maps"] = tuple(
            (offset, _tensor_map(item)) for offset, item in values["tensor_maps"]
        )
        bytes.fromhex(values["data"])
    parameter: Parameter = _make(kind, values)
    return parameter


def _tensor_map(data: Mapping[str, Any]) -> TensorMap:
    sequences = ["dims", "strides", "box", "element_strides"]
    if "peers" in data:
        sequences.append("peers")
    return _make(TensorMap, {**data, **{name: tuple(data[name]) for name in sequences}})


def check_ranges(plan: LaunchPlan) -> None:
    """Check that every reference of the plan lies inside an existing buffer.

    Raises:
        CorruptError: one does not, or sizes contradict each other.
    """
    for what, buffer, offset, size in _references(plan):
        if not 0 <= buffer < len(plan.buffers):
            raise CorruptError(f"{what} names buffer {buffer} of {len(plan.buffers)}")
        if offset < 0 or size < 0 or offset + size > plan.buffers[buffer].size:
            raise CorruptError(
                f"{what} takes bytes {offset} to {offset + size} of buffer {buffer}, "
                f"which has {plan.buffers[buffer].size}"
            )
    for broken in (*_broken_rules(plan), *_broken_extras(plan)):
        raise CorruptError(f"the launch plan is damaged: {broken}")


def _references(plan: LaunchPlan) -> list[tuple[str, int, int, int]]:
    found = [
        (f"array {b.path}", b.buffer, 0, _array_bytes(b)) for b in (*plan.inputs, *plan.outputs)
    ]
    for index, step in enumerate(plan.steps):
        what = f"step {index}"
        if isinstance(step, Fill):
            found.append((what, step.buffer, step.offset, step.size))
        elif isinstance(step, Copy):
            found.append((what, step.source, step.source_offset, step.size))
            found.append((what, step.target, step.target_offset, step.size))
        else:
            found += [(what, *place) for place in _launch_references(step)]
    found += [("a profile", profile.buffer, 0, 0) for profile in plan.profiles]
    return found


def _array_bytes(binding: Binding) -> int:
    try:
        bits = parse_dtype(binding.dtype).bits
    except SpecError as error:
        raise CorruptError(f"array {binding.path}: {error.message}") from error
    return (math.prod(binding.shape) * bits + 7) // 8


def _launch_references(step: Launch) -> list[tuple[int, int, int]]:
    found = []
    for parameter in step.parameters:
        if isinstance(parameter, Pointer):
            found.append((parameter.buffer, parameter.offset, 0))
        elif isinstance(parameter, Bytes):
            found += [(m.buffer, m.offset, 0) for _, m in parameter.tensor_maps]
    if step.peer_table is not None:
        found += [(buffer, offset, 0) for buffer, offset in step.peer_table.arrays]
    return found


def _broken_rules(plan: LaunchPlan) -> Iterator[str]:
    for index, buffer in enumerate(plan.buffers):
        if buffer.size < 0 or (buffer.role == "constant") != (buffer.digest is not None):
            yield f"{buffer.role} buffer {index} of {buffer.size} bytes has digest {buffer.digest}"
    for index, step in enumerate(plan.steps):
        if isinstance(step, Fill) and (step.size % step.width or step.value >> 8 * step.width):
            yield f"step {index} fills {step.size} bytes with {step.value:#x}"
        if isinstance(step, Launch):
            for parameter in step.parameters:
                if isinstance(parameter, Bytes) and not _fits(parameter):
                    yield f"step {index} passes {parameter.size} bytes that do not fit together"
    for tree, bindings in ((plan.input_tree, plan.inputs), (plan.output_tree, plan.outputs)):
        if sorted(tree_leaves(tree)) != list(range(len(bindings))):
            yield f"a pytree does not name each of {len(bindings)} arrays once"


def _broken_extras(plan: LaunchPlan) -> Iterator[str]:
    """Yield what is wrong with what only some plans have."""
    for launch in plan.launches:
        if launch.peer_table is not None:
            yield from broken_table(launch.peer_table, plan.device_count)
        elif any(isinstance(parameter, Peers) for parameter in launch.parameters):
            yield f"{launch.kernel} takes a table of peers that nothing describes"
        for tensor_map in _tensor_maps(launch):
            peers = tensor_map.peers
            if peers is not None and (
                len(peers) != plan.device_count
                or any(not MULTICAST <= peer < plan.device_count for peer in peers)
            ):
                yield f"a tensor map of {launch.kernel} names peers {peers}"
    grids: list[tuple[int, ...]] = [launch.grid for launch in plan.launches]
    for profile in plan.profiles:
        buffer = plan.buffers[profile.buffer]
        if buffer.role != "temporary":
            yield f"a profile lies in {buffer.role} buffer {profile.buffer}"
        yield from broken_profile(profile, grids, buffer.size)


def _tensor_maps(launch: Launch) -> Iterator[TensorMap]:
    for parameter in launch.parameters:
        if isinstance(parameter, Bytes):
            yield from (tensor_map for _, tensor_map in parameter.tensor_maps)


def _fits(parameter: Bytes) -> bool:
    ends = [offset + MAP_BYTES for offset, _ in parameter.tensor_maps]
    starts = [offset for offset, _ in parameter.tensor_maps]
    return len(parameter.data) in (0, 2 * parameter.size) and all(
        start >= 0 and end <= parameter.size for start, end in zip(starts, ends, strict=True)
    )


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
