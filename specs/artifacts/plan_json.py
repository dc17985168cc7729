"""The JSON form of a launch plan; `plan_to_json` and `plan_from_json` are exact inverses.

Schema 1: an object with `buffers`, `inputs`, `outputs`, `input_tree`, `output_tree`, `steps`; every
step and parameter carries its `kind`. Only where there is something to say, there is also:

* `mesh`: a list of [axis, size], where the plan is that of one device among several; then a launch
  may have `peer_table`, a parameter the kind "peers", a tensor map `peers` (`peers.py`)
* `parameters`: the names in `input_tree` in the order of the function's signature, where a name
  without arrays goes before one with some
* `layout` of an input: its dimensions from the minor one, where it is not row-major
* `profiles`: what profiled kernels leave (`specs/artifacts/profile.py`)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

from pallasc.errors import CorruptError
from pallasc.specs.artifacts.peers import Peers, peer_table_from_json, peer_table_to_json
from pallasc.specs.artifacts.plan import (
    Binding,
    Buffer,
    Bytes,
    Copy,
    Fill,
    Launch,
    LaunchPlan,
    Parameter,
    Pointer,
    Step,
    TensorMap,
)
from pallasc.specs.artifacts.plan_rules import check_ranges
from pallasc.specs.artifacts.profile import profile_from_json, profile_to_json

_STEPS: dict[str, Any] = {"fill": Fill, "copy": Copy, "launch": Launch}
_PARAMETERS: dict[str, Any] = {"pointer": Pointer, "bytes": Bytes, "peers": Peers}


def plan_to_json(plan: LaunchPlan) -> dict[str, Any]:
    """Return the plan as plain data for JSON."""
    return {
        "buffers": [asdict(buffer) for buffer in plan.buffers],
        "inputs": [_binding_to_json(binding) for binding in plan.inputs],
        "outputs": [_binding_to_json(binding) for binding in plan.outputs],
        "steps": [_step_to_json(step) for step in plan.steps],
        "input_tree": plan.input_tree,
        "output_tree": plan.output_tree,
        **({"mesh": [list(axis) for axis in plan.mesh]} if plan.mesh else {}),
        **({"parameters": list(plan.parameters)} if plan.parameters else {}),
        **({"profiles": [profile_to_json(p) for p in plan.profiles]} if plan.profiles else {}),
    }


def _binding_to_json(binding: Binding) -> dict[str, Any]:
    data = asdict(binding)
    if binding.layout is None:
        del data["layout"]
    return data


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
            parameters=tuple(data.get("parameters", ())),
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
    sequences = ["shape", *(["layout"] if "layout" in data else [])]
    return _make(Binding, {**data, **{name: tuple(data[name]) for name in sequences}})


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
