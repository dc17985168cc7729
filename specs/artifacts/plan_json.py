"""The JSON form of a launch plan; `plan_to_json` and `plan_from_json` are exact inverses.

Schema 1: an object with `buffers`, `inputs`, `outputs`, `input_tree`, `output_tree`, `steps`, each
with the fields of its data class; every step and parameter also has its `kind`. Left out where it
would be empty or None:

* `mesh`: a list of [axis, size], where the plan is that of one device among several; then a launch
  may have `peer_table`, a parameter the kind "peers", a tensor map `peers` (`peers.py`)
* `parameters`: the names in `input_tree` in the order of the function's signature, where a name
  without arrays goes before one with some
* `layout` of an input: its dimensions from the minor one, where it is not row-major
* `size` of a pointer: its array's, where another array follows in the buffer
* `profiles`: what profiled kernels leave (`specs/artifacts/profile.py`)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from functools import cache
from typing import Any, TypeVar

from pallasc.errors import CorruptError
from pallasc.specs.artifacts.peers import Peers, PeerTable
from pallasc.specs.artifacts.plan import (
    Binding,
    Buffer,
    Bytes,
    Copy,
    Fill,
    Im2col,
    Launch,
    LaunchPlan,
    Parameter,
    Pointer,
    Step,
    TensorMap,
)
from pallasc.specs.artifacts.plan_rules import check_ranges
from pallasc.specs.artifacts.profile import Profile
from pallasc.specs.untrusted_json import as_flag, as_list, as_object, as_text, as_whole, fault

_STEPS: Mapping[str, type[Step]] = {"fill": Fill, "copy": Copy, "launch": Launch}
_PARAMETERS: Mapping[str, type[Parameter]] = {"pointer": Pointer, "bytes": Bytes, "peers": Peers}

_CAPITAL = re.compile("[A-Z]")

_Data = TypeVar(
    "_Data", bound=Buffer | Binding | Step | Parameter | TensorMap | PeerTable | Profile
)


def plan_to_json(plan: LaunchPlan) -> dict[str, object]:
    """Return the plan as plain data for JSON."""
    return {
        "buffers": [asdict(buffer) for buffer in plan.buffers],
        "inputs": [_fields(binding, optional="layout") for binding in plan.inputs],
        "outputs": [_fields(binding, optional="layout") for binding in plan.outputs],
        "steps": [_step_to_json(step) for step in plan.steps],
        "input_tree": plan.input_tree,
        "output_tree": plan.output_tree,
        **({"mesh": [list(axis) for axis in plan.mesh]} if plan.mesh else {}),
        **({"parameters": list(plan.parameters)} if plan.parameters else {}),
        **({"profiles": [asdict(profile) for profile in plan.profiles]} if plan.profiles else {}),
    }


def _fields(item: Binding | Launch | TensorMap, *, optional: str) -> dict[str, object]:
    """Return the fields of a data class, less the optional one where it is None."""
    data: dict[str, object] = asdict(item)
    if data[optional] is None:
        del data[optional]
    return data


def _step_to_json(step: Step) -> dict[str, object]:
    kind = type(step).__name__.lower()
    if not isinstance(step, Launch):
        return {"kind": kind, **asdict(step)}
    parameters = [_parameter_to_json(parameter) for parameter in step.parameters]
    return {"kind": kind, **_fields(step, optional="peer_table"), "parameters": parameters}


def _parameter_to_json(parameter: Parameter) -> dict[str, object]:
    data: dict[str, object] = {"kind": type(parameter).__name__.lower(), **asdict(parameter)}
    if isinstance(parameter, Bytes):
        data["tensor_maps"] = [
            [offset, _fields(tensor_map, optional="peers")]
            for offset, tensor_map in parameter.tensor_maps
        ]
    elif isinstance(parameter, Pointer) and not parameter.size:
        del data["size"]
    return data


def plan_from_json(data: Mapping[str, object]) -> LaunchPlan:
    """Return the plan that `plan_to_json` wrote.

    Raises:
        CorruptError: a field is missing, unknown, of another type, or a buffer does not exist.
    """
    try:
        plan = LaunchPlan(
            buffers=tuple(_make(Buffer, item) for item in as_list(data["buffers"])),
            inputs=tuple(_make(Binding, item) for item in as_list(data["inputs"])),
            outputs=tuple(_make(Binding, item) for item in as_list(data["outputs"])),
            steps=tuple(_of_kind(_STEPS, item) for item in as_list(data["steps"])),
            input_tree=data["input_tree"],
            output_tree=data["output_tree"],
            mesh=tuple(map(_axis, as_list(data.get("mesh", ())))),
            profiles=tuple(_make(Profile, item) for item in as_list(data.get("profiles", ()))),
            parameters=_texts(data.get("parameters", ())),
        )
    except (LookupError, TypeError, ValueError) as error:
        raise CorruptError(f"the launch plan is damaged: {fault(error)}") from error
    check_ranges(plan)
    return plan


def _make(kind: type[_Data], data: object) -> _Data:
    """Return the data class with these fields, each of the type that it declares."""
    make: Callable[..., _Data] = kind  # its own error tells which fields are missing
    readers = _readers_of(make)
    values: dict[str, object] = {}
    for name, value in as_object(data).items():
        if name not in readers:
            raise TypeError(f"unknown field {name!r} of a {_label(kind)}")
        try:
            values[name] = readers[name](value)
        except TypeError as error:
            raise TypeError(f"{name} of a {_label(kind)}: {error}") from error
    return make(**values)


@cache
def _readers_of(kind: Any) -> Mapping[str, Callable[[object], object]]:
    """Return what reads each field of a data class, by its name."""
    return {field.name: _READERS[str(field.type)] for field in fields(kind)}


def _label(kind: type[_Data]) -> str:
    return _CAPITAL.sub(r" \g<0>", kind.__name__).strip().lower()


def _of_kind(kinds: Mapping[str, type[_Data]], data: object) -> _Data:
    values = dict(as_object(data))
    name = as_text(values.pop("kind"))
    if name not in kinds:
        raise TypeError(f"unknown kind {name!r}, expected one of {', '.join(kinds)}")
    return _make(kinds[name], values)


def _whole_numbers(value: object) -> tuple[int, ...]:
    return tuple(map(as_whole, as_list(value)))


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(as_text, as_list(value)))


def _dim3(value: object) -> tuple[int, ...]:
    sizes = _whole_numbers(value)
    if len(sizes) != 3 or min(sizes) < 1:
        raise TypeError(f"expected three sizes from 1, got {sizes}")
    return sizes


def _axis(value: object) -> tuple[str, int]:
    name, size = as_list(value)
    if type(name) is not str or type(size) is not int or size < 1:
        raise TypeError(f"an axis of the mesh is {value!r}")
    return name, size


def _pair(value: object) -> tuple[int, int]:
    buffer, offset = as_list(value)
    return as_whole(buffer), as_whole(offset)


def _placed_map(value: object) -> tuple[int, TensorMap]:
    offset, tensor_map = as_list(value)
    return as_whole(offset), _make(TensorMap, tensor_map)


def _parameters(value: object) -> tuple[Parameter, ...]:
    parameters = tuple(_of_kind(_PARAMETERS, item) for item in as_list(value))
    for parameter in parameters:
        if isinstance(parameter, Bytes):
            bytes.fromhex(parameter.data)
    return parameters


def _im2col(value: object) -> Im2col:
    window = as_object(value)
    if window.keys() != Im2col.__annotations__.keys():
        raise TypeError(f"a window has the fields {', '.join(sorted(window))}")
    return Im2col(
        lower=list(_whole_numbers(window["lower"])),
        upper=list(_whole_numbers(window["upper"])),
        channels_per_pixel=as_whole(window["channels_per_pixel"]),
        pixels_per_column=as_whole(window["pixels_per_column"]),
    )


def _one_of(*choices: object) -> Callable[[object], object]:
    def read(value: object) -> object:
        if value not in choices or type(value) is not type(choices[0]):
            raise TypeError(f"expected one of {choices}, got {value!r}")
        return value

    return read


def _or_none(read: Callable[[object], object]) -> Callable[[object], object]:
    return lambda value: None if value is None else read(value)


# What reads the value of a field, by the field's annotation.
_READERS: Mapping[str, Callable[[object], object]] = {
    "int": as_whole,
    "bool": as_flag,
    "str": as_text,
    "str | None": _or_none(as_text),
    "Role": _one_of("input", "output", "constant", "temporary"),
    "Literal[1, 4]": _one_of(1, 4),
    "tuple[int, ...]": _whole_numbers,
    "tuple[int, ...] | None": _whole_numbers,  # such a field is left out where it is None
    "tuple[str, ...]": _texts,
    "tuple[tuple[int, int], ...]": lambda value: tuple(map(_pair, as_list(value))),
    "Dim3": _dim3,
    "Dim3 | None": _or_none(_dim3),
    "Im2col | None": _or_none(_im2col),
    "tuple[Parameter, ...]": _parameters,
    "PeerTable | None": _or_none(lambda value: _make(PeerTable, value)),
    "tuple[tuple[int, TensorMap], ...]": lambda value: tuple(map(_placed_map, as_list(value))),
}
