"""The launch plan: everything needed to run a compiled function, as data.

A plan is an ordered list of steps over numbered buffers. Offsets and sizes are bytes. It knows
nothing of JAX or XLA; `to_json` and `plan_from_json` are exact inverses.

JSON form, schema 1: an object with `buffers`, `inputs`, `outputs`, `input_tree`, `output_tree`,
`steps`; every step and parameter carries its `kind`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pallasc.errors import CorruptError

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
    and `swizzle` are bytes (0 is none), `l2_promotion` too.
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


Parameter = Pointer | Bytes


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch `kernel` of the cubin with this `digest`.

    `grid` counts blocks, also with a cluster; `cluster` None means no cluster attribute;
    `pdl` sets the attribute programmatic stream serialization. `origin` is "mosaic" or "xla".
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


Step = Fill | Copy | Launch


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Buffers, signature and steps of one compiled function.

    `input_tree` and `output_tree` give the pytrees as JSON: a list or object whose leaves are
    indices into `inputs` or `outputs`, None where the caller passes or gets None.
    """

    buffers: tuple[Buffer, ...]
    inputs: tuple[Binding, ...]
    outputs: tuple[Binding, ...]
    steps: tuple[Step, ...]
    input_tree: Any
    output_tree: Any

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The launches among the steps, in order."""
        return tuple(step for step in self.steps if isinstance(step, Launch))


_STEPS = {"fill": Fill, "copy": Copy, "launch": Launch}
_PARAMETERS = {"pointer": Pointer, "bytes": Bytes}


def plan_to_json(plan: LaunchPlan) -> dict[str, Any]:
    """Return the plan as plain data for JSON."""
    return {
        "buffers": [asdict(buffer) for buffer in plan.buffers],
        "inputs": [asdict(binding) for binding in plan.inputs],
        "outputs": [asdict(binding) for binding in plan.outputs],
        "steps": [_step_to_json(step) for step in plan.steps],
        "input_tree": plan.input_tree,
        "output_tree": plan.output_tree,
    }


def _step_to_json(step: Step) -> dict[str, Any]:
    data = {"kind": type(step).__name__.lower(), **asdict(step)}
    if isinstance(step, Launch):
        data["parameters"] = [
            {"kind": type(parameter).__name__.lower(), **asdict(parameter)}
            for parameter in step.parameters
        ]
    return data


def plan_from_json(data: Mapping[str, Any]) -> LaunchPlan:
    """Return the plan that `plan_to_json` wrote.

    Raises:
        CorruptError: a field is missing, unknown, of another type, or a buffer does not exist.
    """
    try:
        plan = LaunchPlan(
            buffers=tuple(Buffer(**buffer) for buffer in data["buffers"]),
            inputs=tuple(_binding(item) for item in data["inputs"]),
            outputs=tuple(_binding(item) for item in data["outputs"]),
            steps=tuple(_step(item) for item in data["steps"]),
            input_tree=data["input_tree"],
            output_tree=data["output_tree"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(f"the launch plan is damaged: {error!r}") from error
    check_ranges(plan)
    return plan


def _binding(data: Mapping[str, Any]) -> Binding:
    return Binding(**{**data, "shape": tuple(data["shape"])})


def _step(data: Mapping[str, Any]) -> Step:
    fields = dict(data)
    kind = fields.pop("kind")
    if kind == "launch":
        fields["parameters"] = tuple(_parameter(item) for item in fields["parameters"])
        for name in ("grid", "block", "cluster"):
            fields[name] = None if fields[name] is None else tuple(fields[name])
    step: Step = _STEPS[kind](**fields)
    return step


def _parameter(data: Mapping[str, Any]) -> Parameter:
    fields = dict(data)
    kind = fields.pop("kind")
    if kind == "bytes":
        fields["tensor_maps"] = tuple(
            (offset, _tensor_map(item)) for offset, item in fields["tensor_maps"]
        )
    parameter: Parameter = _PARAMETERS[kind](**fields)
    return parameter


def _tensor_map(data: Mapping[str, Any]) -> TensorMap:
    sequences = ("dims", "strides", "box", "element_strides")
    return TensorMap(**{**data, **{name: tuple(data[name]) for name in sequences}})


def check_ranges(plan: LaunchPlan) -> None:
    """Check that every reference of the plan lies inside an existing buffer.

    Raises:
        CorruptError: one does not.
    """
    for what, buffer, offset, size in _references(plan):
        if not 0 <= buffer < len(plan.buffers):
            raise CorruptError(f"{what} names buffer {buffer} of {len(plan.buffers)}")
        if offset < 0 or size < 0 or offset + size > plan.buffers[buffer].size:
            raise CorruptError(
                f"{what} takes bytes {offset} to {offset + size} of buffer {buffer}, "
                f"which has {plan.buffers[buffer].size}"
            )


def _references(plan: LaunchPlan) -> list[tuple[str, int, int, int]]:
    found = [(f"array {b.path}", b.buffer, 0, 0) for b in (*plan.inputs, *plan.outputs)]
    for index, step in enumerate(plan.steps):
        what = f"step {index}"
        if isinstance(step, Fill):
            found.append((what, step.buffer, step.offset, step.size))
        elif isinstance(step, Copy):
            found.append((what, step.source, step.source_offset, step.size))
            found.append((what, step.target, step.target_offset, step.size))
        else:
            found += [(what, *place) for place in _launch_references(step)]
    return found


def _launch_references(step: Launch) -> list[tuple[int, int, int]]:
    found = []
    for parameter in step.parameters:
        if isinstance(parameter, Pointer):
            found.append((parameter.buffer, parameter.offset, 0))
        else:
            found += [(m.buffer, m.offset, 0) for _, m in parameter.tensor_maps]
    return found
